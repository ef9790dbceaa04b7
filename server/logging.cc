#include "server/logging.h"

#include <spdlog/sinks/stdout_sinks.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

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

}  // namespace

void JsonLogFormatter::format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) {
  const nlohmann::ordered_json line = {{"time", UtcTime(message)},
                                       {"level", std::string(LevelName(message))},
                                       {"thread", message.thread_id},
                                       {"message", std::string(message.payload.data(), message.payload.size())}};
  // Bytes that are not UTF-8 become U+FFFD rather than an exception.
  Append(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), &out);
  Append("\n", &out);
}

void TextLogFormatter::format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) {
  std::string line = absl::StrCat(UtcTime(message), " ", LevelName(message), " ");
  for (const char c : absl::string_view(message.payload.data(), message.payload.size())) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&line, "\\x%02x", byte);
    } else {
      line.push_back(c);
    }
  }
  line.push_back('\n');
  Append(line, &out);
}

void SetUpLogging(absl::string_view level, absl::string_view format) {
  auto logger = std::make_shared<spdlog::logger>("berth", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  if (format == "json") {
    logger->set_formatter(std::make_unique<JsonLogFormatter>());
  } else {
    logger->set_formatter(std::make_unique<TextLogFormatter>());
  }
  logger->set_level(spdlog::level::from_str(std::string(level)));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

void SetLogLevel(absl::string_view level) { spdlog::set_level(spdlog::level::from_str(std::string(level))); }

}  // namespace berth
