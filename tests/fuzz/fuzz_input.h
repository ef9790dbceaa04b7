// What the fuzz targets make of an input's bytes. Inputs are text where they can be, so that people can read and write
// those of corpus/. Functions; one thread.
#ifndef BERTH_TESTS_FUZZ_FUZZ_INPUT_H_
#define BERTH_TESTS_FUZZ_FUZZ_INPUT_H_

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/base/internal/raw_logging.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace berth {

// Ends the process with a message where a target's promise is broken.
#define FUZZ_CHECK(condition, message) ABSL_RAW_CHECK(condition, std::string(message).c_str())

inline std::string TextOf(const uint8_t* data, size_t size) {
  return size == 0 ? "" : std::string(reinterpret_cast<const char*>(data), size);
}

// An input of several parts: a line of three equal signs stands between them. Missing parts are empty.
inline std::vector<std::string> PartsOf(const uint8_t* data, size_t size, size_t count) {
  std::vector<std::string> parts =
      absl::StrSplit(TextOf(data, size), absl::MaxSplits("\n===\n", static_cast<int>(count) - 1));
  parts.resize(count);
  return parts;
}

// Reads a message from protobuf text. False: the text has an error, or gRPC would refuse the message.
inline bool ParseMessage(const std::string& text, google::protobuf::Message* message) {
  class Silent : public google::protobuf::io::ErrorCollector {
    void AddError(int, int, const std::string&) override {}
  } silent;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&silent);
  return parser.ParseFromString(text, message) && message->ParseFromString(message->SerializeAsString());
}

// Whether an error says that Rust code panicked. Messages quote the input, which may have the words too.
inline bool HasPanicked(const absl::Status& status, const std::string& input) {
  for (const char* words : {"internal error", "panic"}) {
    if (absl::StrContains(status.message(), words) && !absl::StrContains(input, words)) return true;
  }
  return false;
}

// An empty folder of this process.
inline std::string FuzzFolder() {
  static const auto* const folder = [] {
    std::string name = (std::filesystem::temp_directory_path() / "berth_fuzz_XXXXXX").string();
    if (const char* tmp = std::getenv("TEST_TMPDIR"); tmp != nullptr) name = std::string(tmp) + "/fuzz_XXXXXX";
    FUZZ_CHECK(mkdtemp(name.data()) != nullptr, "cannot make " + name);
    return new std::string(name);
  }();
  return *folder;
}

inline void WriteFile(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  FUZZ_CHECK(file.good(), "cannot write " + path);
}

}  // namespace berth

#endif  // BERTH_TESTS_FUZZ_FUZZ_INPUT_H_
