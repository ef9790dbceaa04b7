#include "server/metrics/load_table.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;

// A load in which all numbers differ, and none is 0.
class DistinctLoad {
 public:
  DistinctLoad() {
    load_.occupancy.pools.resize(1);
    for (size_t i = 0; i < num_words(); ++i) SetWord(i, 1000 + static_cast<int64_t>(i));
  }
  // EngineLoad's numbers lie before its occupancy, and nothing else does.
  static size_t num_words() { return offsetof(EngineLoad, occupancy) / sizeof(int64_t); }
  void SetWord(size_t i, int64_t value) {
    static_assert(offsetof(EngineLoad, occupancy) % sizeof(int64_t) == 0);
    std::memcpy(reinterpret_cast<char*>(&load_) + i * sizeof(int64_t), &value, sizeof(int64_t));
  }
  EngineLoad& load() { return load_; }

 private:
  EngineLoad load_;
};

// The values of all figures that are `exported`, in order.
template <typename Figures, typename Source, typename Exported>
void AppendValues(const Figures& figures, const Source& source, Exported exported, std::vector<int64_t>* values) {
  for (const auto& figure : figures) {
    if (exported(figure)) values->push_back(figure.value(source));
  }
}

template <typename Exported>
std::vector<int64_t> LoadValues(const EngineLoad& load, Exported exported, const GrammarLoad& grammars = {}) {
  const SessionLoad sessions;
  const TextLoad texts;
  const DeliveryLoad delivery;
  const ServerLoad source = {
      .engine = load, .sessions = sessions, .grammars = grammars, .texts = texts, .delivery = delivery};
  std::vector<int64_t> values;
  AppendValues(EngineFigures(), source, exported, &values);
  AppendValues(TierFigures(), source, exported, &values);
  AppendValues(GrammarFigures(), source, exported, &values);
  return values;
}

const auto kInApi = [](const auto& figure) { return figure.field != nullptr; };
const auto kInScrape = [](const auto& figure) { return !figure.metric.empty(); };

TEST(LoadTableTest, EveryCountOfTheSchedulerIsInTheApiAndInTheScrape) {
  static_assert(std::is_trivially_copyable_v<Scheduler::Counts> && offsetof(EngineLoad, counts) == 0);
  for (size_t i = 0; i < sizeof(Scheduler::Counts) / sizeof(int64_t); ++i) {
    DistinctLoad before;
    DistinctLoad after;
    after.SetWord(i, int64_t{1} << 40);
    EXPECT_NE(LoadValues(before.load(), kInApi), LoadValues(after.load(), kInApi)) << "number " << i << " of Counts";
    EXPECT_NE(LoadValues(before.load(), kInScrape), LoadValues(after.load(), kInScrape)) << "number " << i;
  }
}

TEST(LoadTableTest, EveryNumberOfTheEngineIsInTheScrape) {
  for (size_t i = 0; i < DistinctLoad::num_words(); ++i) {
    DistinctLoad before;
    DistinctLoad after;
    after.SetWord(i, int64_t{1} << 40);
    EXPECT_NE(LoadValues(before.load(), kInScrape), LoadValues(after.load(), kInScrape))
        << "number " << i << " of EngineLoad";
  }
}

TEST(LoadTableTest, EveryNumberOfTheGrammarsIsInTheApiAndInTheScrape) {
  DistinctLoad distinct;
  for (size_t at = 0; at < sizeof(GrammarLoad); at += sizeof(int64_t)) {
    GrammarLoad grammars;
    const int64_t value = 7;
    std::memcpy(reinterpret_cast<char*>(&grammars) + at, &value, sizeof(value));
    EXPECT_NE(LoadValues(distinct.load(), kInApi), LoadValues(distinct.load(), kInApi, grammars)) << "byte " << at;
    EXPECT_NE(LoadValues(distinct.load(), kInScrape), LoadValues(distinct.load(), kInScrape, grammars)) << at;
  }
}

