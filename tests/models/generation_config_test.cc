#include "models/generation_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

namespace berth {
namespace {

// A fresh folder with a generation_config.json of `text`, or with none.
std::string Folder(const std::string& name, const char* text) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  if (text != nullptr) std::ofstream(dir / "generation_config.json") << text;
  return dir.string();
}

absl::StatusOr<GenerationDefaults> Read(const char* generation, const char* config = "{}") {
  std::vector<std::string> warnings;
  return ReadGenerationDefaults(Folder("generation", generation), *JsonConfig::Parse(config, "config.json"), &warnings);
}

std::vector<std::string> Warnings(const char* generation) {
  std::vector<std::string> warnings;
  EXPECT_TRUE(
      ReadGenerationDefaults(Folder("warnings", generation), *JsonConfig::Parse("{}", "config.json"), &warnings).ok());
  return warnings;
}

TEST(GenerationDefaults, AbsentFileIsEmpty) {
  EXPECT_EQ(*Read(nullptr), GenerationDefaults());
  EXPECT_EQ(*Read("{}"), GenerationDefaults());
}

TEST(GenerationDefaults, ReadsWhatIsThere) {
  GenerationDefaults expected;
  expected.temperature = 0.6f;
  expected.top_p = 0.95f;
  expected.min_p = 0.1f;
  expected.repetition_penalty = 1.05f;
  expected.top_k = 20;
  expected.do_sample = true;
  expected.eos_token_ids = {151643, 151645};
  expected.bos_token_id = 151643;
  expected.decoder_start_token_id = 151643;
  expected.pad_token_id = 0;
  EXPECT_EQ(*Read(R"({"temperature": 0.6, "top_p": 0.95, "min_p": 0.1, "repetition_penalty": 1.05, "top_k": 20,
                      "do_sample": true, "eos_token_id": [151645, 151643, 151645], "bos_token_id": 151643,
                      "pad_token_id": 0, "transformers_version": "5.17.0"})"),
            expected);
}

TEST(GenerationDefaults, ValuesCountWhateverDoSampleSays) {
  const GenerationDefaults d = *Read(R"({"do_sample": false, "temperature": 0.7, "top_k": -1})");
  EXPECT_EQ(d.temperature, 0.7f);
  EXPECT_EQ(d.top_k, 0);
  EXPECT_FALSE(d.top_p.has_value());
}

TEST(GenerationDefaults, ReadsHowADecoderStartsAndEnds) {
  const GenerationDefaults d =
      *Read(R"({"decoder_start_token_id": 2, "forced_bos_token_id": 0, "forced_eos_token_id": [9, 2, 9]})");
  EXPECT_EQ(d.decoder_start_token_id, 2);
  EXPECT_EQ(d.forced_bos_token_id, 0);
  EXPECT_EQ(d.forced_eos_token_ids, (std::vector<int32_t>{2, 9}));
  EXPECT_EQ(Read("{}", R"({"decoder_start_token_id": 5, "bos_token_id": 1})")->decoder_start_token_id, 5);
  EXPECT_EQ(Read("{}", R"({"bos_token_id": 1})")->decoder_start_token_id, 1);
}

TEST(GenerationDefaults, ForcedTokensOfTheModelsConfigCountWithoutAFileOnly) {
  constexpr char kConfig[] = R"({"forced_bos_token_id": 3, "forced_eos_token_id": 4})";
  EXPECT_EQ(Read(nullptr, kConfig)->forced_bos_token_id, 3);
  EXPECT_EQ(Read(nullptr, kConfig)->forced_eos_token_ids, std::vector<int32_t>{4});
  EXPECT_FALSE(Read("{}", kConfig)->forced_bos_token_id.has_value());
  EXPECT_TRUE(Read("{}", kConfig)->forced_eos_token_ids.empty());
  EXPECT_EQ(Read(nullptr, R"({"force_bos_token_to_be_generated": true, "bos_token_id": 6})")->forced_bos_token_id, 6);
}

