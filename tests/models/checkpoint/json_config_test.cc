#include "models/checkpoint/json_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "absl/strings/str_replace.h"
#include "models/checkpoint/config_fields.h"

namespace berth {
namespace {

JsonConfig Config(const std::string& text) {
  absl::StatusOr<JsonConfig> config = JsonConfig::Parse(text, "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

std::string ParseError(const std::string& text) {
  absl::StatusOr<JsonConfig> config = JsonConfig::Parse(text, "config.json");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(config.status().message());
}

// The message of the first error that `read` meets in `text`.
template <typename Read>
std::string ReadError(const std::string& text, Read read) {
  ConfigReader r(Config(text));
  read(r);
  EXPECT_FALSE(r.status().ok()) << text;
  return std::string(r.status().message());
}

TEST(JsonConfig, RefusesWhatIsNoBoundedObject) {
  EXPECT_EQ(ParseError("[1]"), "config.json: must be a JSON object, is [1]");
  EXPECT_NE(ParseError("").find("is not JSON"), std::string::npos);
  EXPECT_NE(ParseError("{\"a\": 1").find("is not JSON"), std::string::npos);
  EXPECT_NE(ParseError("{\"a\": 1e999}").find("is not JSON"), std::string::npos);
  EXPECT_NE(ParseError("{\"a\": \"\xff\"}").find("is not JSON"), std::string::npos);
  EXPECT_NE(ParseError("{\"a\": Infinit}").find("is not JSON"), std::string::npos);
  EXPECT_EQ(ParseError(std::string("{}\0x", 4)), "config.json: is not JSON: has a zero byte, at byte 2");
  EXPECT_EQ(ParseError("\xEF\xBB\xBF{}"), "config.json: begins with a byte order mark; leave it out");
  EXPECT_EQ(ParseError("{\"a\":" + std::string(100000, '[')),
            "config.json: nested deeper than the limit of 32 at byte 36");
  EXPECT_EQ(ParseError(std::string(17 << 20, ' ')),
            "config.json: 17825792 bytes of JSON are over the limit of 16777216");
}

TEST(JsonConfig, ReadsFilesAndNamesThem) {
  const std::string path = testing::TempDir() + "/config.json";
  std::ofstream(path) << R"({"n": 0})";
  absl::StatusOr<JsonConfig> config = JsonConfig::Create(path);
  ASSERT_TRUE(config.ok()) << config.status();
  ConfigReader r(*config);
  r.Int("n", 1, 2);
  EXPECT_EQ(r.status().message(), "config.json: n: 0 is outside [1, 2]");
  absl::StatusOr<JsonConfig> absent = JsonConfig::Create(path + ".absent");
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(JsonConfig::Create(testing::TempDir()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ConfigReader, ReadsEachType) {
  ConfigReader r(Config(R"({"i": 7, "d": 1e-5, "whole": 10000, "b": true, "s": "silu", "null": null,
                            "ints": [1, 2], "doubles": [0, 1.5], "strings": ["a", "b"], "o": {"i": 3}, "automatic": "auto"})"));
  EXPECT_EQ(r.Int("i", 7, 7), 7);
  EXPECT_EQ(r.IntOr("absent", -5, 0, 9), -5);
  EXPECT_EQ(r.IntOr("null", 4, 0, 9), 4);
  EXPECT_EQ(r.IntOrAuto("i", 2, 0, 9), 7);
  EXPECT_EQ(r.IntOrAuto("automatic", 2, 0, 9), 2);
  EXPECT_EQ(r.IntOrAuto("absent", 2, 0, 9), 2);
  EXPECT_EQ(r.Double("d"), 1e-5);
  EXPECT_EQ(r.Double("whole"), 10000);
  EXPECT_EQ(r.DoubleOr("absent", 0.5), 0.5);
  EXPECT_TRUE(r.BoolOr("b", false));
  EXPECT_TRUE(r.BoolOr("absent", true));
  EXPECT_EQ(r.String("s"), "silu");
  EXPECT_EQ(r.StringOr("absent", "gelu"), "gelu");
  EXPECT_EQ(r.IntList("ints", 0, 9), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(r.IntListOr("absent", {3}, 0, 9), std::vector<int64_t>{3});
  EXPECT_EQ(r.DoubleListOr("doubles", {}), (std::vector<double>{0, 1.5}));
  EXPECT_EQ(r.StringListOr("strings", {}), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(r.StringListOr("absent", {"c"}), std::vector<std::string>{"c"});
  EXPECT_EQ(r.IntOrIntList("i", 0, 9), std::vector<int64_t>{7});
  EXPECT_EQ(r.IntOrIntList("ints", 0, 9), (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(r.IntOrIntList("absent", 0, 9).empty());
  EXPECT_EQ(r.Object("o").Int("i", 0, 9), 3);
  EXPECT_EQ(r.ObjectOr("absent").IntOr("i", 8, 0, 9), 8);
  EXPECT_TRUE(r.Has("i"));
  EXPECT_FALSE(r.Has("null"));
  EXPECT_FALSE(r.Has("absent"));
  EXPECT_TRUE(r.IsNull("null"));
  EXPECT_FALSE(r.IsNull("absent"));
  EXPECT_FALSE(r.IsNull("i"));
  EXPECT_TRUE(r.status().ok()) << r.status();
}

TEST(ConfigReader, TakesAFieldFromTheOuterObject) {
  ConfigReader r(Config(R"({"tied": 3, "text": {"tied": true, "bias": true, "n": 1}})"));
  ConfigReader text = r.Object("text");
  text.TakeFrom(r, "n");
  EXPECT_FALSE(text.Has("n"));
  EXPECT_TRUE(text.BoolOr("bias", false));
  text.TakeFrom(r, "tied");
  text.BoolOr("tied", false);
  EXPECT_EQ(r.status().message(), "config.json: tied: 3 is not true or false");
}

TEST(ConfigReader, ErrorsNameFileKeyValueAndLimit) {
  const std::string text = R"({"n": -3, "f": 1.5, "s": "x", "big": 18446744073709551615, "l": [1, 99], "o": {"n": 2}})";
  const auto error = [&](auto read) { return ReadError(text, read); };
  EXPECT_EQ(error([](ConfigReader& r) { r.Int("n", 1, 1024); }), "config.json: n: -3 is outside [1, 1024]");
  EXPECT_EQ(error([](ConfigReader& r) { r.IntOr("n", 5, 1, 1024); }), "config.json: n: -3 is outside [1, 1024]");
  EXPECT_EQ(error([](ConfigReader& r) { r.Int("big", 0, 10); }),
            "config.json: big: 18446744073709551615 is outside [0, 10]");
  EXPECT_EQ(error([](ConfigReader& r) { r.Int("absent", 0, 10); }), "config.json: absent: is required, is absent");
  EXPECT_EQ(error([](ConfigReader& r) { r.Int("f", 0, 10); }), "config.json: f: 1.5 is not an integer");
  EXPECT_EQ(error([](ConfigReader& r) { r.Double("s"); }), "config.json: s: \"x\" is not a number");
  EXPECT_EQ(error([](ConfigReader& r) { r.Double("f", 0, 1); }), "config.json: f: 1.5 is outside [0, 1]");
  EXPECT_EQ(error([](ConfigReader& r) { r.BoolOr("n", false); }), "config.json: n: -3 is not true or false");
  EXPECT_EQ(error([](ConfigReader& r) { r.String("n"); }), "config.json: n: -3 is not a string");
  EXPECT_EQ(error([](ConfigReader& r) { r.IntList("l", 0, 9); }), "config.json: l[1]: 99 is outside [0, 9]");
  EXPECT_EQ(error([](ConfigReader& r) { r.IntList("n", 0, 9); }), "config.json: n: -3 is not a list");
  EXPECT_EQ(error([](ConfigReader& r) { r.StringListOr("l", {}); }), "config.json: l[0]: 1 is not a string");
  EXPECT_EQ(error([](ConfigReader& r) { r.Object("n"); }), "config.json: n: -3 is not an object");
  EXPECT_EQ(error([](ConfigReader& r) { r.Object("o").Int("n", 3, 9); }), "config.json: o.n: 2 is outside [3, 9]");
  EXPECT_EQ(error([](ConfigReader& r) { r.Require(false, "f", "must be whole"); }),
            "config.json: f: 1.5 must be whole");
}

TEST(ConfigReader, TheFirstErrorSticksAndValuesStayInRange) {
  ConfigReader r(Config(R"({"a": -1, "b": -2})"));
  EXPECT_EQ(r.Int("a", 1, 8), 1);
  EXPECT_EQ(r.Int("b", 2, 8), 2);
  EXPECT_EQ(r.Int("absent", 3, 8), 3);
  EXPECT_EQ(r.Double("a", 0.5, 1), 0.5);
  EXPECT_EQ(r.Object("absent").Int("n", 4, 8), 4);
  EXPECT_EQ(r.status().message(), "config.json: a: -1 is outside [1, 8]");
}

TEST(ConfigReader, RefusesValuesThatAreNotImplemented) {
  ConfigReader ok(Config(R"({"act": "silu", "bias": false, "n": 1, "f": 0.0, "null": null})"));
  ok.RefuseUnless("act", "silu", "swish");
  ok.RefuseUnless("bias", false);
  ok.RefuseUnless("n", 1);
  ok.RefuseUnless("f", 0);
  ok.RefuseUnless("null", true);
  ok.RefuseUnless("absent", "x");
  EXPECT_TRUE(ok.status().ok()) << ok.status();

  ConfigReader r(Config(R"({"act": "gelu_new"})"));
  r.RefuseUnless("act", "silu", "swish");
  EXPECT_EQ(r.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(r.status().message(),
            "config.json: act: \"gelu_new\" is not implemented; implemented: \"silu\", \"swish\"");
  EXPECT_EQ(ReadError(R"({"b": true})", [](ConfigReader& r) { r.RefuseUnless("b", false); }),
            "config.json: b: true is not implemented; implemented: false");
  EXPECT_EQ(ReadError(R"({"b": 1})", [](ConfigReader& r) { r.RefuseUnless("b", true); }),
            "config.json: b: 1 is not implemented; implemented: true");
  EXPECT_EQ(ReadError(R"({"g": 2})", [](ConfigReader& r) { r.RefuseUnless("g", 1, 4.5); }),
            "config.json: g: 2 is not implemented; implemented: 1, 4.5");
}

TEST(ConfigReader, InfinityInBothSpellings) {
  for (const char* text : {R"({"l": [0.0, Infinity], "n": -Infinity, "s": "Infinity, \" NaN"})",
                           R"({"l": [0.0, {"__float__": "Infinity"}], "n": {"__float__": "-Infinity"},
                               "s": "Infinity, \" NaN"})"}) {
    ConfigReader r(Config(text));
    EXPECT_EQ(r.DoubleListOr("l", {}), (std::vector<double>{0, INFINITY}));
    EXPECT_EQ(r.Double("n"), -INFINITY);
    EXPECT_EQ(r.String("s"), "Infinity, \" NaN");
    EXPECT_TRUE(r.status().ok()) << r.status();
  }
  EXPECT_EQ(ReadError(R"({"x": NaN})", [](ConfigReader& r) { r.Double("x"); }),
            "config.json: x: {\"__float__\":\"NaN\"} is not a number");
  EXPECT_EQ(ReadError(R"({"x": Infinity})", [](ConfigReader& r) { r.Double("x", 0, 10); }),
            "config.json: x: {\"__float__\":\"Infinity\"} is outside [0, 10]");
}

TEST(ReadRope, BothSpellingsMeanTheSame) {
  const RopeFields fields = {.types = {"default", "llama3", "linear"}};
  for (const char* text : {
           R"({"rope_theta": 500000.0, "max_position_embeddings": 131072,
               "rope_scaling": {"type": "llama3", "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                                "original_max_position_embeddings": 8192}})",
           R"({"max_position_embeddings": 131072,
               "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0,
                                   "low_freq_factor": 1.0, "original_max_position_embeddings": 8192}})"}) {
    ConfigReader r(Config(text));
    const RopeConfig rope = ReadRope(r, fields);
    EXPECT_TRUE(r.status().ok()) << r.status();
    RopeConfig expected;
    expected.theta = 500000;
    expected.type = "llama3";
    expected.factor = 8;
    expected.max_positions = 131072;
    expected.original_max_positions = 8192;
    EXPECT_EQ(rope, expected);
  }
}

TEST(ReadRope, DefaultsAndRefusals) {
  ConfigReader empty(Config("{}"));
  EXPECT_EQ(ReadRope(empty), RopeConfig());
  EXPECT_EQ(ReadRope(empty, {.default_theta = 1e6}).theta, 1e6);
  EXPECT_TRUE(empty.status().ok());
  EXPECT_EQ(ReadError(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4}})", [](ConfigReader& r) { ReadRope(r); }),
            "config.json: rope_scaling.rope_type: \"yarn\" is not implemented; implemented: \"default\"");
}

TEST(ReadRope, APartRotatesWhereTransformersHasIt) {
  ConfigReader outer(Config(R"({"partial_rotary_factor": 0.25, "rope_parameters": {"rope_theta": 1e4}})"));
  EXPECT_EQ(ReadRope(outer).partial_rotary_factor, 1);  // as of llama
  EXPECT_EQ(ReadRope(outer, {.rotates_partly = true}).partial_rotary_factor, 0.25);
  const RopeFields bamba = {.default_partial_rotary_factor = 0.5, .rotates_partly = true, .reads_outer_factor = false};
  EXPECT_EQ(ReadRope(outer, bamba).partial_rotary_factor, 0.5);
  ConfigReader inner(Config(R"({"rope_parameters": {"rope_type": "linear", "factor": 2,
                                                    "partial_rotary_factor": 0.25}})"));
  EXPECT_EQ(ReadRope(inner, {.types = {"linear"}}).partial_rotary_factor, 0.25);
  EXPECT_EQ(ReadRope(inner, {.reads_outer_factor = false, .types = {"linear"}}).partial_rotary_factor, 0.25);
}

TEST(ReadRope, Phi3sTrainedLengthIsTheOuterOneOrItsOwnDefault) {
  const RopeFields phi3 = {.default_trained_length = 4096, .types = {"longrope"}};
  const char* const file = R"({"max_position_embeddings": 131072%s, "rope_scaling":
      {"rope_type": "longrope", "original_max_position_embeddings": 8192}})";
  for (const auto& [field, length] :
       {std::pair("", 4096), std::pair(R"(, "original_max_position_embeddings": 2048)", 2048)}) {
    ConfigReader r(Config(absl::StrReplaceAll(file, {{"%s", field}})));
    const RopeConfig rope = ReadRope(r, phi3);
    EXPECT_EQ(rope.original_max_positions, length);
    EXPECT_EQ(rope.factor, 131072 / length);
  }
}

TEST(ReadRope, ParametersByLayerType) {
  const RopeFields full = {.default_theta = 1e6, .layer_type = "full_attention", .types = {"default", "linear"}};
  const RopeFields sliding = {.default_theta = 1e4,
                              .layer_type = "sliding_attention",
                              .theta_key = "rope_local_base_freq",
                              .use_rope_scaling = false};
  for (const char* text : {R"({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0,
                                                                       "rope_theta": 2e6},
                                                   "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}})",
                           R"({"rope_theta": 2e6, "rope_local_base_freq": 2e4,
                               "rope_scaling": {"rope_type": "linear", "factor": 8.0}})"}) {
    ConfigReader r(Config(text));
    EXPECT_EQ(ReadRope(r, full).theta, 2e6);
    EXPECT_EQ(ReadRope(r, full).type, "linear");
    EXPECT_EQ(ReadRope(r, full).factor, 8);
    EXPECT_EQ(ReadRope(r, sliding).theta, 2e4);
    EXPECT_EQ(ReadRope(r, sliding).type, "default");
    EXPECT_TRUE(r.status().ok()) << r.status();
  }
}

TEST(ReadDTypeName, BothSpellings) {
  for (auto [text, expected] : {std::pair(R"({"dtype": "bfloat16", "torch_dtype": "float32"})", "bfloat16"),
                                std::pair(R"({"torch_dtype": "torch.float16"})", "float16"), std::pair("{}", "")}) {
    ConfigReader r(Config(text));
    EXPECT_EQ(ReadDTypeName(r), expected);
  }
}

}  // namespace
}  // namespace berth
