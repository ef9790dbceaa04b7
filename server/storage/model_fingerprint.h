// Tells checkpoints apart, so that a session is not resumed by another model. Blocks on the disk; thread-safe.
#ifndef BERTH_SERVER_STORAGE_MODEL_FINGERPRINT_H_
#define BERTH_SERVER_STORAGE_MODEL_FINGERPRINT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

// Returns 32 hexadecimal digits: the XXH3-128 of
// - `settings`, which names the server's flags that change the model's output,
// - config.json and tokenizer.json,
// - the name, size and header (the tensors' names, types, shapes and places) of every safetensors file,
// - 256 evenly spaced pages of 4 KiB of each, including the first and the last.
// It does not tell weights apart that differ on other pages only: reading all of them takes longer than loading them.
// FAILED_PRECONDITION, with the file's name: a file cannot be read.
absl::StatusOr<std::string> ModelFingerprint(const std::string& model_dir, absl::string_view settings);

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_MODEL_FINGERPRINT_H_
