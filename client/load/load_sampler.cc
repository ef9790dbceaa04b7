#include "client/load/load_sampler.h"

#include <grpcpp/client_context.h>

#include <utility>

namespace berth::cli {

LoadSample SampleOf(const v1::GetLoadResponse& load, double seconds) {
  LoadSample sample = {.seconds = seconds,
                       .running = load.running(),
                       .waiting = load.waiting(),
                       .arena_bytes = load.cache().arena_bytes()};
  for (const v1::PoolOccupancy& pool : load.cache().pools()) {
    sample.live_bytes += pool.live_bytes();
    sample.shared_bytes += pool.shared_bytes();
    sample.cached_bytes += pool.cached_bytes();
  }
  return sample;
}

LoadSampler::LoadSampler(v1::Control::StubInterface* stub, absl::Duration interval)
    : stub_(stub), interval_(interval), thread_([this] { Loop(); }) {}

LoadSampler::~LoadSampler() {
  if (thread_.joinable()) Stop();
}

std::vector<LoadSample> LoadSampler::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
  return std::move(samples_);
}

void LoadSampler::Loop() {
  for (;;) {
    grpc::ClientContext context;
    // A server that hangs does not hold up Stop for long.
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
    v1::GetLoadResponse load;
    const bool ok = stub_->GetLoad(&context, v1::GetLoadRequest(), &load).ok();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    if (ok) samples_.push_back(SampleOf(load, elapsed.count()));
    MutexLock lock(&mutex_);
    if (!stopping_) changed_.WaitFor(&mutex_, interval_);
    if (stopping_) return;
  }
}

}  // namespace berth::cli
