#include "scheduler/engine.h"

#include <algorithm>
#include <future>
#include <utility>

#include "absl/base/internal/raw_logging.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/signal_stack.h"
#include "base/steady_clock.h"
#include "scheduler/output/output_constraint.h"

namespace berth {
namespace {

// A device that fails this often in a row does not recover.
constexpr int kMaxFailedSteps = 3;
// How often to look at a disk that everybody waits for.
constexpr absl::Duration kDiskPollInterval = absl::Milliseconds(1);

// The tokens of the prompt, for encoder and decoder.
int64_t NumTokens(const Request& request) {
  return static_cast<int64_t>(request.prompt.size() + request.encoder_tokens.size());
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
      faulty_runner_(options.fail_step_every > 0 ? std::make_unique<FaultyRunner>(runner, options.fail_step_every)
                                                 : nullptr),
      runner_(faulty_runner_ != nullptr ? faulty_runner_.get() : runner),
      sink_(sink),
      options_(std::move(options)),
      progress_(std::move(progress)),
      max_sequence_tokens_(scheduler->max_sequence_tokens()),
      max_encoder_tokens_(scheduler->max_encoder_tokens()),
      outlook_({.step_tokens = options_.scheduler.max_step_tokens, .chunk_tokens = scheduler->prefill_chunk_tokens()}),
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
  Start([] { return absl::OkStatus(); }).IgnoreError();
}

absl::Status Engine::Start(const std::function<absl::Status()>& first) {
  if (thread_.joinable()) ABSL_RAW_LOG(FATAL, "the engine is started twice");
  std::promise<absl::Status> promise;
  std::future<absl::Status> result = promise.get_future();
  // `first` is there until the promise is kept.
  thread_ = std::thread([this, &first, promise = std::move(promise)]() mutable {
    const SignalStack signal_stack;
    promise.set_value(first());
    Loop();
  });
  return result.get();
}

absl::Status Engine::Submit(Request request) {
  const int64_t vocab_size = runner_->info().vocab_size;
  absl::Status status = ValidateRequest(request, vocab_size, max_sequence_tokens_, max_encoder_tokens_);
  if (status.ok()) status = scheduler_->CheckRequest(request);
  if (status.ok()) status = ReplayProgress(&request);
  if (!status.ok()) return status;
  // Some checkpoints name end tokens beyond their vocabulary; a sampler could not ban those.
  std::erase_if(request.stop_token_ids, [&](int32_t token) { return token < 0 || token >= vocab_size; });

  QueueRequest known = {.num_tokens = NumTokens(request),
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
  outlook_.Add(request.cache_salt, known.num_tokens, known.num_sequences);
  inbox_.requests.push_back(std::move(request));
  work_.Signal();
  return absl::OkStatus();
}

absl::Status Engine::CheckArrival(absl::Time deadline, const std::string& tenant, int64_t priority) const {
  const absl::Duration time_left = deadline - options_.now();
  MutexLock lock(&mutex_);
  return refusal_.ok() ? CheckLimits({.time_left = time_left}, tenant, priority) : refusal_;
}

absl::Status Engine::CheckLimits(const QueueRequest& request, const std::string& tenant, int64_t priority) const {
  QueueState queue = outlook_.Before(tenant, priority);
  queue.num_requests = load_.counts.num_new + static_cast<int64_t>(inbox_.requests.size());
  queue.num_tokens = load_.counts.waiting_tokens + inbox_.num_tokens;
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
  inbox_.AddTo(&load.counts);
  const auto in_ms = [](absl::Duration wait) {
    return absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1)));
  };
  load.predicted_wait_ms = in_ms(outlook_.Wait());
  load.predicted_wait_new_tenant_ms = in_ms(outlook_.WaitOfNewTenant());
  return load;
}

void Engine::Loop() {
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
  taken_.AddTo(&load_.counts);
}

