#include "server/metrics/exporter.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <optional>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/metrics/load_metrics.h"
#include "server/metrics/metrics.h"
#include "tests/server/metrics/metrics_text.h"

namespace berth {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::StartsWith;

// static, recurrent and a second static group.
CachePlan TestPlan() {
  CachePlan plan{.block_tokens = 16};
  plan.groups = {{.kind = CacheKind::kStatic, .unit_bytes = 4096},
                 {.kind = CacheKind::kRecurrent, .unit_bytes = 3000},
                 {.kind = CacheKind::kStatic, .unit_bytes = 1000}};
  return plan;
}

EngineLoad LoadOf(const std::vector<PoolOccupancy>& pools, int64_t unassigned_free, int64_t unassigned_overhead) {
  EngineLoad load;
  load.occupancy.pools = pools;
  load.occupancy.unassigned_free_bytes = unassigned_free;
  load.occupancy.largest_hole_bytes = unassigned_free;
  load.occupancy.unassigned_overhead_bytes = unassigned_overhead;
  load.occupancy.arena_bytes = load.occupancy.TotalBytes();
  return load;
}

PoolOccupancy Pool(CacheKind kind, int64_t unit_bytes, int64_t live, int64_t free, int64_t cached = 0) {
  return {.kind = kind, .unit_bytes = unit_bytes, .live_units = live, .cached_units = cached, .free_units = free};
}

struct Scraper {
  explicit Scraper(bool vllm_aliases = true) : metrics({.model_name = "m", .vllm_aliases = vllm_aliases}) {}

  MetricsCollector::Options Options() {
    return {.metrics = &metrics,
            .load =
                [this] {
                  ++num_loads;
                  return ServerLoad{.engine = load, .tenants = tenants};
                },
            .plan = TestPlan(),
            .model = {.model_type = "falcon_h1", .num_parameters = 123, .dtype = DType::kBFloat16, .device = "cpu"},
            .version = "1.2",
            .libtorch_version = "2.11",
            .cpu_capability = "avx2"};
  }
  SeriesMap Scrape() { return ReadSeries(ToText(MetricsCollector(Options()).Collect())); }

