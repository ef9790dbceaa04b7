#include "server/delivery/output_dispatcher.h"

#include <utility>

#include "base/signal_stack.h"

namespace berth {

OutputDispatcher::OutputDispatcher(Options options) : options_(std::move(options)), thread_([this] { Loop(); }) {}

OutputDispatcher::~OutputDispatcher() {
  {
    MutexLock lock(&queue_mutex_);
    closed_ = true;
  }
  queue_filled_.Signal();
  thread_.join();
}

void OutputDispatcher::Register(std::shared_ptr<RequestOutput> output) {
  MutexLock lock(&outputs_mutex_);
  const RequestKey key = output->key();
  outputs_[key] = std::move(output);
}

void OutputDispatcher::Unregister(RequestKey key) {
  MutexLock lock(&outputs_mutex_);
  outputs_.erase(key);
}

void OutputDispatcher::Deliver(std::vector<TokenEvent>* events) {
  if (events->empty()) return;
  const absl::Time now = options_.now();
  {
    MutexLock lock(&queue_mutex_);
    queue_.push_back(Batch{std::move(*events), now, std::nullopt});
    events->clear();
    if (!spare_.empty()) {
      events->swap(spare_.back());
      spare_.pop_back();
    }
  }
  queue_filled_.Signal();
}

void OutputDispatcher::DeliverSave(SaveEvent save) {
  const absl::Time now = options_.now();
  {
    MutexLock lock(&queue_mutex_);
    queue_.push_back(Batch{{}, now, std::move(save)});
  }
  queue_filled_.Signal();
}

void OutputDispatcher::OnStep(const StepStats& stats) { options_.on_step(stats); }

bool OutputDispatcher::Take(std::vector<Batch>* batches) {
  MutexLock lock(&queue_mutex_);
  for (Batch& done : *batches) {
    if (done.save.has_value()) continue;
    done.events.clear();
    if (spare_.size() < 4) spare_.push_back(std::move(done.events));
  }
  batches->clear();
  while (queue_.empty() && !closed_) queue_filled_.Wait(&queue_mutex_);
  batches->swap(queue_);
  return !batches->empty();
}

void OutputDispatcher::RouteSave(const SaveEvent& save, absl::Time time) {
  std::shared_ptr<RequestOutput> output;
  {
    MutexLock lock(&outputs_mutex_);
    if (const auto it = outputs_.find(save.key); it != outputs_.end()) output = it->second;
  }
  if (output != nullptr && !output->OnSaved(save, time)) Unregister(save.key);
}

void OutputDispatcher::Route(const Batch& batch) {
  if (batch.save.has_value()) return RouteSave(*batch.save, batch.time);
  found_.clear();
  {
    MutexLock lock(&outputs_mutex_);
    for (const TokenEvent& event : batch.events) {
      const auto it = outputs_.find(event.key);
      found_.push_back(it == outputs_.end() ? nullptr : it->second);
    }
  }
  for (size_t i = 0; i < batch.events.size(); ++i) {
    if (found_[i] == nullptr) continue;  // ended already, by a stop string
    if (!found_[i]->OnEvent(batch.events[i], batch.time)) Unregister(batch.events[i].key);
  }
  found_.clear();  // an ended output goes with its RPC, not with the next step
}

void OutputDispatcher::Loop() {
  const SignalStack signal_stack;
  std::vector<Batch> batches;
  while (Take(&batches)) {
    for (const Batch& batch : batches) Route(batch);
  }
}

}  // namespace berth
