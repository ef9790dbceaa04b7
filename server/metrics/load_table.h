// Declares every number of the server's load once: its Prometheus series, its field in the API and its value.
//
// Four things follow from these tables: the scrape (load_metrics.h), the answer of berth.v1.Control.GetLoad (FillLoad
// below), `berth-cli status`, which shows every field of that answer, and docs/metrics.md. Constant; thread-safe.
//
// To add a counter or a gauge:
//   1. Add it to Scheduler::Counts, or to the load of what counts it: the other members of ServerLoad below.
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
#include "scheduler/load/engine_load.h"
#include "scheduler/policy/tenant_shares.h"
#include "server/connection_gate.h"
#include "server/delivery/undelivered.h"
#include "server/request/grammar_compiler.h"
#include "server/request/turn_pool.h"
#include "server/storage/sessions.h"

namespace berth {

// What all parts of the server count. Each declares its own.
struct ServerLoad {
  EngineLoad engine;
  SessionLoad sessions;
  GrammarLoad grammars;
  TurnPoolLoad texts;
  DeliveryLoad delivery;
  ConnectionLoad connections;
  TenantShares tenants;
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
void FillLoad(const ServerLoad& load, v1::GetLoadResponse* response);

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_LOAD_TABLE_H_
