// The handler runs on the thread that is asked, on top of whatever it does. It may only call what is safe there:
// backtrace() is, once it was called before (it loads the unwinder then). Names are looked up by the asking thread.
#include "server/process/thread_backtrace.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace berth {
namespace {

constexpr int kMaxFrames = 32;
constexpr int kShownFrames = 12;
constexpr int kPatienceMilliseconds = 1000;

constexpr char kNoAnswer[] = "unknown: the thread does not answer";

// A handler can reach nothing but globals.
enum State : int { kNobodyAsks, kAsked, kAnswering, kAnswered };
std::atomic<int> g_state{kNobodyAsks};
void* g_frames[kMaxFrames];
int g_num_frames = 0;

static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void OnSignal(int) {
  const int saved_errno = errno;
  int asked = kAsked;
  if (g_state.compare_exchange_strong(asked, kAnswering)) {
    g_num_frames = backtrace(g_frames, kMaxFrames);
    g_state.store(kAnswered);
  }
  errno = saved_errno;
}

bool Install() {
  void* frame = nullptr;
  backtrace(&frame, 1);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGRTMIN, &action, nullptr) == 0;
}

// The function's name without its templates' and own arguments, which may fill a screen; "": it has none.
std::string NameOf(void* frame) {
  char name[256];
  // The address is that of the next instruction, which may be the next function's.
  if (!absl::Symbolize(static_cast<char*>(frame) - 1, name, sizeof(name))) return "";
  const std::string full = absl::StrReplaceAll(name, {{"(anonymous namespace)::", ""}});
  return full.substr(0, full.find_first_of("<("));
}

}  // namespace

std::string BacktraceOf(pid_t thread) {
  static const bool installed = Install();
  if (!installed) return "unknown: no signal handler";
  if (g_state.load() == kAnswering) return kNoAnswer;  // to an earlier call
  g_state.store(kAsked);
  if (syscall(SYS_tgkill, getpid(), thread, SIGRTMIN) != 0) return "unknown: there is no such thread";
  for (int waited = 0; g_state.load() != kAnswered; ++waited) {
    if (waited >= kPatienceMilliseconds) {
      // A handler that has begun writes its answer later, or never.
      int asked = kAsked;
      g_state.compare_exchange_strong(asked, kNobodyAsks);
      return kNoAnswer;
    }
    const timespec millisecond = {.tv_sec = 0, .tv_nsec = 1'000'000};
    nanosleep(&millisecond, nullptr);
  }
  std::string text;
  constexpr int kOwnFrames = 2;  // the handler, and the kernel's return from it
  int num_shown = 0;
  for (int i = kOwnFrames; i < g_num_frames && num_shown < kShownFrames; ++i) {
    const std::string name = NameOf(g_frames[i]);
    if (name.empty()) continue;
    absl::StrAppend(&text, num_shown++ == 0 ? "" : " < ", name);
  }
  g_state.store(kNobodyAsks);
  return num_shown > 0 ? text : "unknown: the program has no symbols";
}

}  // namespace berth
