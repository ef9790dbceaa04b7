#include "server/storage/model_fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/storage/content_hash.h"

namespace berth {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kNumPages = 256;

absl::Status CannotRead(const fs::path& path) {
  return absl::FailedPreconditionError(absl::StrCat("cannot read ", path.string(), " for the model's fingerprint"));
}

absl::Status AddWholeFile(const fs::path& path, ContentHash* hash) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return CannotRead(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) return CannotRead(path);
  hash->AddText(path.filename().string());
  hash->AddText(text);
  return absl::OkStatus();
}

absl::Status AddPages(const fs::path& path, ContentHash* hash) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  uint64_t header = 0;
  if (error || !file || size < sizeof(header)) return CannotRead(path);
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  header = std::min(header, size - sizeof(header));
  hash->AddText(path.filename().string());
  hash->Add(&size, sizeof(size));
  std::string bytes(header, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(header));
  hash->AddText(bytes);
  bytes.resize(std::min(kPageBytes, size));
  const uint64_t last = size - bytes.size();
  for (uint64_t i = 0; i < kNumPages; ++i) {
    // Without overflow for any size of file.
    file.seekg(static_cast<std::streamoff>(last / (kNumPages - 1) * i + last % (kNumPages - 1) * i / (kNumPages - 1)));
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    hash->Add(bytes.data(), bytes.size());
  }
  return file ? absl::OkStatus() : CannotRead(path);
}

}  // namespace

absl::StatusOr<std::string> ModelFingerprint(const std::string& model_dir, absl::string_view settings) {
  ContentHash hash;
  hash.AddText(settings);
  if (absl::Status s = AddWholeFile(fs::path(model_dir) / "config.json", &hash); !s.ok()) return s;
  std::error_code error;
  if (const fs::path tokenizer = fs::path(model_dir) / "tokenizer.json"; fs::exists(tokenizer, error)) {
    if (absl::Status s = AddWholeFile(tokenizer, &hash); !s.ok()) return s;
  }
  std::vector<fs::path> weights;
  for (const fs::directory_entry& entry : fs::directory_iterator(model_dir, error)) {
    if (entry.path().extension() == ".safetensors") weights.push_back(entry.path());
  }
  if (error) return CannotRead(model_dir);
  std::sort(weights.begin(), weights.end());
  for (const fs::path& path : weights) {
    if (absl::Status s = AddPages(path, &hash); !s.ok()) return s;
  }
  return hash.Hex();
}

}  // namespace berth
