#include "server/process/logging.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
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

TEST(LoggingTest, JsonEscapesControlsOfUnicode) {
  JsonLogFormatter formatter;
  const std::string line = Format(&formatter,
                                  "a\xe2\x80\xae"
                                  "b\xc2\x85");
  EXPECT_NE(line.find("a\\u202eb\\u0085"), std::string::npos) << line;
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

TEST(LoggingTest, ATextMessageHasNoControlsOfUnicode) {
  TextLogFormatter formatter;
  EXPECT_EQ(Format(&formatter,
                   "a\xe2\x80\xa8"
                   "b\xe2\x81\xa6"
                   "c\xc2\x9b"
                   "d\xff"),
            "2026-11-21T04:45:06.000042Z warning a\\u2028b\\u2066c\\u009bd\\xff\n");
}

TEST(LoggingTest, LinesNameTheLoggerUnlessItIsTheUsualOne) {
  spdlog::details::log_msg message(absl::ToChronoTime(absl::FromUnixMicros(0)), {}, "audit", spdlog::level::info, "x");
  spdlog::memory_buf_t text;
  TextLogFormatter().format(message, text);
  EXPECT_EQ(std::string(text.data(), text.size()), "1970-01-01T00:00:00.000000Z info audit: x\n");
  spdlog::memory_buf_t json;
  JsonLogFormatter().format(message, json);
  EXPECT_EQ(nlohmann::json::parse(std::string(json.data(), json.size()))["logger"], "audit");
}

TEST(LoggingTest, TheAuditLogIsAFileOfItsOwn) {
  const std::string path = testing::TempDir() + "/audit.log";
  SetUpLogging("off", "text");
  ASSERT_TRUE(SetUpAuditLog(path, "text").ok());
  spdlog::get("audit")->info("first");
  SetLogLevel("error");  // of the usual log only
  spdlog::get("audit")->info("second");
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_NE(text.str().find(" info audit: first\n"), std::string::npos) << text.str();
  EXPECT_NE(text.str().find(" info audit: second\n"), std::string::npos) << text.str();
  struct stat stat = {};
  ASSERT_EQ(::stat(path.c_str(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 0777, 0600u);
}

TEST(LoggingTest, AnAuditLogThatCannotBeOpenedIsAnError) {
  const absl::Status status = SetUpAuditLog(testing::TempDir() + "/missing/audit.log", "text");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("--audit_log: cannot open "), absl::string_view::npos) << status;
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
