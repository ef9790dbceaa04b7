// Abseil's handler prints. By itself it follows frame pointers. The C library's functions do not keep those, so the
// trace of a thread that waits would end at once. backtrace() reads the unwinder's tables. After its first call, which
// loads the unwinder, it is safe in a handler. It also sees the frames of the handlers:
//
//   backtrace, Unwind, Abseil's handler, the kernel's frame | the fault, its callers ...
//
// What is printed begins at the fault, whose address the kernel gave.
#include "server/process/fault_trace.h"

#include <execinfo.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>

#include "absl/debugging/failure_signal_handler.h"
#include "absl/debugging/stacktrace.h"

namespace berth {
namespace {

constexpr int kMaxFrames = 64;
// For the trace, whose names are looked up in all of LibTorch. If it hangs, the process ends by SIGABRT.
constexpr int kPatienceSeconds = 10;

int Unwind(void** pcs, int* sizes, int max_depth, int skip_count, const void* context, int* min_dropped_frames) {
  if (context == nullptr) {
    return absl::DefaultStackUnwinder(pcs, sizes, max_depth, skip_count + 1, context, min_dropped_frames);
  }
  void* frames[kMaxFrames];
  const int num_frames = backtrace(frames, kMaxFrames);
  const auto at = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
  void** const end = frames + num_frames;
  void** first = std::find(frames, end, reinterpret_cast<void*>(at));
  if (first == end) first = frames;
  const int depth = std::min(static_cast<int>(end - first), max_depth);
  std::copy_n(first, depth, pcs);
  if (sizes != nullptr) std::fill_n(sizes, depth, 0);
  if (min_dropped_frames != nullptr) *min_dropped_frames = 0;
  return depth;
}

}  // namespace

void PrintStackOnFault() {
  void* frame = nullptr;
  backtrace(&frame, 1);
  absl::SetStackUnwinder(Unwind);
  // Abseil takes SIGTERM for a fault too.
  struct sigaction stop = {};
  ::sigaction(SIGTERM, nullptr, &stop);
  absl::FailureSignalHandlerOptions options;
  options.alarm_on_failure_secs = kPatienceSeconds;
  options.call_previous_handler = true;
  absl::InstallFailureSignalHandler(options);
  ::sigaction(SIGTERM, &stop, nullptr);
}

}  // namespace berth
