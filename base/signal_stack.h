// A stack for the handlers of signals, on the thread that makes it. With it a fault is reported even where the thread
// has used up its own stack. Make one at the start of a thread's function; that of main has one by the handler's
// installer (server/process/fault_trace.h). Kernel workers (models/step/thread_pool.h) go without: they call nothing
// recursive.
#ifndef BERTH_BASE_SIGNAL_STACK_H_
#define BERTH_BASE_SIGNAL_STACK_H_

#include <signal.h>

#include <cstddef>
#include <memory>

namespace berth {

class SignalStack {
 public:
  SignalStack();
  // On the same thread.
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  // A frame of the kernel with the registers of AMX takes 11 KiB, and looking up names as much again.
  static constexpr size_t kBytes = 64 << 10;

  const std::unique_ptr<char[]> memory_;
  stack_t before_ = {};  // a sanitizer's
};

}  // namespace berth

#endif  // BERTH_BASE_SIGNAL_STACK_H_