void Engine::EmptyTaken() {
  for (Request& request : taken_.requests) {
    if (!Replay(request)) scheduler_->Add(std::move(request));
  }
  for (const EngineInbox::Cancellation& cancel : taken_.cancels)
    scheduler_->Cancel(cancel.key, cancel.reason, cancel.output);
  for (const auto& [key, paused] : taken_.pauses) {
    if (paused) {
      scheduler_->Pause(key, options_.now(), options_.unread_timeout);
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
  for (const EngineInbox::Drop& drop : taken_.drops) freed.push_back(scheduler_->DropPrefixes(drop.salt));
  PublishAndDeliver();  // who sees the end of a drop also sees its bytes
  for (size_t i = 0; i < freed.size(); ++i) {
    scheduler_->CallWhenGone([freed = freed[i], done = std::move(taken_.drops[i].done)](const absl::Status& status) {
      done(freed, status);
    });
  }
  taken_.drops.clear();
}

void Engine::WatchTaken() {
  for (const EngineInbox::Watch& watch : taken_.watches) {
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
  if (!Begin(start)) return;
  const StepPlan& plan = Plan(start);
  if (plan.empty()) return WaitForDisk();
  Commit(plan, Run(plan));
  PublishAndDeliver();
  step_log_.End(options_.now(), scheduler_->counts(), num_evicted_units_, cache_->available_bytes());
}

bool Engine::Begin(absl::Time now) {
  scheduler_->EndDue(now, &events_);
  if (!events_.empty()) PublishAndDeliver();  // a cancelled request does not wait for the step
  DropTaken();
  progress_->Enter(StepPhase::kPlan);  // again, after a delivery
  if (!scheduler_->empty()) return true;
  scheduler_->RunIdleWork(now);
  PublishAndDeliver();
  return false;
}

const StepPlan& Engine::Plan(absl::Time now) {
  step_log_.Begin(now, scheduler_->counts(), num_evicted_units_);
  const StepPlan& plan = scheduler_->Plan(now);
  step_log_.OnPlan(options_.now(), plan);
  MutexLock lock(&mutex_);
  PublishCounts();
  return plan;
}

absl::Status Engine::Run(const StepPlan& plan) {
  progress_->SetPlan(static_cast<int64_t>(plan.rows.size()), plan.num_tokens);
  progress_->Enter(StepPhase::kRun);
  const ArenaStorage& arena = cache_->storage();
  if (absl::Status s = arena.status(); !s.ok()) return s;
  if (absl::Status s = runner_->Run(plan, &result_); !s.ok()) return s;
  if (result_.rows.size() != plan.rows.size()) {
    return absl::InternalError(
        absl::StrCat("the model gave ", result_.rows.size(), " results for ", plan.rows.size(), " rows"));
  }
  return arena.status();
}

void Engine::Commit(const StepPlan& plan, const absl::Status& status) {
  const absl::Time now = options_.now();
  const StepStats stats = step_log_.OnRun(now, plan, scheduler_->counts(), /*failed=*/!status.ok());
  progress_->Enter(StepPhase::kCommit);
  if (!status.ok()) return FailStep(status, now);
  num_failed_in_a_row_ = 0;
  sink_->OnStep(stats);
  scheduler_->Commit(result_, now, &events_);
}

void Engine::WaitForDisk() {
  MutexLock lock(&mutex_);
  if (!stopping_ && !inbox_.urgent()) work_.WaitFor(&mutex_, kDiskPollInterval);
}

void Engine::FailStep(const absl::Status& error, absl::Time now) {
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
  load_.num_steps = step_log_.num_steps();
  load_.num_failed_steps = step_log_.num_failed_steps();
  const bool by_tenant = scheduler_->GetQueues(&queues_);
  outlook_.Update(scheduler_->backlog(), step_log_.rates(), by_tenant, &queues_);
  for (const Request& request : inbox_.requests) {
    outlook_.Add(request.cache_salt, NumTokens(request), request.num_sequences());
  }
}

void Engine::PublishAndDeliver() {
  if (options_.check_integrity) {
    const absl::Status status = cache_->CheckIntegrity();
    if (!status.ok()) ABSL_RAW_LOG(FATAL, "the cache's ledger is broken: %s", status.ToString().c_str());
  }
  step_log_.OnEvents(events_);
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
