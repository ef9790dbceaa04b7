#include "server/logging.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/time/time.h"

namespace berth {
namespace {

std::string Format(spdlog::formatter* formatter, const std::string& text) {
  spdlog::details::log_msg message(absl::ToChronoTime(absl::FromUnixMicros(1795236306000042)), {}, "berth",
                                   spdlog::level::warn, text);
  message.thread_id = 7;
  spdlog::memory_buf_t out;
  formatter->format(message, out);
  return std::string(out.data(), out.size());
}

TEST(LoggingTest, JsonLinesReadBackWhateverTheyHold) {
  JsonLogFormatter formatter;
  for (const std::string text : {"plain", "quote \" and backslash \\", "two\nlines\r\x01", "umlaut \xc3\xa4"}) {
    const std::string line = Format(&formatter, text);
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    const auto json = nlohmann::json::parse(line);
    EXPECT_EQ(json["message"], text);
    EXPECT_EQ(json["level"], "warning");
    EXPECT_EQ(json["thread"], 7);
    EXPECT_EQ(json["time"], "2026-11-21T04:45:06.000042Z");
  }
}

TEST(LoggingTest, JsonReplacesBytesThatAreNotUtf8) {
  JsonLogFormatter formatter;
  EXPECT_EQ(nlohmann::json::parse(Format(&formatter, "bad \xff byte"))["message"], "bad \xef\xbf\xbd byte");
}

TEST(LoggingTest, ATextMessageIsOneLine) {
  TextLogFormatter formatter;
  EXPECT_EQ(Format(&formatter, "id=a\nfake line\x1b[0m"),
            "2026-11-21T04:45:06.000042Z warning id=a\\x0afake line\\x1b[0m\n");
}

TEST(LoggingTest, SetsTheLevel) {
  SetUpLogging("warning", "json");
  EXPECT_FALSE(spdlog::should_log(spdlog::level::info));
  EXPECT_TRUE(spdlog::should_log(spdlog::level::warn));
  SetUpLogging("off", "text");
  EXPECT_FALSE(spdlog::should_log(spdlog::level::critical));
  SetUpLogging("info", "text");
  EXPECT_TRUE(spdlog::should_log(spdlog::level::info));
}

}  // namespace
}  // namespace berth
