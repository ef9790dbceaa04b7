#include "server/metrics/metrics.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "berth/v1/control.pb.h"
#include "berth/v1/inference.pb.h"
#include "berth/v1/sessions.pb.h"
#include "server/metrics/metric_families.h"
#include "vllm/engine.pb.h"

namespace berth {
namespace {

using Type = MetricFamilies::Type;

// vLLM's buckets: its dashboards and quantiles work here unchanged.
constexpr double kFirstTokenSeconds[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                         1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
constexpr double kTokenSeconds[] = {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3,
                                    .4,   .5,    .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80};
constexpr double kRequestSeconds[] = {.01, .05, .1, .3, .5, .8, 1,   1.5, 2,   2.5, 5,    10,
                                      15,  20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
constexpr double kStepTokens[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr double kStepRows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
constexpr double kRequestTokens[] = {1,    2,    5,    10,    20,    50,    100,    200,    500,
                                     1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};

constexpr FinishReason kFinishReasons[] = {FinishReason::kStop,     FinishReason::kLength, FinishReason::kCancelled,
                                           FinishReason::kDeadline, FinishReason::kUnread, FinishReason::kError};
constexpr std::string_view kPhases[] = {"prefill", "decode", "mixed"};
enum { kPrefill, kDecode, kMixed };

// Status codes as gRPC's Prometheus interceptors name them, by number.
constexpr int kNumCodes = 17;
constexpr std::string_view kCodeNames[kNumCodes] = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};

bool Happened(absl::Time time) { return time != absl::InfinitePast(); }

// A clock that is set back gives a negative duration, which would corrupt the sum for good.
void ObserveSpan(Histogram* histogram, absl::Duration span) {
  histogram->Observe(std::max(0.0, absl::ToDoubleSeconds(span)));
}

}  // namespace

struct Metrics::Phase {
  Histogram seconds{kTokenSeconds};
  Histogram tokens{kStepTokens};
  Histogram rows{kStepRows};
};

struct Metrics::Rpc {
  std::string service;
  std::string method;
  std::string type;  // "unary", "server_stream"
  std::array<Counter, kNumCodes> handled{};
  Histogram seconds{kRequestSeconds};
};

Metrics::Metrics(Options options)
    : options_(std::move(options)),
      time_to_first_token_(kFirstTokenSeconds),
      inter_token_(kTokenSeconds),
      tokenise_time_(kTokenSeconds),
      render_time_(kTokenSeconds),
      time_per_output_token_(kTokenSeconds),
      end_to_end_(kRequestSeconds),
      queue_time_(kRequestSeconds),
      prefill_time_(kRequestSeconds),
      decode_time_(kRequestSeconds),
      lease_age_(kRequestSeconds),
      request_prompt_tokens_(kRequestTokens),
      request_generation_tokens_(kRequestTokens),
      phases_(std::make_unique<Phase[]>(kNumPhases)) {
  static_assert(std::size(kPhases) == kNumPhases);
  // All RPCs of the API's files, so a new one needs no line here.
  for (const google::protobuf::FileDescriptor* file :
       {v1::GenerateRequest::descriptor()->file(), v1::GetLoadRequest::descriptor()->file(),
        v1::ListSessionsRequest::descriptor()->file(), ::vllm::grpc::engine::GenerateRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const google::protobuf::ServiceDescriptor& service = *file->service(s);
      for (int m = 0; m < service.method_count(); ++m) {
        auto rpc = std::make_unique<Rpc>();
        rpc->service = service.full_name();
        rpc->method = service.method(m)->name();
        rpc->type = service.method(m)->server_streaming() ? "server_stream" : "unary";
        rpcs_.push_back(std::move(rpc));
      }
    }
  }
}

Metrics::~Metrics() = default;

void Metrics::OnStep(const StepStats& stats) {
  const int phase = stats.num_decode_rows == 0 ? kPrefill : stats.num_decode_rows == stats.num_rows ? kDecode : kMixed;
  ObserveSpan(&phases_[phase].seconds, stats.duration);
  phases_[phase].tokens.Observe(static_cast<double>(stats.num_tokens));
  phases_[phase].rows.Observe(static_cast<double>(stats.num_rows));
}

void Metrics::OnQueued(int64_t prompt_tokens) {
  accepted_.fetch_add(1, std::memory_order_relaxed);
  accepted_prompt_tokens_.fetch_add(prompt_tokens, std::memory_order_relaxed);
}

void Metrics::OnFirstToken(const RequestTimes& times) {
  ObserveSpan(&time_to_first_token_, times.first_token - times.arrival);
}

void Metrics::OnTokenised(absl::Duration time) { ObserveSpan(&tokenise_time_, time); }

void Metrics::OnRendered(absl::Duration time) { ObserveSpan(&render_time_, time); }

void Metrics::OnInterToken(absl::Duration gap) { ObserveSpan(&inter_token_, gap); }

void Metrics::OnFinished(FinishReason reason, const RequestTimes& times, int64_t prompt_tokens,
                         int64_t completion_tokens, int64_t num_outputs) {
  if (const auto index = static_cast<size_t>(reason); index < finished_.size()) {
    finished_[index].fetch_add(1, std::memory_order_relaxed);
  }
  request_prompt_tokens_.Observe(static_cast<double>(prompt_tokens));
  request_generation_tokens_.Observe(static_cast<double>(completion_tokens));
  if (!Happened(times.finished)) return;
  ObserveSpan(&end_to_end_, times.finished - times.arrival);
  // A request that never ran waited from its arrival to its end.
  ObserveSpan(&queue_time_, (Happened(times.first_scheduled) ? times.first_scheduled : times.finished) - times.arrival);
  if (!Happened(times.first_scheduled)) return;
  ObserveSpan(&lease_age_, times.finished - times.first_scheduled - times.paused);
  if (!Happened(times.first_token)) return;
  ObserveSpan(&prefill_time_, times.first_token - times.first_scheduled);
  ObserveSpan(&decode_time_, times.finished - times.first_token);
  // Outputs of one request are generated side by side, and their first tokens together.
  const int64_t later_tokens = completion_tokens - num_outputs;
  if (later_tokens > 0) {
    const absl::Duration decoding = times.finished - times.first_token - times.paused;
    ObserveSpan(&time_per_output_token_, decoding * num_outputs / later_tokens);
  }
}

void Metrics::OnRejected(RefusalReason reason) {
  rejected_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
}

void Metrics::OnRpc(std::string_view service, std::string_view method, grpc::StatusCode code, absl::Duration elapsed) {
  if (code < 0 || code >= kNumCodes) return;
  for (const auto& rpc : rpcs_) {
    if (rpc->method != method || rpc->service != service) continue;
    rpc->handled[code].fetch_add(1, std::memory_order_relaxed);
    ObserveSpan(&rpc->seconds, elapsed);
    return;
  }
}

void Metrics::Collect(MetricFamilies* families) const {
  families->StartSection("Health");
  CollectHealth(families);
  families->StartSection("Requests");
  CollectRequests(families);
  CollectRequestHistograms(families);
  families->StartSection("Steps");
  CollectSteps(families);
  families->StartSection("gRPC");
  CollectRpcs(families);
}

void Metrics::CollectHealth(MetricFamilies* families) const {
  families->Start(
      Type::kGauge, "berth_health",
      "1 if the probe of the health service succeeds. liveness at 0: restart the server. readiness at 0: it "
      "takes no requests, because it drains or is not live");
  families->Add(live_.load(std::memory_order_relaxed) ? 1 : 0, {{"probe", "liveness"}});
  families->Add(ready_.load(std::memory_order_relaxed) ? 1 : 0, {{"probe", "readiness"}});
}

void Metrics::CollectRequests(MetricFamilies* families) const {
  families->Start(Type::kCounter, "berth_requests_accepted_total", "Requests accepted by the engine");
  families->Add(static_cast<double>(accepted_.load(std::memory_order_relaxed)));
  families->Start(Type::kCounter, "berth_requests_accepted_prompt_tokens_total", "Prompt tokens of accepted requests");
  families->Add(static_cast<double>(accepted_prompt_tokens_.load(std::memory_order_relaxed)));

  std::array<double, kNumFinishReasons> finished;
  for (size_t i = 0; i < finished.size(); ++i) {
    finished[i] = static_cast<double>(finished_[i].load(std::memory_order_relaxed));
  }
  const auto of = [&finished](FinishReason reason) { return finished[static_cast<size_t>(reason)]; };
  families->Start(Type::kCounter, "berth_requests_finished_total", "Accepted requests that ended, by reason");
  for (FinishReason reason : kFinishReasons) {
    families->Add(of(reason), {{"finish_reason", std::string(FinishReasonName(reason))}});
  }
  families->Start(Type::kCounter, "vllm:request_success_total",
                  "Accepted requests that ended, by vLLM's reasons; abort: cancelled, past the deadline or unread");
  families->Add(of(FinishReason::kStop), {{"finished_reason", "stop"}});
  families->Add(of(FinishReason::kLength), {{"finished_reason", "length"}});
  families->Add(of(FinishReason::kCancelled) + of(FinishReason::kDeadline) + of(FinishReason::kUnread),
                {{"finished_reason", "abort"}});
  families->Add(of(FinishReason::kError), {{"finished_reason", "error"}});
  families->Start(Type::kCounter, "berth_requests_rejected_total", "Requests refused, by reason");
  for (size_t i = 0; i < kNumRefusalReasons; ++i) {
    families->Add(static_cast<double>(rejected_[i].load(std::memory_order_relaxed)),
                  {{"reason", std::string(kRefusalReasons[i])}});
  }
}

void Metrics::CollectRequestHistograms(MetricFamilies* families) const {
  const auto add = [families](absl::string_view name, absl::string_view help, const Histogram& histogram,
                              absl::string_view alias = "") {
    families->Start(Type::kHistogram, name, help, alias);
    families->Add(histogram.Read());
  };
  add("berth_time_to_first_token_seconds", "Time from a request's arrival to its first token", time_to_first_token_,
      "vllm:time_to_first_token_seconds");
  add("berth_inter_token_latency_seconds", "Time between two tokens of a request", inter_token_,
      "vllm:inter_token_latency_seconds");
  add("berth_request_time_per_output_token_seconds",
      "Mean time per token of a request, without its first token and the pauses for its client", time_per_output_token_,
      "vllm:request_time_per_output_token_seconds");
  add("berth_e2e_request_latency_seconds", "Time from a request's arrival to its end", end_to_end_,
      "vllm:e2e_request_latency_seconds");
  add("berth_request_queue_time_seconds", "Time from a request's arrival to its first step", queue_time_,
      "vllm:request_queue_time_seconds");
  add("berth_request_prefill_time_seconds", "Time from a request's first step to its first token", prefill_time_,
      "vllm:request_prefill_time_seconds");
  add("berth_request_decode_time_seconds", "Time from a request's first token to its end", decode_time_,
      "vllm:request_decode_time_seconds");
  add("berth_cache_lease_age_seconds",
      "Time from a request's first step to its end, without the pauses for its client: it holds cache, or waits for "
      "cache after a preemption",
      lease_age_);
  add("berth_tokenise_time_seconds", "Time that a text took to tokenise, without its wait for a thread",
      tokenise_time_);
  add("berth_render_time_seconds", "Time that a chat took to render, without its wait for a thread", render_time_);
  add("berth_request_prompt_tokens", "Prompt tokens of a finished request", request_prompt_tokens_,
      "vllm:request_prompt_tokens");
  add("berth_request_generation_tokens", "Tokens generated for a finished request", request_generation_tokens_,
      "vllm:request_generation_tokens");
}

void Metrics::CollectSteps(MetricFamilies* families) const {
  const auto label = [](int phase) { return MetricFamilies::Labels{{"phase", std::string(kPhases[phase])}}; };
  families->Start(Type::kHistogram, "berth_step_seconds", "Duration of a step");
  for (int i = 0; i < kNumPhases; ++i) families->Add(phases_[i].seconds.Read(), label(i));
  families->Start(Type::kHistogram, "berth_step_rows", "Sequences in a step");
  for (int i = 0; i < kNumPhases; ++i) families->Add(phases_[i].rows.Read(), label(i));

  std::array<HistogramSnapshot, kNumPhases> tokens;
  for (int i = 0; i < kNumPhases; ++i) tokens[i] = phases_[i].tokens.Read();
  families->Start(Type::kHistogram, "berth_step_tokens", "Tokens computed in a step");
  for (int i = 0; i < kNumPhases; ++i) families->Add(tokens[i], label(i));
  for (int i = 1; i < kNumPhases; ++i) tokens[0].Merge(tokens[i]);
  families->Start(Type::kHistogram, "vllm:iteration_tokens_total", "Tokens computed in a step of any phase");
  families->Add(tokens[0]);
}

void Metrics::CollectRpcs(MetricFamilies* families) const {
  const auto labels = [](const Rpc& rpc) {
    return MetricFamilies::Labels{{"grpc_type", rpc.type}, {"grpc_service", rpc.service}, {"grpc_method", rpc.method}};
  };
  families->Start(Type::kCounter, "grpc_server_handled_total", "Calls that ended, by status code");
  for (const auto& rpc : rpcs_) {
    for (int code = 0; code < kNumCodes; ++code) {
      MetricFamilies::Labels all = labels(*rpc);
      all.push_back({"grpc_code", std::string(kCodeNames[code])});
      families->Add(static_cast<double>(rpc->handled[code].load(std::memory_order_relaxed)), std::move(all));
    }
  }
  families->Start(Type::kHistogram, "grpc_server_handling_seconds", "Duration of a call");
  for (const auto& rpc : rpcs_) families->Add(rpc->seconds.Read(), labels(*rpc));
}

}  // namespace berth
