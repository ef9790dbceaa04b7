#include "tests/models/call_inputs.h"

namespace berth {

c10::ArrayRef<const c10::IValue> InputsOf(const at::RecordFunction& function) { return function.inputs(); }

}  // namespace berth