  Metrics metrics;
  EngineLoad load = LoadOf({Pool(CacheKind::kStatic, 4096, 0, 0), Pool(CacheKind::kRecurrent, 3000, 0, 0),
                            Pool(CacheKind::kStatic, 1000, 0, 0)},
                           1 << 20, 100);
  TenantShares tenants;
  int num_loads = 0;
};

const char* const kSeries[] = {
    R"(berth_requests_running{model_name="m"})",
    R"(berth_requests_waiting{model_name="m"})",
    R"(berth_requests_waiting_tokens{model_name="m"})",
    R"(vllm:num_requests_running{model_name="m"})",
    R"(vllm:num_requests_waiting{model_name="m"})",
    R"(berth_preemptions_total{model_name="m",action="recompute"})",
    R"(berth_preemptions_total{model_name="m",action="swap_out"})",
    R"(vllm:num_preemptions_total{model_name="m"})",
    R"(berth_cache_tier_bytes{model_name="m",tier="host",state="used"})",
    R"(berth_cache_tier_bytes{model_name="m",tier="host",state="free"})",
    R"(berth_cache_tier_bytes{model_name="m",tier="disk",state="used"})",
    R"(berth_cache_tier_bytes{model_name="m",tier="disk",state="free"})",
    R"(berth_session_saves_total{model_name="m",result="ok"})",
    R"(berth_session_saves_total{model_name="m",result="failed"})",
    R"(berth_prompt_tokens_total{model_name="m"})",
    R"(vllm:prompt_tokens_total{model_name="m"})",
    R"(berth_generation_tokens_total{model_name="m"})",
    R"(vllm:generation_tokens_total{model_name="m"})",
    R"(berth_steps_total{model_name="m"})",
    R"(berth_device_allocations_total{model_name="m"})",
    R"(berth_graph_launches_total{model_name="m"})",
    R"(berth_graph_refusals_total{model_name="m"})",
    R"(berth_cache_usage_ratio{model_name="m",pool="static"})",
    R"(berth_cache_usage_ratio{model_name="m",pool="sliding"})",
    R"(berth_cache_usage_ratio{model_name="m",pool="recurrent"})",
    R"(berth_cache_usage_ratio{model_name="m",pool="arena"})",
    R"(berth_cache_usage_ratio{model_name="m",pool="max"})",
    R"(vllm:kv_cache_usage_perc{model_name="m"})",
    R"(berth_cache_usage_ratio{model_name="m",pool="cross"})",
    R"(berth_cache_usage_ratio{model_name="m",pool="checkpoint"})",
    R"(berth_cache_units{model_name="m",pool="checkpoint",state="cached"})",
    R"(berth_cache_evictions_total{model_name="m",pool="checkpoint"})",
    R"(berth_cache_units{model_name="m",pool="recurrent",state="live"})",
    R"(berth_cache_units{model_name="m",pool="sliding",state="cached"})",
    R"(berth_cache_tokens{model_name="m",pool="static",state="free"})",
    R"(berth_cache_tokens{model_name="m",pool="cross",state="live"})",
    R"(berth_cache_fragmentation_ratio{model_name="m"})",
    R"(berth_cache_largest_admissible_tokens{model_name="m"})",
    R"(berth_cache_leases{model_name="m"})",
};

TEST(MetricsCollector, NamesTheTenantsWithTheLargestShares) {
  Scraper scraper;
  MetricsCollector::Options options = scraper.Options();
  SeriesMap series = ReadSeries(ToText(MetricsCollector(options).Collect()));
  EXPECT_EQ(series.at(R"(berth_tenant_share_ratio{model_name="m",tenant="other"})"), 0)
      << "without fair scheduling too";
  scraper.tenants = {
      .largest = {{.tenant = "a", .share = 0.5, .deficit = 7, .wait = absl::Seconds(3)}, {.tenant = "", .share = 0.25}},
      .others = {.share = 0.25, .wait = absl::Seconds(9)},
      .num_tenants = 12};
  series = ReadSeries(ToText(MetricsCollector(options).Collect()));
  EXPECT_EQ(series.at(R"(berth_tenants{model_name="m"})"), 12);
  EXPECT_EQ(series.at(R"(berth_tenant_share_ratio{model_name="m",tenant="a"})"), 0.5);
  EXPECT_EQ(series.at(R"x(berth_tenant_share_ratio{model_name="m",tenant="(none)"})x"), 0.25);
  EXPECT_EQ(series.at(R"(berth_tenant_deficit_tokens{model_name="m",tenant="a"})"), 7);
  EXPECT_EQ(series.at(R"(berth_tenant_wait_seconds{model_name="m",tenant="other"})"), 9);
}

// Prometheus drops the second of two equal series.
TEST(MetricsCollector, ATenantsNameMakesNoSeriesOfAnother) {
  Scraper scraper;
  scraper.tenants = {.largest = {{.tenant = "", .share = 0.1},
                                 {.tenant = "(none)", .share = 0.2},
                                 {.tenant = "other", .share = 0.3},
                                 {.tenant = "\"other\"", .share = 0.4}},
                     .others = {.share = 0.5}};
  const SeriesMap series = ReadSeries(ToText(MetricsCollector(scraper.Options()).Collect()));
  EXPECT_EQ(series.at(R"x(berth_tenant_share_ratio{model_name="m",tenant="(none)"})x"), 0.1);
  EXPECT_EQ(series.at(R"x(berth_tenant_share_ratio{model_name="m",tenant="\"(none)\""})x"), 0.2);
  EXPECT_EQ(series.at(R"x(berth_tenant_share_ratio{model_name="m",tenant="\"other\""})x"), 0.3);
  EXPECT_EQ(series.at(R"x(berth_tenant_share_ratio{model_name="m",tenant="\"\"other\"\""})x"), 0.4);
  EXPECT_EQ(series.at(R"x(berth_tenant_share_ratio{model_name="m",tenant="other"})x"), 0.5);
}

TEST(MetricsCollectorTest, EveryGaugeExistsAtZero) {
  Scraper scraper;
  const SeriesMap series = scraper.Scrape();
  for (const char* name : kSeries) {
    ASSERT_THAT(series, Contains(Key(name)));
    EXPECT_EQ(series.at(name), 0) << name;
  }
  for (const char* pool : {"static", "sliding", "recurrent", "cross", "checkpoint", "none"}) {
    for (const char* state : {"live", "shared", "cached", "overhead", "free"}) {
      EXPECT_THAT(
          series,
          Contains(Key(absl::StrCat("berth_cache_bytes{model_name=\"m\",pool=\"", pool, "\",state=\"", state, "\"}"))));
    }
  }
}

TEST(MetricsCollectorTest, SaysWhatRuns) {
  const SeriesMap series = Scraper().Scrape();
  EXPECT_EQ(series.at(R"(berth_build_info{model_name="m",version="1.2",libtorch="2.11",cpu_capability="avx2"})"), 1);
  EXPECT_EQ(
      series.at(
          R"(berth_model_info{model_name="m",model_type="falcon_h1",dtype="bfloat16",device="cpu",parameters="123"})"),
      1);
  EXPECT_EQ(series.at(R"(vllm:cache_config_info{model_name="m",block_size="16",num_gpu_blocks="205"})"), 1);
  EXPECT_GT(series.at("process_resident_memory_bytes"), 0);
  EXPECT_GT(series.at("process_start_time_seconds"), 1.6e9);
  EXPECT_GT(series.at("process_open_fds"), 0);
  EXPECT_THAT(series, Contains(Key("process_cpu_seconds_total")));
}

int64_t SumOfBytes(const SeriesMap& series) {
  int64_t sum = 0;
  for (const auto& [name, value] : series) {
    if (absl::StartsWith(name, "berth_cache_bytes{")) sum += static_cast<int64_t>(value);
  }
  return sum;
}

TEST(MetricsCollectorTest, BytesAddUpToTheArenaToTheByteWhateverItsSize) {
  std::mt19937_64 random(7);
  const auto upto = [&random](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
  for (int round = 0; round < 200; ++round) {
    Scraper scraper;
    scraper.load = LoadOf({Pool(CacheKind::kStatic, upto(1 << 20), upto(1 << 19), upto(1 << 19), upto(1 << 30)),
                           Pool(CacheKind::kRecurrent, upto(1 << 20), upto(999), upto(999), upto(99999)),
                           Pool(CacheKind::kStatic, upto(1 << 10), upto(1 << 20), upto(1 << 20), upto(999))},
                          upto(int64_t{1} << 40), upto(99));
    const SeriesMap series = scraper.Scrape();
    ASSERT_EQ(SumOfBytes(series), scraper.load.occupancy.arena_bytes);
    ASSERT_EQ(static_cast<int64_t>(series.at(R"(berth_cache_arena_bytes{model_name="m"})")),
              scraper.load.occupancy.arena_bytes);
  }
}

TEST(MetricsCollectorTest, OneScrapeTakesOneSnapshot) {
  Scraper scraper;
  scraper.Scrape();
  EXPECT_EQ(scraper.num_loads, 1);
}

TEST(MetricsCollectorTest, PoolsOfOneKindAreAddedAndAliasesAgree) {
  Scraper scraper;
  scraper.load = LoadOf({Pool(CacheKind::kStatic, 4096, 3, 13), Pool(CacheKind::kRecurrent, 3000, 2, 19, 2536),
                         Pool(CacheKind::kStatic, 1000, 5, 60, 536)},
                        65536, 100);
  scraper.load.counts.num_running = 2;
  scraper.load.counts.num_waiting = 4;
  scraper.load.counts.num_preemptions = 6;
  scraper.load.counts.num_swap_outs = 2;
  scraper.load.counts.num_recomputes = 3;
  scraper.load.host_tier = {.limit_bytes = 1000, .sequence_bytes = 200, .prefix_bytes = 100};
  scraper.load.prefix_tier = {.disk_bytes = 70, .num_hits = 5, .restored_tokens = 60, .torn_files = 2};
  scraper.load.disk_tier_limit_bytes = 100;
  scraper.load.counts.prompt_tokens = 1000;
  const SeriesMap series = scraper.Scrape();
  EXPECT_EQ(series.at(R"(berth_cache_bytes{model_name="m",pool="static",state="live"})"), 3 * 4096 + 5 * 1000);
  EXPECT_EQ(series.at(R"(berth_cache_units{model_name="m",pool="static",state="free"})"), 73);
  EXPECT_EQ(series.at(R"(berth_cache_tokens{model_name="m",pool="static",state="free"})"), 73 * 16);
  EXPECT_EQ(series.at(R"(berth_preemptions_total{model_name="m",action="recompute"})"), 3);
  EXPECT_EQ(series.at(R"(berth_preemptions_total{model_name="m",action="swap_out"})"), 2);
  EXPECT_EQ(series.at(R"(berth_cache_tier_bytes{model_name="m",tier="host",state="used"})"), 300);
  EXPECT_EQ(series.at(R"(berth_cache_tier_bytes{model_name="m",tier="host",state="free"})"), 700);
  EXPECT_EQ(series.at(R"(berth_cache_tier_bytes{model_name="m",tier="disk",state="used"})"), 70);
  EXPECT_EQ(series.at(R"(berth_cache_tier_bytes{model_name="m",tier="disk",state="free"})"), 30);
  EXPECT_EQ(series.at(R"(berth_prefix_tier_bytes{model_name="m",tier="host"})"), 100);
  EXPECT_EQ(series.at(R"(berth_prefix_tier_hits_total{model_name="m"})"), 5);
  EXPECT_EQ(series.at(R"(berth_prefix_tier_restored_tokens_total{model_name="m"})"), 60);
  EXPECT_EQ(series.at(R"(berth_prefix_tier_errors_total{model_name="m",reason="torn"})"), 2);
  EXPECT_EQ(series.at(R"(vllm:num_preemptions_total{model_name="m"})"), 6);
  EXPECT_EQ(series.at(R"(vllm:num_requests_running{model_name="m"})"), 2);
  EXPECT_EQ(series.at(R"(vllm:num_requests_waiting{model_name="m"})"), 4);
  EXPECT_EQ(series.at(R"(vllm:prompt_tokens_total{model_name="m"})"), 1000);
  EXPECT_EQ(series.at(R"(vllm:kv_cache_usage_perc{model_name="m"})"),
            series.at(R"(berth_cache_usage_ratio{model_name="m",pool="max"})"));
}

TEST(MetricsCollectorTest, WithoutAliasesNothingIsNamedAfterVllm) {
  for (const auto& [name, value] : Scraper(false).Scrape()) EXPECT_FALSE(absl::StartsWith(name, "vllm")) << name;
}

TEST(UsageTest, IsTheFullestPoolsShareOfWhatItCouldHave) {
  // 300 of the static pool's 300 + 100 + 600, 0 of the recurrent one's 600; 300 of all 1000.
  CacheUsage usage =
      UsageOf(LoadOf({Pool(CacheKind::kStatic, 100, 3, 1), Pool(CacheKind::kRecurrent, 100, 0, 0)}, 600, 0).occupancy);
  EXPECT_DOUBLE_EQ(usage.pools[static_cast<size_t>(CacheKind::kStatic)], 0.3);
  EXPECT_DOUBLE_EQ(usage.pools[static_cast<size_t>(CacheKind::kRecurrent)], 0);
  EXPECT_DOUBLE_EQ(usage.arena, 0.3);
  EXPECT_DOUBLE_EQ(usage.max, 0.3);

  // Two kinds that share what is free: the arena is fuller than either.
  usage =
      UsageOf(LoadOf({Pool(CacheKind::kStatic, 100, 3, 0), Pool(CacheKind::kRecurrent, 100, 3, 0)}, 400, 0).occupancy);
  EXPECT_DOUBLE_EQ(usage.arena, 0.6);
  EXPECT_DOUBLE_EQ(usage.max, 0.6);

  // What is free in one pool's slabs, or cached, can serve the other.
  usage =
      UsageOf(LoadOf({Pool(CacheKind::kStatic, 100, 3, 4, 1), Pool(CacheKind::kRecurrent, 100, 2, 0)}, 0, 0).occupancy);
  EXPECT_DOUBLE_EQ(usage.pools[static_cast<size_t>(CacheKind::kRecurrent)], 2.0 / 7);
  EXPECT_DOUBLE_EQ(usage.max, 0.5);

  // The others hold everything.
  usage =
      UsageOf(LoadOf({Pool(CacheKind::kStatic, 100, 8, 0), Pool(CacheKind::kRecurrent, 100, 0, 0)}, 0, 0).occupancy);
  EXPECT_DOUBLE_EQ(usage.max, 1);
}

// The whole answer to GET `path`, headers included.
std::string HttpGet(int port, const std::string& path, const std::string& more_headers = "") {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", more_headers, "\r\n");
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t n = 0; (n = read(fd, buffer, sizeof(buffer))) > 0;) answer.append(buffer, n);
  }
  close(fd);
  return answer;
}

