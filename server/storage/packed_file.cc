#include "server/storage/packed_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/storage/content_hash.h"
#include "server/storage/model_fingerprint.h"

namespace berth {
namespace {

namespace fs = std::filesystem;

constexpr char kProgram[] = "/proc/self/exe";

absl::StatusOr<std::string> HashOfProgram() {
  std::ifstream file(kProgram, std::ios::binary);
  ContentHash hash;
  std::vector<char> bytes(1 << 20);
  while (file) {
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    hash.Add(bytes.data(), static_cast<size_t>(file.gcount()));
  }
  if (!file.eof()) return absl::FailedPreconditionError(absl::StrCat("cannot read ", kProgram));
  return hash.Hex();
}

// When the files of the weights were written, in the order of their names.
std::string TimesOfWeights(const std::string& model_dir) {
  std::vector<std::string> times;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(model_dir, error)) {
    if (entry.path().extension() != ".safetensors") continue;
    times.push_back(absl::StrCat(entry.path().filename().string(), " ",
                                 fs::last_write_time(entry.path(), error).time_since_epoch().count(), "\n"));
  }
  std::sort(times.begin(), times.end());
  std::string all;
  for (const std::string& time : times) absl::StrAppend(&all, time);
  return all;
}

}  // namespace

absl::StatusOr<PackedFile> ChoosePackedFile(const LoadOptions& options, const std::string& packed_weights,
                                            const std::string& capability) {
  if (packed_weights == "none" || options.device != "cpu") return PackedFile();
  absl::StatusOr<std::string> program = HashOfProgram();
  if (!program.ok()) return program.status();
  const std::string kind = absl::StrCat(options.dtype, "-", options.weights, "-", capability);
  absl::StatusOr<std::string> identity =
      ModelFingerprint(options.model_dir, absl::StrCat(kind, "\n", *program, "\n", TimesOfWeights(options.model_dir)));
  if (!identity.ok()) return identity.status();
  const fs::path model = fs::weakly_canonical(options.model_dir);
  const fs::path file = packed_weights == "auto"
                            ? model / ".berth" / absl::StrCat(kind, ".packed")
                            : fs::path(packed_weights) / absl::StrCat(model.filename().string(), "-", kind, ".packed");
  return PackedFile{.path = file.string(), .identity = *std::move(identity)};
}

}  // namespace berth