TEST(LoadTableTest, EveryNumberOfAPoolIsInTheApi) {
  const auto values = [](const PoolOccupancy& pool) {
    std::vector<int64_t> values;
    AppendValues(PoolFigures(), pool, kInApi, &values);
    return values;
  };
  static_assert(std::is_trivially_copyable_v<PoolOccupancy> && offsetof(PoolOccupancy, unit_bytes) == sizeof(int64_t));
  for (size_t at = offsetof(PoolOccupancy, unit_bytes); at < sizeof(PoolOccupancy); at += sizeof(int64_t)) {
    PoolOccupancy pool = {.unit_bytes = 16};
    const std::vector<int64_t> before = values(pool);
    const int64_t value = 7;
    std::memcpy(reinterpret_cast<char*>(&pool) + at, &value, sizeof(value));
    EXPECT_NE(before, values(pool)) << "byte " << at;
  }
}

// Names of integer fields at any depth that are 0.
void ListZeros(const Message& message, const std::string& prefix, std::vector<std::string>* zeros) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const std::string name = absl::StrCat(prefix, field->name());
    if (field->is_repeated()) {
      ASSERT_GT(reflection.FieldSize(message, field), 0) << name;
      ListZeros(reflection.GetRepeatedMessage(message, field, 0), name + ".", zeros);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      ListZeros(reflection.GetMessage(message, field), name + ".", zeros);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64 && reflection.GetInt64(message, field) == 0) {
      zeros->push_back(name);
    }
  }
}

TEST(LoadTableTest, EveryFieldOfTheApiIsSet) {
  DistinctLoad distinct;
  Occupancy& arena = distinct.load().occupancy;
  arena = {.arena_bytes = 1,
           .unassigned_free_bytes = 2,
           .unassigned_overhead_bytes = 3,
           .largest_hole_bytes = 4,
           .num_leases = 5,
           .largest_admissible_tokens = 6};
  arena.pools = {{.unit_bytes = 16,
                  .live_units = 1,
                  .shared_units = 2,
                  .cached_units = 3,
                  .free_units = 4,
                  .live_tokens = 5,
                  .cached_tokens = 6,
                  .evicted_units = 7,
                  .compacted_bytes = 8}};
  v1::GetLoadResponse response;
  const GrammarLoad grammars = {
      .compiled = 1, .failed = 2, .cancelled = 3, .hits = 4, .waiting = 5, .cache_bytes = 6, .cache_limit_bytes = 7};
  FillLoad(distinct.load(), grammars, {.bytes = 1, .limit_bytes = 2, .ended = 3}, &response);
  std::vector<std::string> zeros;
  ListZeros(response, "", &zeros);
  EXPECT_THAT(zeros, ::testing::IsEmpty());
  EXPECT_EQ(response.cache().pools(0).kind(), "static");
  EXPECT_EQ(response.cache().pools(0).cached_bytes(), 48);
}

template <typename Figures>
void CheckFamilies(const Figures& figures, std::map<std::string, int>* runs) {
  absl::string_view current;
  for (const auto& figure : figures) {
    EXPECT_TRUE(figure.field != nullptr || !figure.metric.empty()) << "a figure is exported nowhere";
    if (figure.metric.empty()) continue;
    const bool continues = figure.metric == current;
    if (!continues) ++(*runs)[std::string(figure.metric)];
    current = figure.metric;
    EXPECT_TRUE(!continues || (figure.help.empty() && figure.alias.empty())) << figure.metric;
  }
}

TEST(LoadTableTest, FiguresOfAFamilyAreNeighboursAndTheFirstOneHasTheHelp) {
  std::map<std::string, int> runs;
  CheckFamilies(EngineFigures(), &runs);
  CheckFamilies(TierFigures(), &runs);
  CheckFamilies(GrammarFigures(), &runs);
  CheckFamilies(PoolFigures(), &runs);
  CheckFamilies(ArenaFigures(), &runs);
  for (const auto& [name, count] : runs) {
    EXPECT_EQ(count, name == "berth_cache_bytes" ? 2 : 1) << name;  // of pools, then of the rest of the arena
    EXPECT_TRUE(absl::StartsWith(name, "berth_") || absl::StartsWith(name, "vllm:")) << name;
  }
}

}  // namespace
}  // namespace berth
