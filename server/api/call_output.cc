#include "server/api/call_output.h"

#include <utility>

namespace berth {

void CallOutput::Set(std::shared_ptr<RequestOutput> output) {
  EndCause cause;
  {
    MutexLock lock(&mutex_);
    output_ = output;
    cause = cause_;
  }
  if (cause != EndCause::kNone) output->Cancel(cause);
}

void CallOutput::Clear() {
  MutexLock lock(&mutex_);
  output_ = nullptr;
}

std::shared_ptr<RequestOutput> CallOutput::get() const {
  MutexLock lock(&mutex_);
  return output_;
}

void CallOutput::Cancel(EndCause cause) {
  std::shared_ptr<RequestOutput> output;
  {
    MutexLock lock(&mutex_);
    if (cause_ == EndCause::kNone) cause_ = cause;
    output = output_;
  }
  if (output != nullptr) output->Cancel(cause);
}

EndCause CallOutput::cause() const {
  MutexLock lock(&mutex_);
  return cause_;
}

}  // namespace berth
