#include "server/request/grammar_compiler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/signal_stack.h"
#include "base/steady_clock.h"
#include "scheduler/refusal.h"

namespace berth {
namespace {

constexpr char kShuttingDown[] = "the server is shutting down";

// Equal for equal specs only.
std::string NameOf(const GrammarSpec& spec) {
  std::string name = absl::StrCat(static_cast<int>(spec.kind), ",", static_cast<int>(spec.whitespace), ",",
                                  spec.begin_token, ",", spec.own_text, ",", spec.refuse_unknown, ",", spec.any_order,
                                  ",", spec.begin_text.size(), ":", spec.begin_text, spec.text.size(), ":", spec.text);
  for (const std::string& choice : spec.choices) absl::StrAppend(&name, choice.size(), ":", choice);
  return name;
}

}  // namespace

absl::StatusOr<CompiledGrammar> GrammarCompiler::CompileNone(const GrammarSpec&, const std::stop_token&) {
  return absl::InvalidArgumentError("this server does not compile grammars");
}

GrammarCompiler::GrammarCompiler(Options options)
    : options_(std::move(options)),
      shares_(
          {.threads = options_.threads, .waiting = options_.max_waiting, .waiting_bytes = options_.max_waiting_bytes}) {
  load_.cache_limit_bytes = options_.cache_bytes;
  for (int64_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Loop(); });
  threads_.emplace_back([this] { Watch(); });
}

GrammarCompiler::~GrammarCompiler() {
  std::vector<Callback> left;
  std::vector<std::stop_source> stops;
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    for (const auto& [name, job] : jobs_) stops.push_back(job->stop);
    while (const std::optional<Turn> turn = turns_.Pop([](const std::string&) { return true; })) {
      if (turn->job->begun) continue;
      for (Waiter& waiter : std::exchange(turn->job->waiters, {})) left.push_back(std::move(waiter.done));
    }
    work_.SignalAll();
    watch_.SignalAll();
  }
  for (std::stop_source& stop : stops) stop.request_stop();
  for (std::thread& thread : threads_) thread.join();
  for (const Callback& done : left) done(absl::UnavailableError(kShuttingDown));
}

void GrammarCompiler::Compile(RequestKey key, const GrammarSpec& spec, Callback done, const Caller& caller) {
  std::string name = NameOf(spec);
  const int64_t bytes = static_cast<int64_t>(name.size());
  absl::StatusOr<CompiledGrammar> answer;
  {
    MutexLock lock(&mutex_);
    if (const auto kept = kept_by_name_.find(name); kept != kept_by_name_.end()) {
      kept_.splice(kept_.begin(), kept_, kept->second);
      ++load_.hits;
      answer = kept_.front().grammar;
    } else if (const auto excess = shares_.ExcessOf(caller.client, bytes)) {
      answer = TooMuchWaits(*excess);
    } else {
      std::shared_ptr<Job> job;
      if (const auto found = jobs_.find(name); found != jobs_.end()) {
        ++load_.hits;
        job = found->second;
      } else {
        job = std::make_shared<Job>();
        job->spec = spec;
        job->name = std::move(name);
        jobs_.emplace(job->name, job);
      }
      job->waiters.push_back({key, caller.client, std::move(done)});
      shares_.Add(caller.client, {.waiting = 1, .waiting_bytes = bytes});
      requests_.emplace(key, job);
      if (!job->begun) {
        turns_.Push({key, caller.client, caller.tenant, job});
        work_.Signal();
      }
      return;
    }
  }
  done(std::move(answer));
}

absl::Status GrammarCompiler::TooMuchWaits(const ClientShares::Excess& excess) const {
  const ClientShares::Share& all = shares_.all();
  return RefusedError(
      {.reason = RefusalReason::kGrammars, .limit = absl::StrCat(excess.limit), .value = absl::StrCat(excess.value)},
      absl::StrCat("structure: ", all.waiting, " requests with ", all.waiting_bytes,
                   " bytes of structures wait for their grammars already; retry later"));
}

bool GrammarCompiler::Cancel(RequestKey key) {
  Waiter dropped;                           // freed without the lock
  std::stop_source stop(std::nostopstate);  // asked without it
  {
    MutexLock lock(&mutex_);
    const auto found = requests_.find(key);
    if (found == requests_.end()) return false;
    const std::shared_ptr<Job> job = found->second;
    requests_.erase(found);
    turns_.Remove(key);
    const auto waiter = std::find_if(job->waiters.begin(), job->waiters.end(),
                                     [key](const Waiter& waiter) { return waiter.key == key; });
    dropped = std::move(*waiter);
    job->waiters.erase(waiter);
    Leave(*job, dropped);
    if (!job->waiters.empty()) return true;
    stop = job->stop;
    jobs_.erase(job->name);
  }
  stop.request_stop();
  return true;
}

