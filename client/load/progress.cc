#include "client/load/progress.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace berth::cli {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(500);

}  // namespace

ProgressLine::ProgressLine(const Runner* runner, int64_t num_requests, bool redraw, std::ostream* out)
    : runner_(runner), num_requests_(num_requests), redraw_(redraw), out_(out), thread_([this] { Loop(); }) {}

ProgressLine::~ProgressLine() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
  Print();
  if (redraw_) *out_ << std::endl;
}

void ProgressLine::Loop() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    changed_.WaitFor(&mutex_, kPeriod);
    if (!stopping_) Print();
  }
}

void ProgressLine::Print() {
  const Runner::Progress progress = runner_->GetProgress();
  const double seconds = absl::ToDoubleSeconds(absl::FromChrono(StreamCall::Clock::now() - start_));
  *out_ << (redraw_ ? "\r\x1b[K" : "")
        << absl::StreamFormat("%.1f s: %d%s done, %d under way, %d failed, %.1f output tokens/s", seconds,
                              progress.done, num_requests_ > 0 ? absl::StrCat(" of ", num_requests_) : "",
                              progress.sent - progress.done, progress.failed, progress.output_tokens / seconds)
        << (redraw_ ? "" : "\n") << std::flush;
}

}  // namespace berth::cli
