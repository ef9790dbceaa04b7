#include "scheduler/engine.h"

#include <algorithm>
#include <utility>

#include "absl/base/internal/raw_logging.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "scheduler/output_constraint.h"
#include "scheduler/signal_stack.h"
#include "scheduler/steady_clock.h"

namespace berth {
namespace {

// A device that fails this often in a row does not recover.
constexpr int kMaxFailedSteps = 3;
// How often to look at a disk that everybody waits for.
constexpr absl::Duration kDiskPollInterval = absl::Milliseconds(1);

StepLimits StepLimitsOf(const Scheduler& scheduler, const Scheduler::Options& options) {
  return {.step_tokens = options.max_step_tokens, .chunk_tokens = scheduler.prefill_chunk_tokens()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(Cache* cache, ModelRunner* runner, EventSink* sink,
                                                       Options options) {
  if (options.max_queue < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_queue is ", options.max_queue, "; at least 1 is needed"));
  }
  options.scheduler.vocab_size = runner->info().vocab_size;
  auto progress = std::make_shared<StepProgress>();
  options.scheduler.progress = progress.get();
  absl::StatusOr<std::unique_ptr<Scheduler>> scheduler = Scheduler::Create(cache, options.scheduler);
  if (!scheduler.ok()) return scheduler.status();
  return absl::WrapUnique(
      new Engine(cache, runner, sink, std::move(options), std::move(progress), *std::move(scheduler)));
}

Engine::Engine(Cache* cache, ModelRunner* runner, EventSink* sink, Options options,
               std::shared_ptr<StepProgress> progress, std::unique_ptr<Scheduler> scheduler)
    : cache_(cache),
      runner_(runner),
      sink_(sink),
      options_(std::move(options)),
      progress_(std::move(progress)),
      max_sequence_tokens_(scheduler->max_sequence_tokens()),
      max_encoder_tokens_(scheduler->max_encoder_tokens()),
      scheduler_(std::move(scheduler)) {
  PublishAndDeliver();
}

Engine::~Engine() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    if (refusal_.ok()) refusal_ = absl::UnavailableError("the engine is shutting down");
    work_.Signal();
  }
  if (thread_.joinable()) {
    thread_.join();
  } else {
    Loop();  // never started: only ends what was accepted
  }
}

void Engine::Start() {
  if (thread_.joinable()) ABSL_RAW_LOG(FATAL, "the engine is started twice");
  thread_ = std::thread([this] { Loop(); });
}

absl::Status Engine::Submit(Request request) {
  const int64_t vocab_size = runner_->info().vocab_size;
  absl::Status status = ValidateRequest(request, vocab_size, max_sequence_tokens_, max_encoder_tokens_);
  if (status.ok()) status = scheduler_->CheckRequest(request);
  if (status.ok()) status = ReplayProgress(&request);
  if (!status.ok()) return status;
  // Some checkpoints name end tokens beyond their vocabulary; a sampler could not ban those.
  std::erase_if(request.stop_token_ids, [&](int32_t token) { return token < 0 || token >= vocab_size; });

  QueueRequest known = {.num_tokens = static_cast<int64_t>(request.prompt.size() + request.encoder_tokens.size()),
                        .num_sequences = request.num_sequences(),
                        .shares_prefix = request.share_prefix,
                        .time_left = request.deadline - options_.now()};
  // A saved cache spares the prefill, if it still fits.
  const bool has_cache = request.progress != nullptr && !request.progress->snapshot.empty();
  if (has_cache) known.time_left = absl::InfiniteDuration();

  MutexLock lock(&mutex_);
  if (!refusal_.ok()) return refusal_;
  if (absl::Status s = CheckLimits(known, request.cache_salt, request.priority); !s.ok()) return s;
  ++num_open_;
  inbox_.num_tokens += known.num_tokens;
  AddToBacklog(request);
  inbox_.requests.push_back(std::move(request));
  work_.Signal();
  return absl::OkStatus();
}

absl::Status Engine::CheckArrival(absl::Time deadline, const std::string& tenant, int64_t priority) const {
  const absl::Duration time_left = deadline - options_.now();
  MutexLock lock(&mutex_);
  return refusal_.ok() ? CheckLimits({.time_left = time_left}, tenant, priority) : refusal_;
}

void Engine::AddToBacklog(const Request& request) {
  const int64_t num_tokens = static_cast<int64_t>(request.prompt.size() + request.encoder_tokens.size());
  backlog_.prefill_tokens += num_tokens;
  backlog_.num_sequences += request.num_sequences();
  if (!by_tenant_) return;
  const uint64_t tenant = TenantId(request.cache_salt);
  const auto of_tenant = [tenant](const TenantQueue& queue) { return queue.tenant == tenant; };
  auto queue = std::find_if(queues_.begin(), queues_.end(), of_tenant);
  if (queue == queues_.end()) {
    const auto less = [](const TenantQueue& a, const TenantQueue& b) { return a.counter < b.counter; };
    const auto least = std::min_element(queues_.begin(), queues_.end(), less);
    const double level = least == queues_.end() ? 0 : least->counter;
    queue = queues_.insert(queues_.end(), {.tenant = tenant, .counter = level});
  }
  queue->num_tokens += num_tokens;
  queue->num_sequences += request.num_sequences();
}

absl::Status Engine::CheckLimits(const QueueRequest& request, const std::string& tenant, int64_t priority) const {
  const QueueState queue = {.num_requests = load_.counts.num_new + static_cast<int64_t>(inbox_.requests.size()),
                            .num_tokens = load_.counts.waiting_tokens + inbox_.num_tokens,
                            .backlog = BacklogBefore(backlog_, queues_, TenantId(tenant), priority),
                            .rates = wait_rates_,
                            .step = StepLimitsOf(*scheduler_, options_.scheduler)};
  return CheckQueue(
      {.max_requests = options_.max_queue, .max_tokens = options_.max_queued_tokens, .max_wait = options_.max_wait},
      queue, request);
}

void Engine::CancelOutput(RequestKey key, int32_t output, FinishReason reason) {
  MutexLock lock(&mutex_);
  inbox_.cancels.push_back({.key = key, .output = output, .reason = reason});
  work_.Signal();
}

void Engine::SetPaused(RequestKey key, bool paused) {
  MutexLock lock(&mutex_);
  inbox_.pauses.emplace_back(key, paused);
  work_.Signal();
}

void Engine::Save(RequestKey key) {
  MutexLock lock(&mutex_);
  inbox_.saves.push_back(key);
  work_.Signal();
}

void Engine::DropPrefixes(std::optional<std::string> salt, DropCallback done) {
  MutexLock lock(&mutex_);
  inbox_.drops.push_back({.salt = std::move(salt), .done = std::move(done)});
  work_.Signal();
}

void Engine::WatchPrefixes(std::string salt, std::shared_ptr<PrefixLog> log, WatchCallback done) {
  MutexLock lock(&mutex_);
  inbox_.watches.push_back({.salt = std::move(salt), .log = std::move(log), .done = std::move(done)});
  work_.Signal();
}

void Engine::Drain() {
  MutexLock lock(&mutex_);
  if (refusal_.ok())
    refusal_ = absl::UnavailableError("the server is draining: it finishes its requests and accepts no new ones");
}

bool Engine::WaitUntilIdle(absl::Duration timeout) {
  // Not options_.now: this is about the threads.
  const absl::Time until = SteadyNow() + timeout;
  MutexLock lock(&mutex_);
  while (num_open_ > 0) {
    const absl::Duration left = until - SteadyNow();
    if (left <= absl::ZeroDuration()) return false;
    idle_.WaitFor(&mutex_, left);
  }
  return true;
}

EngineLoad Engine::GetLoad() const {
  MutexLock lock(&mutex_);
  EngineLoad load = load_;
  CountInbox(inbox_, &load.counts);
  const auto wait_ms = [&](const Backlog& before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const StepLimits step = StepLimitsOf(*scheduler_, options_.scheduler);
    return absl::ToInt64Milliseconds(absl::Ceil(PredictWait(wait_rates_, step, before, 1), absl::Milliseconds(1)));
  };
  load.predicted_wait_ms = wait_ms(backlog_);
  load.predicted_wait_new_tenant_ms = wait_ms(BacklogBefore(backlog_, queues_, kNewTenant, /*priority=*/0));
  return load;
}

void Engine::CountInbox(const Inbox& inbox, Scheduler::Counts* counts) {
  const auto num_requests = static_cast<int64_t>(inbox.requests.size());
  counts->num_waiting += num_requests;
  counts->num_new += num_requests;
  counts->waiting_tokens += inbox.num_tokens;
}

void Engine::Loop() {
  const SignalStack signal_stack;
  progress_->SetThread();
  while (TakeInbox()) Step();
  scheduler_->EndAll(FinishReason::kCancelled, absl::OkStatus(), options_.now(), &events_);
  DropTaken();
  scheduler_->SaveAll(options_.now());
  PublishAndDeliver();
  progress_->Enter(StepPhase::kIdle);
}

bool Engine::TakeInbox() {
  bool go_on = false;
  progress_->Enter(StepPhase::kIdle);
  {
    MutexLock lock(&mutex_);
    // While a sequence runs or waits, deadlines need no alarm: there is a step to come soon, and each looks at them.
    absl::Time due = absl::InfiniteFuture();  // of work without a sequence; some is due a while after it is asked for
    while (!stopping_ && !inbox_.urgent() && scheduler_->empty()) {
      const absl::Time now = options_.now();
      due = std::min(due, scheduler_->NextIdleWork(now));
      if (due <= now) break;
      if (due == absl::InfiniteFuture()) {
        work_.Wait(&mutex_);
      } else {
        work_.WaitFor(&mutex_, due - now);
      }
    }
    SwapInbox();
    go_on = !stopping_;
  }
  progress_->Enter(StepPhase::kPlan);
  EmptyTaken();
  return go_on;
}

void Engine::SwapInbox() {
  std::swap(inbox_, taken_);
  CountInbox(taken_, &load_.counts);
}

void Engine::EmptyTaken() {
  for (Request& request : taken_.requests) {
    if (!Replay(request)) scheduler_->Add(std::move(request));
  }
  for (const Cancellation& cancel : taken_.cancels) scheduler_->Cancel(cancel.key, cancel.reason, cancel.output);
  for (const auto& [key, paused] : taken_.pauses) {
    if (paused) {
      scheduler_->Pause(key, options_.now() + options_.unread_timeout);
    } else {
      scheduler_->Unpause(key);
    }
  }
  for (RequestKey key : taken_.saves) scheduler_->Save(key);
  WatchTaken();
  taken_.requests.clear();
  taken_.cancels.clear();
  taken_.pauses.clear();
  taken_.saves.clear();
  taken_.num_tokens = 0;
}

void Engine::DropTaken() {
  if (taken_.drops.empty()) return;
  std::vector<FreedBytes> freed;
  for (const Drop& drop : taken_.drops) freed.push_back(scheduler_->DropPrefixes(drop.salt));
  PublishAndDeliver();  // who sees the end of a drop also sees its bytes
  for (size_t i = 0; i < freed.size(); ++i) {
    scheduler_->CallWhenGone([freed = freed[i], done = std::move(taken_.drops[i].done)](const absl::Status& status) {
      done(freed, status);
    });
  }
  taken_.drops.clear();
}

void Engine::WatchTaken() {
  for (const Watch& watch : taken_.watches) {
    if (watch.log == nullptr) {
      cache_->UnwatchPrefixes(watch.salt);
    } else {
      watch.done(cache_->WatchPrefixes(watch.salt, watch.log));
    }
  }
  taken_.watches.clear();
}

bool Engine::Replay(const Request& request) {
  if (request.progress == nullptr) return false;
  const Progress& progress = *request.progress;
  const auto add = [&]() -> TokenEvent& {
    TokenEvent& event = events_.emplace_back();
    event.key = request.key;
    event.replayed = true;
    return event;
  };
  for (size_t i = 0; i < progress.tokens.size(); ++i) {
    TokenEvent& event = add();
    event.token = progress.tokens[i];
    if (i + 1 == progress.tokens.size()) event.stop_token = progress.stop_token;
    if (i >= progress.logprobs.size()) continue;
    event.logprob = progress.logprobs[i].logprob;
    event.top = progress.logprobs[i].top;
  }
  if (progress.finish == FinishReason::kNone) return false;
  TokenEvent& end = add();
  end.finish = progress.finish;
  end.stop_token = progress.stop_token;
  end.times = {.arrival = request.arrival, .finished = options_.now()};
  SaveSink* const sink = options_.scheduler.save_sink;
  if (request.saved && sink != nullptr) sink->Take({.key = request.key, .last = true});
  return true;
}

void Engine::Step() {
  const absl::Time start = options_.now();
  scheduler_->EndDue(start, &events_);
  if (!events_.empty()) PublishAndDeliver();  // a cancelled request does not wait for the step
  DropTaken();
  progress_->Enter(StepPhase::kPlan);  // again, after a delivery
  if (scheduler_->empty()) {
    scheduler_->RunIdleWork(start);
    return PublishAndDeliver();
  }
  const Scheduler::Counts before = scheduler_->counts();
  const int64_t evicted = num_evicted_units_;
  const StepPlan& plan = scheduler_->Plan(start);
  const absl::Time planned = options_.now();
  {
    MutexLock lock(&mutex_);
    PublishCounts();
  }
  if (plan.empty()) return WaitForDisk();
  progress_->SetPlan(static_cast<int64_t>(plan.rows.size()), plan.num_tokens);
  progress_->Enter(StepPhase::kRun);
  StepRecord record = {.number = num_run_ + 1,
                       .start_us = absl::ToUnixMicros(start),
                       .plan_us = absl::ToInt64Microseconds(planned - start),
                       .rows = static_cast<int64_t>(plan.rows.size()),
                       .decode_rows = plan.num_decode_rows,
                       .tokens = plan.num_tokens,
                       .running = before.num_running,
                       .waiting = before.num_waiting};
  recorder_.Add(record);
  const absl::Status status = RunStep(plan);
  const absl::Time end = options_.now();
  record.run_us = absl::ToInt64Microseconds(end - planned);
  record.failed = status.ok() ? 0 : 1;
  progress_->Enter(StepPhase::kCommit);
  if (status.ok()) {
    num_failed_in_a_row_ = 0;
    ++num_steps_;
    sink_->OnStep({.duration = end - start,
                   .num_tokens = plan.num_tokens,
                   .num_rows = static_cast<int64_t>(plan.rows.size()),
                   .num_decode_rows = plan.num_decode_rows});
    Measure(plan, end - start);
    scheduler_->Commit(result_, end, &events_);
  } else {
    FailStep(status, end);
  }
  PublishAndDeliver();
  record.commit_us = absl::ToInt64Microseconds(options_.now() - end);
  Record(record, before, evicted);
}

void Engine::Record(StepRecord record, const Scheduler::Counts& before, int64_t evicted_before) {
  const Scheduler::Counts& counts = scheduler_->counts();
  record.preemptions = counts.num_preemptions - before.num_preemptions;
  record.swap_outs = counts.num_swap_outs - before.num_swap_outs;
  record.evicted_units = num_evicted_units_ - evicted_before;
  record.free_bytes = cache_->available_bytes();
  recorder_.ReplaceNewest(record);
}

absl::Status Engine::MadeToFail(bool after) const {
  const int64_t every = options_.fail_step_every;
  if (every == 0 || num_run_ % every != 0 || (num_run_ / every % 2 == 0) != after) return absl::OkStatus();
  return absl::InternalError("a step was made to fail by --fail_step_every");
}

void Engine::Measure(const StepPlan& plan, absl::Duration time) {
  const int64_t num_past_prompt = plan.num_rows_past_prompt();
  wait_estimator_.OnStep(time, plan.num_tokens - num_past_prompt, num_past_prompt);
  const Scheduler::Counts& counts = scheduler_->counts();
  wait_estimator_.OnPrefixes(counts.prefix_queried_tokens, counts.prefix_hit_tokens);
}

absl::Status Engine::RunStep(const StepPlan& plan) {
  const ArenaStorage& arena = cache_->storage();
  if (absl::Status s = arena.status(); !s.ok()) return s;
  ++num_run_;
  if (absl::Status s = MadeToFail(/*after=*/false); !s.ok()) return s;
  if (absl::Status s = runner_->Run(plan, &result_); !s.ok()) return s;
  if (absl::Status s = MadeToFail(/*after=*/true); !s.ok()) return s;
  if (result_.rows.size() != plan.rows.size()) {
    return absl::InternalError(
        absl::StrCat("the model gave ", result_.rows.size(), " results for ", plan.rows.size(), " rows"));
  }
  return arena.status();
}

void Engine::WaitForDisk() {
  MutexLock lock(&mutex_);
  if (!stopping_ && !inbox_.urgent()) work_.WaitFor(&mutex_, kDiskPollInterval);
}

void Engine::FailStep(const absl::Status& error, absl::Time now) {
  ++num_failed_steps_;
  const bool lost = absl::IsDataLoss(error);
  if (lost) options_.on_device_lost(error);
  const bool undecided = scheduler_->FailStep(error, now, &events_);
  if (!lost && (undecided || ++num_failed_in_a_row_ < kMaxFailedSteps)) return;
  const std::string why = lost ? "the device was lost"
                               : absl::StrCat("the engine stopped after ", kMaxFailedSteps, " failed steps in a row");
  const absl::Status refusal = absl::UnavailableError(absl::StrCat(why, ": ", error.ToString()));
  {
    MutexLock lock(&mutex_);
    healthy_.store(false, std::memory_order_release);
    refusal_ = refusal;
    SwapInbox();
  }
  EmptyTaken();
  scheduler_->EndAll(FinishReason::kError, refusal, now, &events_);
  DropTaken();
}

void Engine::PublishCounts() {
  load_.counts = scheduler_->counts();
  load_.host_tier = scheduler_->host_tier();
  load_.prefix_tier = scheduler_->prefix_tier().counts();
  load_.disk_tier_limit_bytes = scheduler_->prefix_tier().disk_limit_bytes();
  load_.num_steps = num_steps_;
  load_.num_failed_steps = num_failed_steps_;
  backlog_ = scheduler_->backlog();
  by_tenant_ = scheduler_->GetQueues(&queues_);
  for (const Request& request : inbox_.requests) AddToBacklog(request);
  wait_rates_ = wait_estimator_.rates();
}

void Engine::PublishAndDeliver() {
  if (options_.check_integrity) {
    const absl::Status status = cache_->CheckIntegrity();
    if (!status.ok()) ABSL_RAW_LOG(FATAL, "the cache's ledger is broken: %s", status.ToString().c_str());
  }
  for (const TokenEvent& event : events_) {
    if (event.finish == FinishReason::kNone || event.times.first_scheduled == absl::InfinitePast()) continue;
    wait_estimator_.OnSequenceEnd(event.times.finished - event.times.first_scheduled);
  }
  cache_->GetOccupancy(scheduler_->prefill_chunk_tokens(), max_sequence_tokens_, &occupancy_, max_encoder_tokens_);
  num_evicted_units_ = 0;
  for (const PoolOccupancy& pool : occupancy_.pools) num_evicted_units_ += pool.evicted_units;
  const int64_t num_device_allocations = runner_->num_device_allocations();  // the allocator has a lock of its own
  {
    MutexLock lock(&mutex_);
    PublishCounts();
    load_.num_device_allocations = num_device_allocations;
    load_.num_graph_launches = runner_->num_graph_launches();
    load_.num_graph_refusals = runner_->num_graph_refusals();
    std::swap(load_.occupancy, occupancy_);
  }
  cache_->PublishPrefixLog();
  const auto ends = [](const TokenEvent& event) {
    return event.finish != FinishReason::kNone && event.outputs_left == 0;
  };
  const int64_t num_ended = std::count_if(events_.begin(), events_.end(), ends);
  progress_->Enter(StepPhase::kDeliver);
  if (!events_.empty()) sink_->Deliver(&events_);
  events_.clear();
  if (num_ended == 0) return;
  MutexLock lock(&mutex_);
  num_open_ -= num_ended;
  if (num_open_ == 0) idle_.SignalAll();
}

}  // namespace berth
