// Sets up spdlog, which every server file logs through. Lines go to stderr: text for people, or one JSON object each
// for machines. Logging is thread-safe; setting it up is not.
#ifndef BERTH_SERVER_PROCESS_LOGGING_H_
#define BERTH_SERVER_PROCESS_LOGGING_H_

#include <spdlog/formatter.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace berth {

// {"time":"2026-11-21T04:20:00.123456Z","level":"info","thread":12,"message":"..."}, whatever bytes the message holds.
class JsonLogFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override;
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonLogFormatter>(); }
};

// Same figures as text. Control characters are escaped (server/process/escape.h): a message is one line, whatever it
// quotes.
class TextLogFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override;
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<TextLogFormatter>(); }
};

// `level` and `format` as Config has them, checked.
void SetUpLogging(absl::string_view level, absl::string_view format);

// Sets up spdlog's logger "audit" (server/admission/audit.h), which logs at any --log_level: into the file `path`,
// which only its owner can read, or beside the usual log for "". FAILED_PRECONDITION: the file cannot be opened.
absl::Status SetUpAuditLog(const std::string& path, absl::string_view format);

// Changes the level of the usual log. Thread-safe.
void SetLogLevel(absl::string_view level);

}  // namespace berth

#endif  // BERTH_SERVER_PROCESS_LOGGING_H_
