#include "models/generation_config.h"

#include <gtest/gtest.h>

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
  return ReadGenerationDefaults(Folder("generation", generation), *JsonConfig::Parse(config, "config.json"));
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
  EXPECT_NE(message("{").find("generation_config.json: is not JSON"), std::string::npos);
}

}  // namespace
}  // namespace berth
