#include "server/vllm/tokenizer_archive.h"

#include <openssl/sha.h>
#include <zip.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

constexpr const char* kNames[] = {"tokenizer.json",         "tokenizer_config.json",   "config.json",
                                  "generation_config.json", "special_tokens_map.json", "added_tokens.json"};
// The gateway takes no more entries.
constexpr size_t kMaxFiles = 50;
// 1980-01-01, the first day that a zip archive knows.
constexpr zip_uint16_t kDosDate = 1 << 5 | 1;

struct NamedFile {
  std::string name;
  std::string content;
};

absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  if (file.good() && content.good()) return std::move(content).str();
  return absl::FailedPreconditionError(absl::StrCat(path.filename().string(), ": cannot be read"));
}

// In an order of its own, so that equal files make equal archives.
std::vector<std::string> FileNames(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const char* name : kNames) {
    if (std::filesystem::exists(folder / name, error)) names.push_back(name);
  }
  const size_t first_template = names.size();
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::EndsWith(name, ".jinja")) names.push_back(name);
  }
  std::sort(names.begin() + static_cast<std::ptrdiff_t>(first_template), names.end());
  names.resize(std::min(names.size(), kMaxFiles));
  return names;
}

absl::Status ZipError(zip_error_t* error) {
  return absl::InternalError(absl::StrCat("zip: ", zip_error_strerror(error)));
}

absl::Status AddFile(const NamedFile& file, zip_t* zip) {
  zip_source_t* const source = zip_source_buffer(zip, file.content.data(), file.content.size(), /*freep=*/0);
  if (source == nullptr) return ZipError(zip_get_error(zip));
  const zip_int64_t index = zip_file_add(zip, file.name.c_str(), source, ZIP_FL_ENC_UTF_8);
  if (index < 0) {
    zip_source_free(source);
    return ZipError(zip_get_error(zip));
  }
  const zip_uint64_t at = static_cast<zip_uint64_t>(index);
  if (zip_set_file_compression(zip, at, ZIP_CM_STORE, 0) != 0 || zip_file_set_dostime(zip, at, 0, kDosDate, 0) != 0) {
    return ZipError(zip_get_error(zip));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadAll(zip_source_t* source) {
  zip_stat_t stat;
  if (zip_source_stat(source, &stat) != 0 || zip_source_open(source) != 0) return ZipError(zip_source_error(source));
  std::string bytes(stat.size, '\0');
  const zip_int64_t count = zip_source_read(source, bytes.data(), bytes.size());
  zip_source_close(source);
  if (count != static_cast<zip_int64_t>(bytes.size())) return ZipError(zip_source_error(source));
  return bytes;
}

absl::StatusOr<std::string> Zip(const std::vector<NamedFile>& files) {
  zip_error_t error;
  zip_error_init(&error);
  const std::unique_ptr<zip_source_t, decltype(&zip_source_free)> archive(
      zip_source_buffer_create(nullptr, 0, 0, &error), &zip_source_free);
  if (archive == nullptr) return ZipError(&error);
  zip_source_keep(archive.get());  // zip_close gives up the reference that it got
  zip_t* const zip = zip_open_from_source(archive.get(), ZIP_TRUNCATE, &error);
  if (zip == nullptr) {
    zip_source_free(archive.get());
    return ZipError(&error);
  }
  absl::Status status;
  for (const NamedFile& file : files) status.Update(AddFile(file, zip));
  if (status.ok() && zip_close(zip) == 0) return ReadAll(archive.get());
  if (status.ok()) status = ZipError(zip_get_error(zip));
  zip_discard(zip);
  return status;
}

}  // namespace

absl::StatusOr<TokenizerArchive> MakeTokenizerArchive(const std::string& model_dir) {
  const std::vector<std::string> names = FileNames(model_dir);
  if (names.empty() || names[0] != "tokenizer.json") {
    return absl::FailedPreconditionError("the model has no tokenizer.json");
  }
  std::vector<NamedFile> files;
  for (const std::string& name : names) {
    absl::StatusOr<std::string> content = ReadFile(std::filesystem::path(model_dir) / name);
    if (!content.ok()) return content.status();
    files.push_back({name, *std::move(content)});
  }
  absl::StatusOr<std::string> bytes = Zip(files);
  if (!bytes.ok()) return bytes.status();
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash = {};
  SHA256(reinterpret_cast<const unsigned char*>(bytes->data()), bytes->size(), hash.data());
  const absl::string_view raw(reinterpret_cast<const char*>(hash.data()), hash.size());
  return TokenizerArchive{.bytes = *std::move(bytes), .sha256 = absl::BytesToHexString(raw)};
}

}  // namespace berth
