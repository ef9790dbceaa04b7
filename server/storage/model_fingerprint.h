// Tells checkpoints apart, so that a session is not resumed by another model. Blocks on the disk; thread-safe.
#ifndef BERTH_SERVER_STORAGE_MODEL_FINGERPRINT_H_
#define BERTH_SERVER_STORAGE_MODEL_FINGERPRINT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

// 32 hexadecimal digits: XXH3-128 over `settings` (what the server's flags change of what the model computes, in
// words), config.json, tokenizer.json, and of every safetensors file its name, its size, its header (tensors' names,
// types, shapes, places), and 256 evenly spaced pages of 4 KiB, the first and the last among them. Reading all of the
// weights would take longer than loading them; weights that differ elsewhere only are not told apart.
// FAILED_PRECONDITION naming a file that cannot be read.
absl::StatusOr<std::string> ModelFingerprint(const std::string& model_dir, absl::string_view settings);

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_MODEL_FINGERPRINT_H_
