#include "server/process/logging.h"

#include <fcntl.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/process/escape.h"

namespace berth {
namespace {

std::string UtcTime(const spdlog::details::log_msg& message) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromChrono(message.time), absl::UTCTimeZone());
}

absl::string_view LevelName(const spdlog::details::log_msg& message) {
  const spdlog::string_view_t name = spdlog::level::to_string_view(message.level);
  return {name.data(), name.size()};
}

void Append(absl::string_view line, spdlog::memory_buf_t* out) { out->append(line.data(), line.data() + line.size()); }

// The name of the usual logger, which its lines leave out.
constexpr char kName[] = "berth";

std::shared_ptr<spdlog::logger> Make(const char* name, spdlog::sink_ptr sink, absl::string_view format) {
  auto logger = std::make_shared<spdlog::logger>(name, std::move(sink));
  if (format == "json") {
    logger->set_formatter(std::make_unique<JsonLogFormatter>());
  } else {
    logger->set_formatter(std::make_unique<TextLogFormatter>());
  }
  logger->flush_on(spdlog::level::trace);
  return logger;
}

}  // namespace

void JsonLogFormatter::format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) {
  nlohmann::ordered_json line = {
      {"time", UtcTime(message)}, {"level", std::string(LevelName(message))}, {"thread", message.thread_id}};
  const std::string name(message.logger_name.data(), message.logger_name.size());
  if (name != kName) line["logger"] = name;
  line["message"] = std::string(message.payload.data(), message.payload.size());
  // In ASCII: control characters of Unicode are escaped too. Bytes that are not UTF-8 become U+FFFD rather than an
  // exception.
  Append(line.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace), &out);
  Append("\n", &out);
}

void TextLogFormatter::format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) {
  const std::string text = EscapeControls(absl::string_view(message.payload.data(), message.payload.size()));
  const absl::string_view name(message.logger_name.data(), message.logger_name.size());
  Append(absl::StrCat(UtcTime(message), " ", LevelName(message), " ", name == kName ? "" : absl::StrCat(name, ": "),
                      text, "\n"),
         &out);
}

void SetUpLogging(absl::string_view level, absl::string_view format) {
  const auto logger = Make(kName, std::make_shared<spdlog::sinks::stderr_sink_mt>(), format);
  logger->set_level(spdlog::level::from_str(std::string(level)));
  spdlog::set_default_logger(logger);
}

absl::Status SetUpAuditLog(const std::string& path, absl::string_view format) {
  spdlog::sink_ptr sink;
  if (path.empty()) {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  } else {
    // Made first, so that only its owner can read it. spdlog throws where it cannot open a file.
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) {
      return absl::FailedPreconditionError(absl::StrCat("--audit_log: cannot open ", path, ": ", std::strerror(errno)));
    }
    struct stat found = {};
    if (::fstat(file, &found) == 0 && (found.st_mode & 0077) != 0) {
      spdlog::warn("{}: others than the owner may use the audit log; chmod 600 keeps them out", path);
    }
    ::close(file);
    sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
  }
  spdlog::drop("audit");
  spdlog::register_logger(Make("audit", std::move(sink), format));
  return absl::OkStatus();
}

void SetLogLevel(absl::string_view level) {
  spdlog::default_logger_raw()->set_level(spdlog::level::from_str(std::string(level)));
}

}  // namespace berth
