// A session's file: its bytes, with the checksums made right, or its header as protobuf text. What is read is checked
// like a client's request before it is resumed.
#include "absl/strings/match.h"
#include "server/request/session_request.h"
#include "server/storage/session_file.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/snapshot_frame.h"
#include "tests/server/delivery/fake_text_codec.h"

namespace berth {
namespace {

void ReadBack(const std::string& path) {
  static const FakeTextCodec codec;
  ModelInfo model;
  model.vocab_size = kFakeVocabSize;
  model.eos_token_ids = {99};
  ValidationContext context;
  context.model = &model;
  context.text = &codec;
  context.limits = {.max_sequence_tokens = 64, .default_max_tokens = 16};
  const auto header = ReadSessionFile(path, /*with_snapshot=*/false);
  auto content = ReadSessionFile(path, /*with_snapshot=*/true);
  FUZZ_CHECK(header.ok() || !content.ok(), "the header alone cannot be read");
  if (!content.ok()) return;
  const auto resumed = ResumeSession(*std::move(content), context);
  if (!resumed.ok()) return;
  const absl::Status taken = ValidateRequest(resumed->request, model.vocab_size, context.limits.max_sequence_tokens);
  // How long the output may be is the scheduler's to say.
  FUZZ_CHECK(taken.ok() || absl::IsInvalidArgument(taken), taken.ToString());
}

}  // namespace
}  // namespace berth

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = berth::FuzzFolder() + "/session";
  std::string bytes = berth::TextOf(data, size);
  if (absl::StartsWith(bytes, "BERTHSES")) {
    berth::RepairChecksums(&bytes);
    berth::WriteFile(path, bytes);
  } else {
    berth::v1::SessionFile file;
    if (!berth::ParseMessage(bytes, &file)) return -1;
    FUZZ_CHECK(berth::WriteSessionFile(path, file, berth::CacheSnapshot()).ok(), "cannot write the file");
  }
  berth::ReadBack(path);
  return 0;
}