int64_t GrammarCompiler::DropKept() {
  std::list<Kept> dropped;  // freed without the lock
  MutexLock lock(&mutex_);
  dropped.swap(kept_);
  kept_by_name_.clear();
  return std::exchange(load_.cache_bytes, 0);
}

GrammarLoad GrammarCompiler::load() const {
  MutexLock lock(&mutex_);
  GrammarLoad load = load_;
  load.waiting = static_cast<int64_t>(requests_.size());
  return load;
}

void GrammarCompiler::Leave(const Job& job, const Waiter& waiter) {
  shares_.Add(waiter.client, {.waiting = -1, .waiting_bytes = -static_cast<int64_t>(job.name.size())});
}

std::shared_ptr<GrammarCompiler::Job> GrammarCompiler::Begin() {
  const auto may_run = [&](const std::string& client)
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return shares_.MayRun(client); };
  while (std::optional<Turn> turn = turns_.Pop(may_run)) {
    std::shared_ptr<Job> job = std::move(turn->job);
    if (job->begun) continue;
    job->begun = true;
    job->client = std::move(turn->client);
    shares_.Add(job->client, {.running = 1});
    job->deadline = SteadyNow() + options_.timeout;
    running_.insert(job);
    watch_.Signal();
    return job;
  }
  return nullptr;
}

void GrammarCompiler::Loop() {
  const SignalStack signal_stack;
  while (true) {
    std::shared_ptr<Job> job;
    {
      MutexLock lock(&mutex_);
      while (!closed_ && (job = Begin()) == nullptr) work_.Wait(&mutex_);
      if (job == nullptr) return;
    }
    absl::StatusOr<CompiledGrammar> grammar = options_.compile(job->spec, job->stop.get_token());
    for (const Waiter& waiter : Finish(job, grammar)) {
      const Callback& done = waiter.done;
      if (grammar.ok()) {
        done(grammar);
      } else if (job->timed_out) {
        done(absl::InvalidArgumentError(
            absl::StrCat("the grammar takes over ", absl::FormatDuration(options_.timeout), " to compile")));
      } else if (absl::IsCancelled(grammar.status())) {
        done(absl::UnavailableError(kShuttingDown));  // the only other cause: somebody waits for it
      } else {
        // A copy for each: a shared one is freed on whichever thread comes last, by a count inside of Abseil's library
        // that the thread sanitizer does not see.
        done(absl::Status(grammar.status().code(), grammar.status().message()));
      }
    }
  }
}

std::vector<GrammarCompiler::Waiter> GrammarCompiler::Finish(const std::shared_ptr<Job>& job,
                                                             const absl::StatusOr<CompiledGrammar>& grammar) {
  MutexLock lock(&mutex_);
  running_.erase(job);
  // It was stopped because its requests had ended, unless its time was over before.
  const bool cancelled = !grammar.ok() && job->waiters.empty() && !job->timed_out;
  ++(grammar.ok() ? load_.compiled : cancelled ? load_.cancelled : load_.failed);
  if (grammar.ok()) Keep(job->name, *grammar);
  // Where the job was given up, another one may have its place.
  if (const auto found = jobs_.find(job->name); found != jobs_.end() && found->second == job) jobs_.erase(found);
  for (const Waiter& waiter : job->waiters) {
    requests_.erase(waiter.key);
    Leave(*job, waiter);
  }
  shares_.Add(job->client, {.running = -1});
  return std::move(job->waiters);
}

void GrammarCompiler::Keep(const std::string& name, const CompiledGrammar& grammar) {
  const int64_t size = grammar.size_bytes + static_cast<int64_t>(name.size());
  if (size > options_.cache_bytes || kept_by_name_.contains(name)) return;
  kept_.push_front({name, grammar});
  kept_by_name_.emplace(name, kept_.begin());
  load_.cache_bytes += size;
  while (load_.cache_bytes > options_.cache_bytes) {
    const Kept& last = kept_.back();
    load_.cache_bytes -= last.grammar.size_bytes + static_cast<int64_t>(last.name.size());
    kept_by_name_.erase(last.name);
    kept_.pop_back();
  }
}

void GrammarCompiler::Watch() {
  const SignalStack signal_stack;
  while (true) {
    std::vector<std::stop_source> late = WaitForLate();
    if (late.empty()) return;
    for (std::stop_source& stop : late) stop.request_stop();
  }
}

std::vector<std::stop_source> GrammarCompiler::WaitForLate() {
  std::vector<std::stop_source> late;
  MutexLock lock(&mutex_);
  while (late.empty() && !closed_) {
    absl::Time next = absl::InfiniteFuture();
    const absl::Time now = SteadyNow();
    for (const std::shared_ptr<Job>& job : running_) {
      if (!job->timed_out && now >= job->deadline) {
        job->timed_out = true;
        late.push_back(job->stop);
      }
      if (!job->timed_out) next = std::min(next, job->deadline);
    }
    if (late.empty()) watch_.WaitFor(&mutex_, next - now);
  }
  return late;
}

}  // namespace berth
