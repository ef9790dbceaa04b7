#include "base/signal_stack.h"

namespace berth {

SignalStack::SignalStack() : memory_(new char[kBytes]) {
  stack_t stack = {};
  stack.ss_sp = memory_.get();
  stack.ss_size = kBytes;
  ::sigaltstack(&stack, &before_);
}

SignalStack::~SignalStack() { ::sigaltstack(&before_, nullptr); }

}  // namespace berth
