#include "server/metrics/load_table.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cache/spec.h"
#include "server/metrics/load_metrics.h"
#include "server/metrics/metric_families.h"
#include "tests/server/metrics/metrics_text.h"

namespace berth {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::TextFormat;

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

// A load in which each member, by name, has a value that no other has.
EngineLoad NamedEngineLoad() {
  EngineLoad load;
  load.counts = {.num_running = 101,
                 .num_waiting = 102,
                 .num_paused = 103,
                 .num_new = 104,
                 .waiting_tokens = 105,
                 .num_preemptions = 300,
                 .num_swap_outs = 107,
                 .num_recomputes = 193,
                 .num_pauses = 108,
                 .num_retried_steps = 109,
                 .prompt_tokens = 110,
                 .generation_tokens = 111,
                 .draft_tokens = 112,
                 .accepted_draft_tokens = 113,
                 .forced_tokens = 114,
                 .prefix_queried_tokens = 115,
                 .prefix_hit_tokens = 116,
                 .prefix_replayed_tokens = 117};
  load.host_tier = {.limit_bytes = 1000, .sequence_bytes = 201, .prefix_bytes = 202};
  load.prefix_tier = {.disk_bytes = 211,
                      .num_hits = 212,
                      .num_disk_reads = 213,
                      .restored_tokens = 214,
                      .host_evictions = 215,
                      .disk_evictions = 216,
                      .lost = 217,
                      .full_disk = 218,
                      .failed_writes = 219,
                      .failed_reads = 220,
                      .torn_files = 221,
                      .foreign_files = 222};
  load.disk_tier_limit_bytes = 3000;
  load.predicted_wait_ms = 4000;
  load.predicted_wait_new_tenant_ms = 5000;
  load.num_steps = 231;
  load.num_failed_steps = 232;
  load.num_device_allocations = 233;
  load.num_graph_launches = 234;
  load.num_graph_refusals = 235;
  return load;
}

Occupancy NamedOccupancy() {
  return {.arena_bytes = 8001,
          .unassigned_free_bytes = 8002,
          .unassigned_overhead_bytes = 8003,
          .largest_hole_bytes = 8004,
          .pools = {{.kind = CacheKind::kSliding,
                     .unit_bytes = 16,
                     .live_units = 11,
                     .shared_units = 12,
                     .cached_units = 13,
                     .free_units = 14,
                     .live_tokens = 15,
                     .cached_tokens = 17,
                     .evicted_units = 18,
                     .compacted_bytes = 19}},
          .num_leases = 8005,
          .largest_admissible_tokens = 8006};
}

ServerLoad NamedLoad() {
  ServerLoad load;
  load.engine = NamedEngineLoad();
  load.engine.occupancy = NamedOccupancy();
  load.sessions = {.used_bytes = 241, .limit_bytes = 2000, .num_saves = 243, .num_failed_saves = 244};
  load.grammars = {.compiled = 251,
                   .failed = 252,
                   .cancelled = 253,
                   .hits = 254,
                   .waiting = 255,
                   .cache_bytes = 256,
                   .cache_limit_bytes = 1500};
  load.texts = {.waiting = 261, .waiting_bytes = 262, .running = 263, .done = 264, .refused = 265};
  load.delivery = {.bytes = 271, .limit_bytes = 1800, .ended = 273};
  load.connections = {.open = 281, .limit = 282, .refused = 283};
  load.tenants = {.largest = {{.tenant = "ann", .share = 0.5, .deficit = 291, .wait = absl::Seconds(292)}},
                  .others = {.share = 0.25, .deficit = 294, .wait = absl::Seconds(295)},
                  .num_tenants = 293};
  return load;
}

// What the API has of it, in the order of control.proto.
constexpr char kNamedResponse[] = R"(
    cache { arena_bytes: 8001 free_bytes: 8002 overhead_bytes: 8003
            pools { kind: "sliding" unit_bytes: 16 live_units: 11 free_units: 14 live_bytes: 176 free_bytes: 224
                    live_tokens: 15 shared_units: 12 cached_units: 13 shared_bytes: 192 cached_bytes: 208
                    cached_tokens: 17 evicted_units: 18 compacted_bytes: 19 }
            num_leases: 8005 largest_admissible_tokens: 8006 largest_hole_bytes: 8004 }
    running: 101 waiting: 102 paused: 103 queued: 104 waiting_tokens: 105
    predicted_wait_ms: 4000 predicted_wait_new_tenant_ms: 5000
    tenants: 293 tenant_shares { tenant: "ann" share: 0.5 deficit_tokens: 291 wait_seconds: 292 }
    texts_waiting: 261 text_waiting_bytes: 262 texts_running: 263
    connections: 281 connections_limit: 282
    grammars_waiting: 255 grammar_cache_bytes: 256 grammar_cache_limit_bytes: 1500
    host_tier_bytes: 201 host_tier_prefix_bytes: 202 host_tier_limit_bytes: 1000
    disk_tier_bytes: 211 disk_tier_limit_bytes: 3000
    session_bytes: 241 session_limit_bytes: 2000
    undelivered_bytes: 271 undelivered_limit_bytes: 1800
    steps: 231 failed_steps: 232 retried_steps: 109
    graph_launches: 234 graph_refusals: 235 device_allocations: 233
    prompt_tokens: 110 generation_tokens: 111
    draft_tokens: 112 accepted_draft_tokens: 113 forced_tokens: 114
    grammars_compiled: 251 grammars_failed: 252 grammars_cancelled: 253 grammar_cache_hits: 254
    unread_requests_ended: 273 pauses: 108 preemptions: 300 swap_outs: 107 recomputes: 193
    prefix_queried_tokens: 115 prefix_hit_tokens: 116 prefix_replayed_tokens: 117
    tier_hits: 212 tier_disk_reads: 213 tier_restored_tokens: 214
    tier_prefixes_lost: 217 tier_host_evictions: 215 tier_disk_evictions: 216
    tier_file_errors: 1100  # 218 + 219 + 220 + 221 + 222
    texts_done: 264 texts_refused: 265 connections_refused: 283
    session_saves: 243 failed_session_saves: 244)";

