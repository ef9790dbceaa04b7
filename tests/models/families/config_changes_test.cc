// Each family reads a config.json that was changed at random: it makes a model with a cache plan of it, or says what is
// wrong. It never throws, and needs no memory for the weights, which are absent.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "cache/spec.h"
#include "models/checkpoint/json_config.h"
#include "models/checkpoint/weight_loader.h"
#include "models/families/family.h"
#include "models/ops/matmul/packed_weights.h"
#include "models/step/execution.h"
#include "tests/models/checkpoint_writer.h"

namespace berth {
namespace {

using nlohmann::json;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The names of fields and their values, as far as they are words in the families' sources.
std::vector<std::string> WordsOfSources() {
  std::set<std::string> words = {"true", "text_config", "num_hidden_layers", "rope_theta", "factor", "rope_type"};
  const std::regex word("\"([A-Za-z_][A-Za-z_0-9-]*)\"");
  for (const auto& entry : std::filesystem::directory_iterator("models/families")) {
    const std::string text = ReadFile(entry.path());
    for (std::sregex_iterator i(text.begin(), text.end(), word), end; i != end; ++i) words.insert((*i)[1]);
  }
  return {words.begin(), words.end()};
}

class Changer {
 public:
  Changer(uint32_t seed, std::vector<std::string> words) : random_(seed), words_(std::move(words)) {}

  // Puts in, changes or takes out a few fields.
  void Change(json* object) {
    for (int64_t count = Below(3); count >= 0; --count) ChangeOne(object);
  }

 private:
  int64_t Below(int64_t limit) { return std::uniform_int_distribution<int64_t>(0, limit - 1)(random_); }
  const std::string& Word() { return words_[Below(static_cast<int64_t>(words_.size()))]; }

  void ChangeOne(json* object) {
    if (object->empty() || Below(4) == 0) {
      (*object)[Word()] = Value(/*depth=*/0);
      return;
    }
    auto field = object->begin();
    std::advance(field, Below(static_cast<int64_t>(object->size())));
    if (field->is_object() && Below(2) == 0) {
      ChangeOne(&*field);
    } else if (Below(6) == 0) {
      object->erase(field);
    } else if (field->is_number_integer() && Below(2) == 0) {
      *field = field->get<int64_t>() + Below(5) - 2;
    } else {
      *field = Value(/*depth=*/0);
    }
  }

  json Value(int depth) {
    static constexpr int64_t kIntegers[] = {-1, 0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 64, 1000, 1 << 14, 1 << 20, 1 << 24};
    switch (Below(depth == 0 ? 9 : 6)) {
      case 0:
        return Word();
      case 1:
        return Below(2) == 0;
      case 2:
        return nullptr;
      case 3:
        return static_cast<double>(Below(300) - 50) / 100;
      case 4:
        return Below(20) == 0 ? json(int64_t{1} << Below(63)) : json(1e-9);
      case 5:
      case 6:
        return kIntegers[Below(std::size(kIntegers))];
      case 7: {
        json list = json::array();
        const int64_t length = Below(6);
        const json same = Value(depth + 1);
        for (int64_t i = 0; i < length; ++i) list.push_back(Below(3) == 0 ? Value(depth + 1) : same);
        return list;
      }
      default: {
        json object = json::object();
        for (int64_t i = Below(4); i >= 0; --i) object[Word()] = Value(depth + 1);
        return object;
      }
    }
  }

  std::mt19937 random_;
  std::vector<std::string> words_;
};

// Each layer, expert and head takes time to build: fewer of them do as well.
void LimitCounts(json* value, const std::string& key = "") {
  if (value->is_object()) {
    for (auto& [name, field] : value->items()) LimitCounts(&field, name);
  } else if (value->is_number_integer() && value->get<int64_t>() > 64) {
    for (const char* counted : {"layers", "experts", "heads"}) {
      if (absl::StrContains(key, counted)) *value = value->get<int64_t>() % 64 + 1;
    }
  }
}

class ConfigChangesTest : public testing::Test {
 protected:
  ConfigChangesTest() {
    const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "empty";
    CheckpointWriter().Write(dir);
    auto checkpoint = Checkpoint::Open(dir.string());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (checkpoint.ok()) empty_ = *std::move(checkpoint);
  }

