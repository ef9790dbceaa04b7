// Finds out where another thread of this process is, even one that hangs: a signal makes it record its own frames.
#ifndef BERTH_SERVER_PROCESS_THREAD_BACKTRACE_H_
#define BERTH_SERVER_PROCESS_THREAD_BACKTRACE_H_

#include <sys/types.h>

#include <string>

namespace berth {

// The functions that the thread is in, the innermost first: "sem_wait < Run < Step". `thread` is the kernel's id of a
// thread of this process. Blocks for at most a second; says so when the thread does not answer, as one that the kernel
// holds. Takes over the signal SIGRTMIN. One call at a time.
std::string BacktraceOf(pid_t thread);

}  // namespace berth

#endif  // BERTH_SERVER_PROCESS_THREAD_BACKTRACE_H_
