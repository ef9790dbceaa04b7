// The files from which a client makes a model's tokenizer and chat template, as one zip archive. A function;
// thread-safe.
#ifndef BERTH_SERVER_VLLM_TOKENIZER_ARCHIVE_H_
#define BERTH_SERVER_VLLM_TOKENIZER_ARCHIVE_H_

#include <string>

#include "absl/status/statusor.h"

namespace berth {

struct TokenizerArchive {
  std::string bytes;
  std::string sha256;  // of the bytes, in lower-case hexadecimal
};

// Reads the files of `model_dir`; blocks. The files are stored uncompressed and without their times: equal files make
// equal archives, on every server. FAILED_PRECONDITION: there is no tokenizer.json, or a file cannot be read.
absl::StatusOr<TokenizerArchive> MakeTokenizerArchive(const std::string& model_dir);

}  // namespace berth

#endif  // BERTH_SERVER_VLLM_TOKENIZER_ARCHIVE_H_
