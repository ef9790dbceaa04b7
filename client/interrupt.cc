#include "client/interrupt.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <utility>

namespace berth::cli {
namespace {

sigset_t SigintSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

Interrupt::Scope::Scope(Interrupt* interrupt, std::function<void()> then)
    : interrupt_(interrupt), then_(std::move(then)) {
  MutexLock lock(&interrupt_->mutex_);
  interrupt_->scopes_.push_back(this);
}

Interrupt::Scope::~Scope() {
  MutexLock lock(&interrupt_->mutex_);
  std::erase(interrupt_->scopes_, this);
}

bool Interrupt::Scope::fired() const {
  MutexLock lock(&interrupt_->mutex_);
  return fired_;
}

void Interrupt::Fire() {
  MutexLock lock(&mutex_);
  if (scopes_.empty()) {
    otherwise_();
    return;
  }
  scopes_.back()->fired_ = true;
  scopes_.back()->then_();
}

int Interrupt::num_scopes() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(scopes_.size());
}

SignalWatcher::SignalWatcher(Interrupt* interrupt) {
  const sigset_t set = SigintSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this, interrupt, set] {
    int signal = 0;
    while (sigwait(&set, &signal) == 0 && !stopping_) interrupt->Fire();
  });
}

SignalWatcher::~SignalWatcher() {
  stopping_ = true;
  pthread_kill(thread_.native_handle(), SIGINT);
  thread_.join();
}

}  // namespace berth::cli
