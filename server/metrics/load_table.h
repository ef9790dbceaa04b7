// Declares every number of the engine's load once: its Prometheus series, its field in the API and its value.
//
// Four things follow from these tables: the scrape (load_metrics.h), the answer of berth.v1.Control.GetLoad (FillLoad
// below), `berth-cli status`, which shows every field of that answer, and docs/metrics.md. Constant; thread-safe.
//
// To add a counter or a gauge:
//   1. Add it to Scheduler::Counts, or to another part of EngineLoad, with the code that counts.
//   2. Add a field to GetLoadResponse in proto/berth/v1/control.proto.
//   3. Add a line to a table in load_table.cc.
//   4. Run ./dev docs, which writes docs/metrics.md.
// tests/server/metrics/load_table_test fails while step 2 or 3 is missing, tests/docs/test_generated.py without step 4.
#ifndef BERTH_SERVER_METRICS_LOAD_TABLE_H_
#define BERTH_SERVER_METRICS_LOAD_TABLE_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "berth/v1/control.pb.h"
#include "cache/occupancy.h"
#include "scheduler/engine.h"
#include "scheduler/tenant_shares.h"

namespace berth {

// Files of saved sessions. All 0 without --session_dir.
struct SessionLoad {
  int64_t used_bytes = 0;
  int64_t limit_bytes = 0;
  int64_t num_saves = 0;  // since start
  int64_t num_failed_saves = 0;
};

// Grammars of structured outputs. Except for the gauges, counted since the start.
struct GrammarLoad {
  int64_t compiled = 0;           // compilations that succeeded
  int64_t failed = 0;             // that were refused, or took too long
  int64_t cancelled = 0;          // that were stopped because their requests had ended
  int64_t hits = 0;               // requests whose grammar was compiled already, or was being compiled
  int64_t waiting = 0;            // gauge: requests whose grammar is not compiled yet
  int64_t cache_bytes = 0;        // gauge: of the compiled grammars that are kept
  int64_t cache_limit_bytes = 0;  // gauge
};

// Texts that are tokenised, detokenised or rendered. Except for the gauges, counted since the start.
struct TextLoad {
  int64_t waiting = 0;        // gauge: texts that no thread has begun
  int64_t waiting_bytes = 0;  // gauge: their bytes
  int64_t running = 0;        // gauge: texts that a thread works on
  int64_t done = 0;           // texts that a thread has worked on
  int64_t refused = 0;        // texts refused because too many waited
};

// Messages that clients have not taken yet.
struct DeliveryLoad {
  int64_t bytes = 0;        // gauge
  int64_t limit_bytes = 0;  // gauge
  int64_t ended = 0;        // requests ended because their clients did not read; counted since the start
};

// Connections of the gRPC port.
struct ConnectionLoad {
  int64_t open = 0;     // gauge
  int64_t limit = 0;    // gauge; 0: none
  int64_t refused = 0;  // over a limit; counted since the start
};

struct ServerLoad {
  const EngineLoad& engine;
  const SessionLoad& sessions;
  const GrammarLoad& grammars;
  const TextLoad& texts;
  const DeliveryLoad& delivery;
  ConnectionLoad connections = {};
  TenantShares tenants = {};
};

struct MetricLabel {
  absl::string_view name;
  absl::string_view value;
};

// One number that is read from Source. It is exported as a series, as a field of Message, or as both.
template <typename Source, typename Message>
struct Figure {
  // Full name of the family. A name that ends in "_total" is a counter, any other a gauge. A vllm: name is a family
  // that only vLLM has. Empty: no series. Figures of one family are neighbours.
  absl::string_view metric{};
  // In the family's first figure: the help text, and vLLM's name for the same family.
  absl::string_view help{};
  absl::string_view alias{};
  // Labels of this series beside model_name; unused ones are empty.
  MetricLabel labels[2]{};
  double scale = 1;  // of the series: what the value is multiplied by to be in the metric's unit
  // Sets the field; null: no field.
  void (Message::*field)(int64_t) = nullptr;
  int64_t (*value)(const Source&) = nullptr;
};

using LoadFigure = Figure<ServerLoad, v1::GetLoadResponse>;
using PoolFigure = Figure<PoolOccupancy, v1::PoolOccupancy>;
using ArenaFigure = Figure<Occupancy, v1::CacheOccupancy>;

// Numbers of the queues, the tokens and the steps.
absl::Span<const LoadFigure> EngineFigures();
// Numbers of the host tier, the disk tier and the session files.
absl::Span<const LoadFigure> TierFigures();
absl::Span<const LoadFigure> GrammarFigures();
absl::Span<const LoadFigure> TextFigures();
// Numbers of one pool. In a scrape, a series is the sum over all pools of one kind and has the label "pool".
absl::Span<const PoolFigure> PoolFigures();
// Numbers of the whole arena. The first ones continue the last family of PoolFigures.
absl::Span<const ArenaFigure> ArenaFigures();

absl::Span<const LoadFigure> DeliveryFigures();

// Sets every field of `response` but `draining`.
void FillLoad(const EngineLoad& load, const GrammarLoad& grammars, const DeliveryLoad& delivery,
              v1::GetLoadResponse* response);

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_LOAD_TABLE_H_
