#include "base/bounded_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace berth {
namespace {

// The error's message; empty: there is none.
std::string Error(const std::string& text, const JsonLimits& limits = {}) {
  nlohmann::json result;
  return std::string(ParseJson(text, "x", limits, &result).message());
}

TEST(BoundedJsonTest, TakesAnyValueUpToTheLimits) {
  for (const char* text : {"{}", "[[1]]", "null", " \"a\" ", "1.5e3"}) EXPECT_EQ(Error(text), "") << text;
  EXPECT_EQ(Error("[[1]]", {.max_depth = 2}), "");
  EXPECT_EQ(Error("[[[", {.max_depth = 2}), "x: nested deeper than the limit of 2 at byte 2");
  EXPECT_EQ(Error("[\"[[\\\"[\"]", {.max_depth = 1}), "");  // brackets of a string
  EXPECT_EQ(Error("[10]", {.max_bytes = 4}), "");
  EXPECT_EQ(Error("[100]", {.max_bytes = 4}), "x: 5 bytes of JSON are over the limit of 4");
  const char* const text = R"([{"a":1,"b":{"c":1,"d":2,"e":3}}])";
  EXPECT_EQ(Error(text), "");
  EXPECT_EQ(Error(text, {.max_keys = 3}), "");
  EXPECT_EQ(Error(text, {.max_keys = 2}), "x: an object of 3 keys is over the limit of 2");
}

TEST(BoundedJsonTest, SaysInWordsWhatIsNoJson) {
  EXPECT_EQ(Error("{\"a\" 1}").find("x: is not JSON: parse error at line 1, column 6: "), 0u) << Error("{\"a\" 1}");
  EXPECT_EQ(Error(std::string("1\0", 2)), "x: is not JSON: has a zero byte, at byte 1");
  EXPECT_EQ(Error("\xEF\xBB\xBF{}"), "x: begins with a byte order mark; leave it out");
}

TEST(BoundedJsonTest, PythonsFloatsAndDuplicatesAreReadAsAsked) {
  const char* const floats = R"({"a": -Infinity, "b": [NaN, -1], "c": "NaN"})";
  EXPECT_NE(Error(floats), "");
  nlohmann::json result;
  ASSERT_TRUE(ParseJson(floats, "x", {.python_floats = true}, &result).ok());
  EXPECT_EQ(result.dump(), R"({"a":{"__float__":"-Infinity"},"b":[{"__float__":"NaN"},-1],"c":"NaN"})");
  const char* const twice = R"({"a":{"b":1},"c":{"b":2,"b":3}})";
  ASSERT_TRUE(ParseJson(twice, "x", {}, &result).ok());
  EXPECT_EQ(result["c"]["b"], 3);
  EXPECT_EQ(Error(twice, {.refuse_duplicate_keys = true}), "x: key \"b\" occurs twice");
}

}  // namespace
}  // namespace berth
