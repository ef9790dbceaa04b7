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
    load_.engine.occupancy.pools.resize(1);
    for (size_t i = 0; i < num_words(); ++i) SetWord(i, 1000 + static_cast<int64_t>(i));
  }
  // EngineLoad's numbers lie before its occupancy, and nothing else does.
  static size_t num_words() { return offsetof(EngineLoad, occupancy) / sizeof(int64_t); }
  void SetWord(size_t i, int64_t value) {
    static_assert(offsetof(EngineLoad, occupancy) % sizeof(int64_t) == 0);
    std::memcpy(reinterpret_cast<char*>(&load_.engine) + i * sizeof(int64_t), &value, sizeof(int64_t));
  }
  ServerLoad& load() { return load_; }

 private:
  ServerLoad load_;
};

// The values of all figures that are `exported`, in order.
template <typename Figures, typename Source, typename Exported>
void AppendValues(const Figures& figures, const Source& source, Exported exported, std::vector<int64_t>* values) {
  for (const auto& figure : figures) {
    if (exported(figure)) values->push_back(figure.value(source));
  }
}

template <typename Exported>
std::vector<int64_t> LoadValues(const ServerLoad& load, Exported exported) {
  std::vector<int64_t> values;
  AppendValues(EngineFigures(), load, exported, &values);
  AppendValues(TierFigures(), load, exported, &values);
  AppendValues(GrammarFigures(), load, exported, &values);
  AppendValues(TextFigures(), load, exported, &values);
  AppendValues(DeliveryFigures(), load, exported, &values);
  return values;
}

const auto kInApi = [](const auto& figure) { return figure.field != nullptr; };
const auto kInScrape = [](const auto& figure) { return !figure.metric.empty(); };

TEST(LoadTableTest, EveryCountOfTheSchedulerIsInTheApiAndInTheScrape) {
  static_assert(std::is_trivially_copyable_v<SchedulerCounts> && offsetof(EngineLoad, counts) == 0);
  for (size_t i = 0; i < sizeof(SchedulerCounts) / sizeof(int64_t); ++i) {
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

// Each of the numbers that a part of the load consists of.
template <typename Part>
void ExpectAllExported(Part ServerLoad::*part) {
  static_assert(std::is_trivially_copyable_v<Part> && sizeof(Part) % sizeof(int64_t) == 0);
  const ServerLoad before;
  for (size_t at = 0; at < sizeof(Part); at += sizeof(int64_t)) {
    ServerLoad after;
    const int64_t value = 7;
    std::memcpy(reinterpret_cast<char*>(&(after.*part)) + at, &value, sizeof(value));
    EXPECT_NE(LoadValues(before, kInApi), LoadValues(after, kInApi)) << "byte " << at;
    EXPECT_NE(LoadValues(before, kInScrape), LoadValues(after, kInScrape)) << "byte " << at;
  }
}

TEST(LoadTableTest, EveryNumberOfTheOtherPartsIsInTheApiAndInTheScrape) {
  ExpectAllExported(&ServerLoad::sessions);
  ExpectAllExported(&ServerLoad::grammars);
  ExpectAllExported(&ServerLoad::texts);
  ExpectAllExported(&ServerLoad::delivery);
  ExpectAllExported(&ServerLoad::connections);
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

// Names of number fields at any depth that are 0.
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
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE && reflection.GetDouble(message, field) == 0) {
      zeros->push_back(name);
    }
  }
}

TEST(LoadTableTest, EveryFieldOfTheApiIsSet) {
  DistinctLoad distinct;
  ServerLoad& load = distinct.load();
  Occupancy& arena = load.engine.occupancy;
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
  load.sessions = {.used_bytes = 1, .limit_bytes = 2, .num_saves = 3, .num_failed_saves = 4};
  load.grammars = {
      .compiled = 1, .failed = 2, .cancelled = 3, .hits = 4, .waiting = 5, .cache_bytes = 6, .cache_limit_bytes = 7};
  load.texts = {.waiting = 1, .waiting_bytes = 2, .running = 3, .done = 4, .refused = 5};
  load.delivery = {.bytes = 1, .limit_bytes = 2, .ended = 3};
  load.connections = {.open = 1, .limit = 2, .refused = 3};
  load.tenants = {.largest = {{.tenant = "ann", .share = 0.5, .deficit = 2, .wait = absl::Seconds(3)}},
                  .num_tenants = 2};
  FillLoad(load, &response);
  std::vector<std::string> zeros;
  ListZeros(response, "", &zeros);
  EXPECT_THAT(zeros, ::testing::IsEmpty());
  EXPECT_EQ(response.cache().pools(0).kind(), "static");
  EXPECT_EQ(response.cache().pools(0).cached_bytes(), 48);
  ASSERT_EQ(response.tenant_shares_size(), 1);
  EXPECT_EQ(response.tenant_shares(0).tenant(), "ann");
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
  CheckFamilies(TextFigures(), &runs);
  CheckFamilies(DeliveryFigures(), &runs);
  CheckFamilies(PoolFigures(), &runs);
  CheckFamilies(ArenaFigures(), &runs);
  for (const auto& [name, count] : runs) {
    EXPECT_EQ(count, name == "berth_cache_bytes" ? 2 : 1) << name;  // of pools, then of the rest of the arena
    EXPECT_TRUE(absl::StartsWith(name, "berth_") || absl::StartsWith(name, "vllm:")) << name;
  }
}

}  // namespace
}  // namespace berth
