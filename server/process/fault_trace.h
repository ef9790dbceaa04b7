// Prints the stack of a thread whose fault ends the process, on stderr: SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP or
// SIGABRT, on any thread. One per process, because signals are.
#ifndef BERTH_SERVER_PROCESS_FAULT_TRACE_H_
#define BERTH_SERVER_PROCESS_FAULT_TRACE_H_

namespace berth {

// From now on a fault prints, and then has the effect that it had before. Call it on the main thread, once, and after
// the start of processes that must not print: they inherit it. REQUIRES: absl::InitializeSymbolizer was called.
void PrintStackOnFault();

}  // namespace berth

#endif  // BERTH_SERVER_PROCESS_FAULT_TRACE_H_
