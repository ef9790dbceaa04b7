// Counts what happens to requests, steps and RPCs, as it happens. Numbers that the engine and the cache keep are read
// at each scrape instead: load_metrics.h.
//
// Thread-safe, without a lock: every call does a few relaxed atomic additions, so neither the engine nor a stream waits
// for a scrape.
//
// To add a metric of this kind:
//   1. Add a Counter or Histogram and an On... function below, and call the function where the event happens.
//   2. Add its family to a Collect... function in metrics.cc, under vLLM's name too if vLLM has one.
//   3. Run ./dev docs, which writes docs/metrics.md.
// load_table.h tells how to add a number that the engine counts.
#ifndef BERTH_SERVER_METRICS_METRICS_H_
#define BERTH_SERVER_METRICS_METRICS_H_

#include <grpcpp/support/status.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/load/engine_load.h"
#include "scheduler/refusal.h"
#include "scheduler/request.h"
#include "server/metrics/histogram.h"

namespace berth {

class MetricFamilies;

class Metrics {
 public:
  struct Options {
    std::string model_name;    // a label of every berth_ and vllm: series
    bool vllm_aliases = true;  // exports metrics under vLLM's names too
  };

  explicit Metrics(Options options);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Take what the health service says from now on of its services liveness and readiness.
  void OnLive(bool live) { live_.store(live, std::memory_order_relaxed); }
  void OnReady(bool ready) { ready_.store(ready, std::memory_order_relaxed); }
  // Counts a step of the engine.
  void OnStep(const StepStats& stats);
  // Counts a request that the engine accepted.
  void OnQueued(int64_t prompt_tokens);
  // Takes the times that came with a request's first token.
  void OnFirstToken(const RequestTimes& times);
  // Takes the time that a prompt took to tokenise, or a chat to render.
  void OnTokenised(absl::Duration time);
  void OnRendered(absl::Duration time);
  // Takes the time between two tokens of a request.
  void OnInterToken(absl::Duration gap);
  // completion_tokens: of all outputs, without those that were there before a session resumed.
  void OnFinished(FinishReason reason, const RequestTimes& times, int64_t prompt_tokens, int64_t completion_tokens,
                  int64_t num_outputs = 1);
  // Counts a refused request.
  void OnRejected(RefusalReason reason);
  // Counts a finished RPC. `service` is its full name, as in "berth.v1.Inference". Ignores services other than those
  // of berth.v1 and vLLM's engine contract.
  void OnRpc(std::string_view service, std::string_view method, grpc::StatusCode code, absl::Duration elapsed);

  // Adds every family, with every series, also those at 0.
  void Collect(MetricFamilies* families) const;

  const Options& options() const { return options_; }

 private:
  using Counter = std::atomic<int64_t>;
  struct Phase;
  struct Rpc;

  static constexpr int kNumFinishReasons = static_cast<int>(FinishReason::kError) + 1;
  static constexpr int kNumPhases = 3;

  void CollectHealth(MetricFamilies* families) const;
  void CollectRequests(MetricFamilies* families) const;
  void CollectRequestHistograms(MetricFamilies* families) const;
  void CollectSteps(MetricFamilies* families) const;
  void CollectRpcs(MetricFamilies* families) const;

  const Options options_;

  std::atomic<bool> live_{true};
  std::atomic<bool> ready_{false};
  Counter accepted_{0};
  Counter accepted_prompt_tokens_{0};
  std::array<Counter, kNumFinishReasons> finished_{};   // by FinishReason
  std::array<Counter, kNumRefusalReasons> rejected_{};  // by RefusalReason
  Histogram time_to_first_token_;
  Histogram inter_token_;
  Histogram tokenise_time_;
  Histogram render_time_;
  Histogram time_per_output_token_;
  Histogram end_to_end_;
  Histogram queue_time_;
  Histogram prefill_time_;
  Histogram decode_time_;
  Histogram lease_age_;
  Histogram request_prompt_tokens_;
  Histogram request_generation_tokens_;
  std::unique_ptr<Phase[]> phases_;
  std::vector<std::unique_ptr<Rpc>> rpcs_;  // all RPCs of the API; constant after construction
};

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_METRICS_H_