std::string TextOf(const Message& message) {
  std::string text;
  EXPECT_TRUE(TextFormat::PrintToString(message, &text));
  return text;
}

TEST(LoadTableTest, EachFieldOfTheApiHasItsOwnNumber) {
  v1::GetLoadResponse response;
  FillLoad(NamedLoad(), &response);
  std::vector<std::string> zeros;
  ListZeros(response, "", &zeros);
  EXPECT_THAT(zeros, ::testing::IsEmpty());
  v1::GetLoadResponse expected;
  ASSERT_TRUE(TextFormat::ParseFromString(kNamedResponse, &expected));
  EXPECT_EQ(TextOf(response), TextOf(expected));
}

// What the scrape has of it, without the label model_name. Every other series is 0.
constexpr char kNamedSeries[] = R"(berth_requests_running 101
vllm:num_requests_running 101
berth_requests_waiting 102
vllm:num_requests_waiting 102
berth_requests_paused 103
berth_requests_queued 104
berth_requests_waiting_tokens 105
berth_predicted_wait_seconds 4
berth_predicted_wait_new_tenant_seconds 5
berth_preemptions_total{action="swap_out"} 107
berth_preemptions_total{action="recompute"} 193
berth_pauses_total 108
vllm:num_preemptions_total 300
berth_prompt_tokens_total 110
vllm:prompt_tokens_total 110
berth_generation_tokens_total 111
vllm:generation_tokens_total 111
berth_prefix_cache_queried_tokens_total 115
vllm:prefix_cache_queries_total 115
berth_prefix_cache_hit_tokens_total 116
vllm:prefix_cache_hits_total 116
berth_prefix_cache_replayed_tokens_total 117
berth_draft_tokens_total 112
vllm:spec_decode_num_draft_tokens_total 112
berth_accepted_draft_tokens_total 113
vllm:spec_decode_num_accepted_tokens_total 113
berth_forced_tokens_total 114
berth_steps_total 231
berth_failed_steps_total 232
berth_retried_steps_total 109
berth_device_allocations_total 233
berth_graph_launches_total 234
berth_graph_refusals_total 235
berth_tenants 293
berth_tenant_share_ratio{tenant="ann"} 0.5
berth_tenant_share_ratio{tenant="other"} 0.25
berth_tenant_deficit_tokens{tenant="ann"} 291
berth_tenant_deficit_tokens{tenant="other"} 294
berth_tenant_wait_seconds{tenant="ann"} 292
berth_tenant_wait_seconds{tenant="other"} 295
berth_cache_evictions_total{pool="sliding"} 18
berth_cache_compacted_bytes_total{pool="sliding"} 19
berth_cache_units{pool="sliding",state="live"} 11
berth_cache_units{pool="sliding",state="shared"} 12
berth_cache_units{pool="sliding",state="cached"} 13
berth_cache_units{pool="sliding",state="free"} 14
berth_cache_bytes{pool="sliding",state="live"} 176
berth_cache_bytes{pool="sliding",state="shared"} 192
berth_cache_bytes{pool="sliding",state="cached"} 208
berth_cache_bytes{pool="sliding",state="free"} 224
berth_cache_bytes{pool="none",state="free"} 8002
berth_cache_bytes{pool="none",state="overhead"} 8003
berth_cache_arena_bytes 8001
berth_cache_leases 8005
berth_cache_largest_admissible_tokens 8006
berth_cache_tokens{pool="sliding",state="live"} 15
berth_cache_tokens{pool="sliding",state="cached"} 17
berth_cache_tokens{pool="sliding",state="free"} 448
berth_cache_tier_bytes{tier="host",state="used"} 403
berth_cache_tier_bytes{tier="host",state="free"} 597
berth_cache_tier_bytes{tier="disk",state="used"} 452
berth_cache_tier_bytes{tier="disk",state="free"} 4548
berth_session_saves_total{result="ok"} 243
berth_session_saves_total{result="failed"} 244
berth_prefix_tier_bytes{tier="host"} 202
berth_prefix_tier_bytes{tier="disk"} 211
berth_prefix_tier_hits_total 212
berth_prefix_tier_disk_reads_total 213
berth_prefix_tier_restored_tokens_total 214
berth_prefix_tier_evictions_total{tier="arena"} 217
berth_prefix_tier_evictions_total{tier="host"} 215
berth_prefix_tier_evictions_total{tier="disk"} 216
berth_prefix_tier_errors_total{reason="full"} 218
berth_prefix_tier_errors_total{reason="write"} 219
berth_prefix_tier_errors_total{reason="read"} 220
berth_prefix_tier_errors_total{reason="torn"} 221
berth_prefix_tier_errors_total{reason="foreign"} 222
berth_grammar_compilations_total{result="ok"} 251
berth_grammar_compilations_total{result="failed"} 252
berth_grammar_compilations_total{result="cancelled"} 253
berth_grammar_cache_hits_total 254
berth_grammar_requests_waiting 255
berth_grammar_cache_bytes{state="used"} 256
berth_grammar_cache_bytes{state="free"} 1244
berth_texts{state="waiting"} 261
berth_texts{state="running"} 263
berth_text_waiting_bytes 262
berth_texts_total{result="done"} 264
berth_texts_total{result="refused"} 265
berth_undelivered_bytes{state="used"} 271
berth_undelivered_bytes{state="free"} 1529
berth_unread_requests_ended_total 273
berth_connections 281
berth_connections_limit 282
berth_connections_refused_total 283)";

// exporter_test.cc has the tests of these.
bool IsRatioOrConstant(absl::string_view series) {
  for (const char* const family : {"berth_cache_usage_ratio", "berth_cache_fragmentation_ratio",
                                   "vllm:kv_cache_usage_perc", "vllm:cache_config_info"}) {
    if (absl::StartsWith(series, family)) return true;
  }
  return false;
}

TEST(LoadTableTest, EachSeriesOfTheScrapeHasItsOwnNumber) {
  MetricFamilies families("m", /*vllm_aliases=*/true);
  CollectLoad(NamedLoad(), CachePlan{.block_tokens = 32}, &families);
  const std::string scrape =
      absl::StrReplaceAll(ToText(families.Take()), {{R"({model_name="m"})", ""}, {R"(model_name="m",)", ""}});
  SeriesMap series = ReadSeries(scrape);
  std::erase_if(series, [](const auto& entry) { return entry.second == 0 || IsRatioOrConstant(entry.first); });
  EXPECT_EQ(series, ReadSeries(kNamedSeries));
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
