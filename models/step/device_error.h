// Turns torch's exceptions into a Status, and tells errors that the device recovers from from those that it does not.
// Thread-safe.
#ifndef BERTH_MODELS_STEP_DEVICE_ERROR_H_
#define BERTH_MODELS_STEP_DEVICE_ERROR_H_

#include <cstdint>
#include <exception>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace berth {

// Whether a CUDA error (a cudaError_t) is sticky: every later call of the process fails too, and all of the device's
// memory is gone.
bool IsSticky(int32_t cuda_error);

// DATA_LOSS: the error is sticky. RESOURCE_EXHAUSTED: the device has no memory left. INTERNAL: any other. The message
// is "`what`: " and the error's own.
absl::Status DeviceError(absl::string_view what, const std::exception& error);

}  // namespace berth

#endif  // BERTH_MODELS_STEP_DEVICE_ERROR_H_
