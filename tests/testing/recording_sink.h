// An EventSink that keeps what it is told, by request. Thread-safe.
#ifndef BERTH_TESTS_TESTING_RECORDING_SINK_H_
#define BERTH_TESTS_TESTING_RECORDING_SINK_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/steady_clock.h"
#include "scheduler/event_sink.h"
#include "scheduler/request.h"
#include "tests/testing/request_record.h"
#include "tests/testing/wait_until.h"

namespace berth {

class RecordingSink : public EventSink {
 public:
  void Deliver(std::vector<TokenEvent>* events) override {
    MutexLock lock(&mutex_);
    for (const TokenEvent& event : *events) records_[event.key].Apply(event);
    changed_.SignalAll();
  }
  void OnStep(const StepStats& stats) override {
    MutexLock lock(&mutex_);
    steps_.push_back(stats);
  }

  // Waits until `key` has ended, or has `num_tokens` tokens, and returns what there is of it. After kHangLimit the test
  // has failed, and this returns what there is then.
  RequestRecord WaitFor(RequestKey key, int64_t num_tokens = -1) {
    const absl::Time until = SteadyNow() + kHangLimit;
    MutexLock lock(&mutex_);
    const auto reached = [num_tokens](const RequestRecord& record) {
      return record.num_ends > 0 || (num_tokens >= 0 && static_cast<int64_t>(record.tokens.size()) >= num_tokens);
    };
    while (!reached(records_[key]) && SteadyNow() < until) changed_.WaitFor(&mutex_, until - SteadyNow());
    const RequestRecord& record = records_[key];
    if (!reached(record)) {
      ADD_FAILURE() << "request " << key << " did not end"
                    << (num_tokens >= 0 ? absl::StrCat(" or reach ", num_tokens, " tokens") : "") << "; it has "
                    << record.tokens.size();
    }
    return record;
  }
  RequestRecord Get(RequestKey key) {
    MutexLock lock(&mutex_);
    return records_[key];
  }
  std::vector<StepStats> steps() {
    MutexLock lock(&mutex_);
    return steps_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<RequestKey, RequestRecord> records_ ABSL_GUARDED_BY(mutex_);
  std::vector<StepStats> steps_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace berth

#endif  // BERTH_TESTS_TESTING_RECORDING_SINK_H_
