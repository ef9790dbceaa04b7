// What the server counts as things happen. The gauges are not here: a scrape takes them from the engine
// (load_metrics.h).
//
// Thread-safe, without a lock: every call is a few relaxed atomic additions, so that neither the engine nor a stream
// waits for a scrape.
//
// To add a metric: 1. a counter or Histogram below; 2. its On... call; 3. its line in Collect, with the name other
// servers have for it; 4. its row in tests/server/metrics/metrics_test.cc, which checks that it exists at 0.
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
#include "scheduler/engine.h"
#include "scheduler/request.h"
#include "server/metrics/histogram.h"

namespace berth {

class MetricFamilies;

class Metrics {
 public:
  struct Options {
    std::string model_name;    // the label that every berth_ series has
    bool vllm_aliases = true;  // the same figures under vLLM's names too
  };

  explicit Metrics(Options options);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // One step of the engine.
  void OnStep(const StepStats& stats);
  // The engine took a request.
  void OnQueued(int64_t prompt_tokens);
  // `times` as they came with the first token.
  void OnFirstToken(const RequestTimes& times);
  // Between two tokens of one request.
  void OnInterToken(absl::Duration gap);
  void OnFinished(FinishReason reason, const RequestTimes& times, int64_t prompt_tokens, int64_t completion_tokens);
  // "queue_full", "too_long", "quota", "invalid", "draining", "unauthenticated"; any other counts as "other", so that
  // the label stays bounded.
  void OnRejected(std::string_view reason);
  // `service`: its full name, as "berth.v1.Inference". RPCs outside berth.v1 are not counted.
  void OnRpc(std::string_view service, std::string_view method, grpc::StatusCode code, absl::Duration elapsed);

  // Adds every family, series at 0 included.
  void Collect(MetricFamilies* families) const;

  const Options& options() const { return options_; }

 private:
  using Counter = std::atomic<int64_t>;
  struct Phase;
  struct Rpc;

  static constexpr int kNumFinishReasons = 6;
  static constexpr int kNumRejectReasons = 7;
  static constexpr int kNumPhases = 3;

  void CollectRequests(MetricFamilies* families) const;
  void CollectSteps(MetricFamilies* families) const;
  void CollectRpcs(MetricFamilies* families) const;

  const Options options_;

  Counter accepted_{0};
  Counter accepted_prompt_tokens_{0};
  std::array<Counter, kNumFinishReasons> finished_{};  // by FinishReason
  std::array<Counter, kNumRejectReasons> rejected_{};
  Histogram time_to_first_token_;
  Histogram inter_token_;
  Histogram time_per_output_token_;
  Histogram end_to_end_;
  Histogram queue_time_;
  Histogram prefill_time_;
  Histogram decode_time_;
  Histogram lease_age_;
  Histogram request_prompt_tokens_;
  Histogram request_generation_tokens_;
  std::unique_ptr<Phase[]> phases_;
  std::vector<std::unique_ptr<Rpc>> rpcs_;  // every RPC of the API; the vector never changes after construction
};

}  // namespace berth

#endif  // BERTH_SERVER_METRICS_METRICS_H_