TEST(ExporterTest, AnswersScrapesOverHttp) {
  Scraper scraper;
  const auto exporter = Exporter::Start({.host = "127.0.0.1", .port = 0}, scraper.Options());
  ASSERT_TRUE(exporter.ok()) << exporter.status();
  const std::string answer = HttpGet((*exporter)->port(), "/metrics");
  EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\n# TYPE berth_requests_running gauge\n"),
                            HasSubstr("\n# TYPE berth_time_to_first_token_seconds histogram\n"),
                            HasSubstr("\nberth_requests_running{model_name=\"m\"} 0\n")));
  EXPECT_THAT(HttpGet((*exporter)->port(), "/other"), StartsWith("HTTP/1.1 404"));
}

TEST(ExporterTest, AnswersOnlyScrapesThatAreAdmitted) {
  Scraper scraper;
  const auto admit = [](std::optional<absl::string_view> authorization) { return authorization == "Bearer a"; };
  const auto exporter = Exporter::Start({.host = "127.0.0.1", .port = 0}, scraper.Options(), admit);
  ASSERT_TRUE(exporter.ok()) << exporter.status();
  const int port = (*exporter)->port();
  EXPECT_THAT(HttpGet(port, "/metrics"), AllOf(StartsWith("HTTP/1.1 401"), Not(HasSubstr("berth"))));
  EXPECT_THAT(HttpGet(port, "/metrics", "Authorization: Bearer b\r\n"), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(HttpGet(port, "/metrics", "Authorization: Bearer a\r\n"),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("berth_requests_running")));
}