TEST(GenerationDefaults, ReadsLengthsBeamsAndRules) {
  const GenerationDefaults d = *Read(
      R"({"max_new_tokens": 9, "max_length": 20, "min_new_tokens": 2, "min_length": 4, "stop_strings": "x",
          "num_beams": 4, "length_penalty": 2, "early_stopping": "never", "no_repeat_ngram_size": 3,
          "encoder_no_repeat_ngram_size": 2, "suppress_tokens": [5, -1], "begin_suppress_tokens": [6],
          "eos_token_id": 7, "bad_words_ids": [[7], [8], [1, 2]],
          "sequence_bias": [[[1, 2], 0.5], [[3], 1], [[3], -2.5]]})");
  EXPECT_EQ(d.max_new_tokens, 9);
  EXPECT_EQ(d.max_length, 20);
  EXPECT_EQ(d.min_new_tokens, 2);
  EXPECT_EQ(d.min_length, 4);
  EXPECT_EQ(d.stop_strings, std::vector<std::string>{"x"});
  EXPECT_EQ(d.num_beams, 4);
  EXPECT_EQ(d.length_penalty, 2);
  EXPECT_EQ(d.early_stopping, 2);
  const TokenRules expected = {.no_repeat_ngram_size = 3,
                               .no_repeat_input_ngram_size = 2,
                               .suppressed = {5, -1},
                               .suppressed_first = {6},
                               .biases = {{{3}, -2.5f}, {{1, 2}, 0.5f}, {{8}, -INFINITY}, {{1, 2}, -INFINITY}}};
  EXPECT_EQ(d.rules, expected) << "the end token is no bad word, and the last bias of a sequence counts";
  EXPECT_FALSE(Read(R"({"num_beams": 1})")->num_beams.has_value());
  EXPECT_EQ(Read(R"({"early_stopping": true})")->early_stopping, 1);
}

TEST(GenerationDefaults, WithoutTheFileEveryFieldIsReadOfTheModelsConfig) {
  constexpr char kConfig[] = R"({"top_k": 5, "text_config": {"top_k": 6, "no_repeat_ngram_size": 3, "top_p": 0.5}})";
  const GenerationDefaults d = *Read(nullptr, kConfig);
  EXPECT_EQ(d.top_k, 5);
  EXPECT_EQ(d.top_p, 0.5f);
  EXPECT_EQ(d.rules.no_repeat_ngram_size, 3);
  EXPECT_EQ(*Read("{}", kConfig), GenerationDefaults());
}

TEST(GenerationDefaults, ForcedTokensAreNotSuppressedOnes) {
  EXPECT_EQ(Read(R"({"forced_eos_token_id": [3, 4], "suppress_tokens": [3]})")->forced_eos_token_ids,
            std::vector<int32_t>{4});
  EXPECT_EQ(Read(R"({"forced_eos_token_id": 3, "suppress_tokens": [3]})").status().message(),
            "generation_config.json: suppress_tokens: [3] has all tokens of forced_eos_token_id");
}

TEST(GenerationDefaults, NamesWhatIsNotDone) {
  EXPECT_TRUE(Warnings(R"({"typical_p": 1.0, "num_beams": 1, "max_time": null, "epsilon_cutoff": 0})").empty());
  const std::vector<std::string> lines =
      Warnings(R"({"typical_p": 0.5, "num_beams": 4, "\u0007odd": 1, "use_cache": false})");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0],
            "generation_config.json: Berth does not do what these fields say: num_beams 4 (a request asks for a beam "
            "search itself), typical_p 0.5 (cuts what is sampled from to typical tokens)");
  EXPECT_EQ(lines[1], "generation_config.json: Berth does not know these fields: \"\\x07odd\"");
}

