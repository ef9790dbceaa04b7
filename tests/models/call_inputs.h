// The inputs of a watched call. LibTorch is built without assertions, and then does not set the flag that
// RecordFunction::inputs() asserts. Where assertions are on, a watcher that calls it throws, LibTorch logs the
// exception, and the watcher sees nothing. Thread-safe.
#ifndef BERTH_TESTS_MODELS_CALL_INPUTS_H_
#define BERTH_TESTS_MODELS_CALL_INPUTS_H_

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/ArrayRef.h>

namespace berth {

// REQUIRES: called by a start callback that needs inputs.
c10::ArrayRef<const c10::IValue> InputsOf(const at::RecordFunction& function);

}  // namespace berth

#endif  // BERTH_TESTS_MODELS_CALL_INPUTS_H_