TEST(ExporterTest, ZipsForThoseWhoAskForIt) {
  Scraper scraper;
  const auto exporter = Exporter::Start({.host = "127.0.0.1", .port = 0}, scraper.Options());
  ASSERT_TRUE(exporter.ok()) << exporter.status();
  const std::string answer = HttpGet((*exporter)->port(), "/metrics", "Accept-Encoding: deflate, gzip\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Encoding: gzip\r\n"));
  const std::string zipped = answer.substr(answer.find("\r\n\r\n") + 4);
  z_stream stream = {};
  ASSERT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
  std::string text(1 << 20, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(zipped.data()));
  stream.avail_in = static_cast<uInt>(zipped.size());
  stream.next_out = reinterpret_cast<Bytef*>(text.data());
  stream.avail_out = static_cast<uInt>(text.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  EXPECT_EQ(stream.avail_in, 0u);
  EXPECT_THAT(text, HasSubstr("\nberth_requests_running{model_name=\"m\"} 0\n"));
  inflateEnd(&stream);
}

TEST(ExporterTest, SaysWhichAddressItCannotListenOn) {
  Scraper scraper;
  const auto first = Exporter::Start({.host = "127.0.0.1", .port = 0}, scraper.Options());
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Exporter::Start({.host = "127.0.0.1", .port = (*first)->port()}, scraper.Options());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(absl::StrCat("127.0.0.1:", (*first)->port())));
}

}  // namespace
}  // namespace berth
