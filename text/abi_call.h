// Turns calls of the C ABI into Status and std::string. Stateless.
#ifndef BERTH_TEXT_ABI_CALL_H_
#define BERTH_TEXT_ABI_CALL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "text/text_abi.h"

namespace berth {

inline const uint8_t* BytesOf(absl::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

inline std::string TakeString(BerthBytes bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data), bytes.len);
  berth_bytes_free(bytes);
  return text;
}

// Returns INVALID_ARGUMENT with `what: message` if the call failed.
inline absl::Status CallStatus(int32_t result, BerthBytes error, absl::string_view what) {
  if (result == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", TakeString(error)));
}

}  // namespace berth

#endif  // BERTH_TEXT_ABI_CALL_H_
