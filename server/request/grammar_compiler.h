// Compiles grammars on threads of its own, and keeps the compiled ones. Requests with equal specs share one
// compilation, also while it is under way. Thread-safe. Torch-free.
//
// Clients take turns, and the tenants of a client (see fair_queue.h). One client has all threads but one at most, so
// that its slow grammars delay only itself. A grammar that several wait for is compiled at the first turn of any.
//
// A compilation is asked to stop when its time is over, or when no request waits for it any more. Its thread is free
// again when the compile function has reacted to the stop token.
#ifndef BERTH_SERVER_REQUEST_GRAMMAR_COMPILER_H_
#define BERTH_SERVER_REQUEST_GRAMMAR_COMPILER_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "models/token_constraint.h"
#include "scheduler/request.h"
#include "server/request/fair_queue.h"
#include "text/grammar_spec.h"

namespace berth {

// Grammars of structured outputs. Except for the gauges, counted since the start.
struct GrammarLoad {
  int64_t compiled = 0;           // compilations that succeeded
  int64_t failed = 0;             // that were refused, or took too long
  int64_t cancelled = 0;          // that were stopped because their requests had ended
  int64_t hits = 0;               // requests whose grammar was compiled already, or was being compiled
  int64_t waiting = 0;            // gauge: requests whose grammar is not compiled yet
  int64_t cache_bytes = 0;        // gauge: of the compiled grammars that are kept
  int64_t cache_limit_bytes = 0;  // gauge
};

class GrammarCompiler {
 public:
  // Called once, from Compile or on one of the compiler's threads, without a lock held.
  using Callback = std::function<void(absl::StatusOr<CompiledGrammar>)>;
  using CompileFunction = std::function<absl::StatusOr<CompiledGrammar>(const GrammarSpec&, std::stop_token)>;
  // The compile function of a server that compiles no grammars. INVALID_ARGUMENT.
  static absl::StatusOr<CompiledGrammar> CompileNone(const GrammarSpec& spec, const std::stop_token& stop);
  struct Options {
    int64_t threads = 2;                            // so that one slow grammar does not hold up all others
    int64_t max_waiting = 2048;                     // requests; of one client at most half
    int64_t max_waiting_bytes = int64_t{64} << 20;  // of their structures; of one client at most half. One always fits
    int64_t cache_bytes = int64_t{64} << 20;        // the least recently used grammars go first
    absl::Duration timeout = absl::Seconds(10);     // of one compilation
    CompileFunction compile = CompileNone;
  };

  explicit GrammarCompiler(Options options);
  // Stops what is under way. Callbacks that have not been called get UNAVAILABLE.
  ~GrammarCompiler() ABSL_LOCKS_EXCLUDED(mutex_);
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Gives `done` the grammar, at its beginning. `key` names the request for Cancel; no two that wait have the same.
  // `caller` says whose turn it takes.
  // Errors are those of the compile function, and RESOURCE_EXHAUSTED (too much waits), INVALID_ARGUMENT (the
  // compilation took too long) and UNAVAILABLE (the compiler is destroyed).
  void Compile(RequestKey key, const GrammarSpec& spec, Callback done, const Caller& caller = {})
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Takes the request out, and returns true: its callback will not be called. If no other request waits for the
  // compilation, it is stopped. Returns false if the request does not wait, or its callback has begun.
  bool Cancel(RequestKey key) ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops the grammars that are kept. Returns their size.
  int64_t DropKept() ABSL_LOCKS_EXCLUDED(mutex_);

  GrammarLoad load() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiter {
    RequestKey key = 0;
    std::string client;
    Callback done;
  };
  // A compilation that waits or is under way.
  struct Job {
    GrammarSpec spec;
    std::string name;  // a text that equal specs share
    std::vector<Waiter> waiters;
    std::string client;  // whose turn began it
    bool begun = false;
    std::stop_source stop;
    absl::Time deadline = absl::InfiniteFuture();  // once it is under way
    bool timed_out = false;
  };
  // A request's place in the queue. Its job may have begun already, at another request's turn.
  struct Turn {
    RequestKey key = 0;
    std::string client;
    std::string tenant;
    std::shared_ptr<Job> job;
  };
  struct Kept {
    std::string name;
    CompiledGrammar grammar;
  };

  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  // The next compilation, begun; null: no client that waits may have another thread.
  std::shared_ptr<Job> Begin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TooMuchWaits(const ClientShares::Excess& excess) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts a request that no longer waits for the job.
  void Leave(const Job& job, const Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);
  // The compilations whose time is over, to be stopped without the lock: whoever reacts to a stop runs in the call.
  // Waits until there are some, or the compiler closes.
  std::vector<std::stop_source> WaitForLate() ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes the job's waiters, and keeps its grammar.
  std::vector<Waiter> Finish(const std::shared_ptr<Job>& job, const absl::StatusOr<CompiledGrammar>& grammar)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Keep(const std::string& name, const CompiledGrammar& grammar) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;

  mutable Mutex mutex_;
  CondVar work_;   // for Loop
  CondVar watch_;  // for Watch
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  FairQueue<Turn> turns_ ABSL_GUARDED_BY(mutex_);
  ClientShares shares_ ABSL_GUARDED_BY(mutex_);  // requests that wait, and compilations that a client's turns began
  std::set<std::shared_ptr<Job>> running_ ABSL_GUARDED_BY(mutex_);
  // The jobs that others may join, by Job::name, which holds the key.
  std::unordered_map<std::string_view, std::shared_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<RequestKey, std::shared_ptr<Job>> requests_ ABSL_GUARDED_BY(mutex_);  // those that wait
  std::list<Kept> kept_ ABSL_GUARDED_BY(mutex_);                                           // most recently used first
  std::unordered_map<std::string, std::list<Kept>::iterator> kept_by_name_ ABSL_GUARDED_BY(mutex_);
  GrammarLoad load_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;  // last: see everything above built
};

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_GRAMMAR_COMPILER_H_
