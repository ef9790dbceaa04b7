#include "server/process/watchdog.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/signal_stack.h"
#include "server/process/crash_file.h"
#include "server/process/exit_codes.h"
#include "server/process/thread_backtrace.h"

namespace berth {
namespace {

absl::Duration IntervalOf(absl::Duration timeout) {
  return std::clamp(timeout / 20, absl::Milliseconds(1), absl::Seconds(1));
}

std::string Describe(const StepProgress::Reading& step) {
  std::string text = absl::StrCat("phase ", StepPhaseName(step.phase));
  if (step.phase != StepPhase::kStart)
    absl::StrAppend(&text, ", ", step.num_rows, " rows, ", step.num_tokens, " tokens");
  if (step.thread != 0) absl::StrAppend(&text, ", in ", BacktraceOf(step.thread));
  return text;
}

}  // namespace

void EndOnHang(const std::string& where) {
  CrashFile::Write();
  spdlog::critical("the server ends with exit code {}, because {}", kHangExitCode, where);
  spdlog::default_logger_raw()->flush();
  std::_Exit(kHangExitCode);
}

Watchdog::Watchdog(Options options, std::shared_ptr<const StepProgress> progress)
    : options_(std::move(options)),
      progress_(std::move(progress)),
      interval_(IntervalOf(options_.timeout)),
      limit_ticks_(absl::ToInt64Milliseconds(absl::Ceil(options_.timeout, absl::Milliseconds(1))) /
                   absl::ToInt64Milliseconds(absl::Ceil(interval_, absl::Milliseconds(1)))) {}

Watchdog::~Watchdog() {
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    closing_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

void Watchdog::Start() {
  if (options_.timeout > absl::ZeroDuration()) thread_ = std::thread([this] { Loop(); });
}

void Watchdog::Loop() {
  const SignalStack signal_stack;
  while (true) {
    {
      const absl::Time next = options_.now() + interval_;
      MutexLock lock(&mutex_);
      // A wait may wake without cause, which must not count.
      for (absl::Time now = options_.now(); !closed_ && now < next; now = options_.now()) {
        closing_.WaitFor(&mutex_, next - now);
      }
      if (closed_) return;
    }
    Tick();
  }
}

void Watchdog::Tick() {
  const StepProgress::Reading step = progress_->Read();
  if (step.phase == StepPhase::kIdle || step.beat != last_beat_) {
    if (hanging()) {
      spdlog::warn("{} that hung continues after {}", options_.what, absl::FormatDuration(num_ticks_ * interval_));
    }
    hanging_.store(false, std::memory_order_release);
    last_beat_ = step.beat;
    num_ticks_ = 0;
    return;
  }
  ++num_ticks_;
  if (num_ticks_ == limit_ticks_) {
    hanging_.store(true, std::memory_order_release);
    where_ = absl::StrCat(options_.what, " hangs: ", Describe(step));
    spdlog::critical("{}; no progress for {} ({})", where_, absl::FormatDuration(options_.timeout), options_.flag);
  }
  if (num_ticks_ == 2 * limit_ticks_) options_.on_hang(where_);
}

}  // namespace berth
