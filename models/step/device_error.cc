#include "models/step/device_error.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

// The values of cudaError_t after which a process can use CUDA only if it is started again. CUDA documents that, except
// for 999, an unknown error: drivers that have lost the GPU are known to give it to every call.
constexpr std::array<int32_t, 15> kSticky = {
    214,  // ECC error that cannot be corrected
    220,  // NVLink error that cannot be corrected
    226,  // contained memory error
    700,  // illegal address
    702,  // launch timed out
    709,  // context is destroyed
    710,  // device-side assert
    714,  // hardware stack error
    715,  // illegal instruction
    716,  // misaligned address
    717,  // invalid address space
    718,  // invalid program counter
    719,  // launch failure
    721,  // contained error
    999,  // unknown
};

}  // namespace

bool IsSticky(int32_t cuda_error) { return std::find(kSticky.begin(), kSticky.end(), cuda_error) != kSticky.end(); }

absl::Status DeviceError(absl::string_view what, const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string message =
      absl::StrCat(what, ": ", of_torch != nullptr ? of_torch->what_without_backtrace() : error.what());
  const auto* const of_device = dynamic_cast<const c10::AcceleratorError*>(&error);
  if (of_device != nullptr && IsSticky(of_device->get_error_code())) return absl::DataLossError(message);
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

}  // namespace berth
