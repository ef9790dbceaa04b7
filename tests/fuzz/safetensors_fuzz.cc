// A checkpoint's files. "R" and bytes: a file as it is. "H", a header and the tensors' bytes: the header's length is
// put before it. "I" and JSON: the index of a checkpoint whose only shard is sound.
#include <cstring>

#include "models/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

namespace berth {
namespace {

std::string WithLength(const std::string& header, const std::string& bytes) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + bytes;
}

// Reads each tensor where a reader would.
int Touch(const Checkpoint& checkpoint) {
  int sum = 0;
  for (const std::string& name : checkpoint.names()) {
    const TensorView* const tensor = checkpoint.Find(name);
    FUZZ_CHECK(tensor != nullptr && tensor->bytes >= 0, name);
    if (tensor->bytes > 0) sum += static_cast<int>(tensor->data[0]) + static_cast<int>(tensor->data[tensor->bytes - 1]);
  }
  return sum;
}

}  // namespace
}  // namespace berth

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return -1;
  const std::string folder = berth::FuzzFolder();
  const std::vector<std::string> parts = berth::PartsOf(data + 1, size - 1, 2);
  if (data[0] == 'I') {
    std::filesystem::remove(folder + "/model.safetensors");
    const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    berth::WriteFile(folder + "/a.safetensors", berth::WithLength(header, "x"));
    berth::WriteFile(folder + "/model.safetensors.index.json", parts[0]);
  } else {
    const bool raw = data[0] == 'R';
    berth::WriteFile(folder + "/model.safetensors",
                     raw ? berth::TextOf(data + 1, size - 1) : berth::WithLength(parts[0], parts[1]));
  }
  const auto checkpoint = berth::Checkpoint::Open(folder);
  FUZZ_CHECK(!checkpoint.ok() || berth::Touch(**checkpoint) >= 0, "bytes");
  return 0;
}