  // Builds the family's model. Returns the error of its configuration.
  absl::Status Build(const Family& family, const json& config) {
    const auto parsed = JsonConfig::Parse(config.dump(), "config.json");
    if (!parsed.ok()) return parsed.status();
    ConfigReader reader(*parsed);
    Execution execution;
    PackedWeights packed(&execution);
    WeightLoader weights(empty_, {.dtype = DType::kBFloat16, .device = at::kMeta, .packed = &packed});
    try {
      const std::unique_ptr<Model> model = family.build(reader, weights);
      if (reader.status().ok()) CheckModel(model.get());
    } catch (const c10::Error& error) {
      ADD_FAILURE() << error.what_without_backtrace();
    }
    return reader.status();
  }

  std::vector<LayerCacheSpec> specs_;  // of the model that was built last

 private:
  void CheckModel(const Model* model) {
    ASSERT_NE(model, nullptr);
    EXPECT_GT(model->vocab_size(), 0);
    EXPECT_GT(model->hidden_size(), 0);
    specs_ = model->cache_specs();
    const auto plan = BuildCachePlan(specs_, /*block_tokens=*/16);
    if (!plan.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(plan.status())) << plan.status();
      return;
    }
    EXPECT_EQ(plan->layers.size(), specs_.size());
    for (const CacheGroup& group : plan->groups) EXPECT_GT(group.unit_bytes, 0);
  }

  std::shared_ptr<const Checkpoint> empty_;
};

// transformers' defaults for these fields apply where they are absent, not where they are null.
TEST_F(ConfigChangesTest, AWindowThatIsNullIsNone) {
  const json configs = json::parse(ReadFile("tests/models/families/configs.json"));
  for (const auto& [type, key] :
       {std::pair("qwen2", "sliding_window"), std::pair("qwen3", "sliding_window"),
        std::pair("qwen3_moe", "sliding_window"), std::pair("llama4_text", "attention_chunk_size")}) {
    json config = configs.at(type);
    for (const char* other : {"layer_types", key}) config.erase(other);
    config["use_sliding_window"] = true;
    config["max_window_layers"] = 0;
    for (const bool is_null : {false, true}) {
      if (is_null) config[key] = nullptr;
      const auto family = FindFamily(type);
      ASSERT_TRUE(family.ok());
      ASSERT_TRUE(Build(**family, config).ok()) << type;
      int num_windows = 0;
      for (const LayerCacheSpec& spec : specs_) num_windows += spec.kv.has_value() && spec.kv->Reach() > 0 ? 1 : 0;
      EXPECT_EQ(num_windows == 0, is_null) << type;
    }
  }
}

TEST_F(ConfigChangesTest, MakeAModelOrAreRefusedByName) {
  json configs = json::parse(ReadFile("tests/models/families/configs.json"));
  for (const char* demo : {"falcon_h1-demo", "gemma3-demo"}) {
    const json config = json::parse(ReadFile(std::filesystem::path("models/demo") / demo / "config.json"));
    configs[config.at("model_type").get<std::string>()].update(config);
  }
  Changer changer(/*seed=*/1, WordsOfSources());
  const int changes = std::getenv("BERTH_FULL") != nullptr ? 5000 : 100;
  for (const auto& [type, config] : configs.items()) {
    const auto family = FindFamily(type);
    ASSERT_TRUE(family.ok()) << family.status();
    const absl::Status unchanged = Build(**family, config);
    EXPECT_TRUE(unchanged.ok()) << type << ": " << unchanged;
    int refused = 0;
    for (int i = 0; i < changes; ++i) {
      json changed = config;
      changer.Change(&changed);
      LimitCounts(&changed);
      SCOPED_TRACE(type + ": " + changed.dump());
      const absl::Status status = Build(**family, changed);
      if (status.ok()) continue;
      ++refused;
      EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status)) << status;
      EXPECT_TRUE(absl::StartsWith(status.message(), "config.json: ")) << status;
    }
    EXPECT_GT(refused, 0) << type;
    EXPECT_LT(refused, changes) << type;
  }
}

}  // namespace
}  // namespace berth