TEST(GenerationDefaults, RefusesWhatWouldChangeGreedyTokens) {
  EXPECT_TRUE(Read(R"({"guidance_scale": 1.0, "num_beam_groups": 1, "token_healing": false})").ok());
  const absl::Status status = Read(R"({"guidance_scale": 1.5})").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "generation_config.json: guidance_scale: 1.5 guides the output away from a negative prompt, which is not "
            "implemented; remove the field to serve the model without");
  EXPECT_FALSE(Read(nullptr, R"({"guidance_scale": 1.5})").ok()) << "config.json stands for the file";
}

TEST(GenerationDefaults, TokenIdsFallBackToTheModelsConfig) {
  EXPECT_EQ(Read(nullptr, R"({"eos_token_id": 7, "bos_token_id": 1})")->eos_token_ids, std::vector<int32_t>{7});
  EXPECT_EQ(Read("{}", R"({"eos_token_id": [9, 8]})")->eos_token_ids, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(Read(R"({"eos_token_id": 2})", R"({"eos_token_id": 7})")->eos_token_ids, std::vector<int32_t>{2});
  const GenerationDefaults nested = *Read(
      R"({"eos_token_id": null})", R"({"pad_token_id": -1, "text_config": {"eos_token_id": 3, "pad_token_id": 4}})");
  EXPECT_EQ(nested.eos_token_ids, std::vector<int32_t>{3});
  EXPECT_EQ(nested.pad_token_id, 4);
}

TEST(GenerationDefaults, WarnsOfEndTokensOutsideTheVocabulary) {
  EXPECT_TRUE(EndTokenWarnings({}, 100).empty());
  EXPECT_TRUE(EndTokenWarnings({0, 99}, 100).empty());
  EXPECT_EQ(EndTokenWarnings({2, 100}, 100),
            std::vector<std::string>{"eos_token_id of generation_config.json or config.json: 100 is outside the "
                                     "vocabulary of 100 tokens and ignored"});
  EXPECT_EQ(EndTokenWarnings({100, 200}, 100).size(), 3u);
}

TEST(GenerationDefaults, RefusesValuesOutOfRange) {
  const auto message = [](const char* text, const char* config = "{}") {
    const absl::Status status = Read(text, config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(message(R"({"top_p": 1.5})"), "generation_config.json: top_p: 1.5 is outside [0, 1]");
  EXPECT_EQ(message(R"({"top_k": 0.5})"), "generation_config.json: top_k: 0.5 is not an integer");
  EXPECT_EQ(message(R"({"temperature": "hot"})"), "generation_config.json: temperature: \"hot\" is not a number");
  EXPECT_EQ(message(R"({"eos_token_id": 4294967296})"),
            "generation_config.json: eos_token_id: 4294967296 is outside [-1, 2147483647]");
  EXPECT_EQ(message("{}", R"({"eos_token_id": ["x"]})"), "config.json: eos_token_id[0]: \"x\" is not an integer");
  EXPECT_EQ(message(R"({"bad_words_ids": [[1], []]})"), "generation_config.json: bad_words_ids[1]: [] is empty");
  EXPECT_EQ(message(R"({"sequence_bias": [[[1], "x"]]})"),
            "generation_config.json: sequence_bias[0]: \"x\" is not a number");
  EXPECT_EQ(message(R"({"sequence_bias": {"1": 2.0}})"),
            "generation_config.json: sequence_bias: {\"1\":2.0} is not a list");
  EXPECT_EQ(message(R"({"stop_strings": ["x", ""]})"),
            "generation_config.json: stop_strings: [\"x\",\"\"] has a string outside [1, 256] bytes");
  EXPECT_EQ(message(R"({"max_new_tokens": 0})"),
            "generation_config.json: max_new_tokens: 0 is outside [1, 1099511627776]");
  EXPECT_NE(message("{").find("generation_config.json: is not JSON"), std::string::npos);
}

}  // namespace
}  // namespace berth
