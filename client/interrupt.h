// Ctrl-C as a value: whoever is at work says what it should do, the innermost first. Thread-safe.
#ifndef BERTH_CLIENT_INTERRUPT_H_
#define BERTH_CLIENT_INTERRUPT_H_

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace berth::cli {

class Interrupt {
 public:
  // While it lives, Fire() calls `then`, under the Interrupt's lock: it must not block, nor make or end a Scope.
  class Scope {
   public:
    Scope(Interrupt* interrupt, std::function<void()> then);
    // Once it returns, `then` neither runs nor will run.
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    bool fired() const;

   private:
    friend class Interrupt;
    Interrupt* interrupt_;
    std::function<void()> then_;
    bool fired_ = false;  // guarded by interrupt_->mutex_
  };

  // `otherwise` is what Fire() calls when there is no Scope.
  explicit Interrupt(std::function<void()> otherwise) : otherwise_(std::move(otherwise)) {}

  void Fire();

  // The number of live scopes; tests wait for it.
  int num_scopes() const;

 private:
  mutable Mutex mutex_;
  std::function<void()> otherwise_;
  std::vector<Scope*> scopes_ ABSL_GUARDED_BY(mutex_);
};

// Turns SIGINT into Fire(), on a thread of its own, where it may lock.
class SignalWatcher {
 public:
  // REQUIRES: no other thread runs yet (each inherits the blocked SIGINT). `interrupt` must outlive the watcher.
  explicit SignalWatcher(Interrupt* interrupt);
  ~SignalWatcher();
  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_INTERRUPT_H_
