// Asks a server for its load a few times a second while a load test runs, on a thread of its own. A call that fails
// leaves out a sample. Thread-safe.
#ifndef BERTH_CLIENT_LOAD_LOAD_SAMPLER_H_
#define BERTH_CLIENT_LOAD_LOAD_SAMPLER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "berth/v1/control.grpc.pb.h"

namespace berth::cli {

struct LoadSample {
  double seconds = 0;  // since the sampler's start
  int64_t running = 0;
  int64_t waiting = 0;
  // Bytes of the cache's arena, of all pools. What they leave of arena_bytes is free.
  int64_t arena_bytes = 0;
  int64_t live_bytes = 0;
  int64_t shared_bytes = 0;
  int64_t cached_bytes = 0;
};

LoadSample SampleOf(const v1::GetLoadResponse& load, double seconds);

class LoadSampler {
 public:
  // `stub` must outlive the sampler.
  LoadSampler(v1::Control::StubInterface* stub, absl::Duration interval);
  ~LoadSampler();
  LoadSampler(const LoadSampler&) = delete;
  LoadSampler& operator=(const LoadSampler&) = delete;

  // Ends the sampling, and returns the samples in order. Call it once.
  std::vector<LoadSample> Stop();

 private:
  void Loop();

  v1::Control::StubInterface* const stub_;
  const absl::Duration interval_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<LoadSample> samples_;  // of the thread until it has ended
  std::thread thread_;
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_LOAD_SAMPLER_H_
