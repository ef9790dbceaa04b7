// What this process may use of the machine: the least of what the machine has and what its limits leave. Thread-safe.
#ifndef BERTH_BASE_MACHINE_H_
#define BERTH_BASE_MACHINE_H_

#include <cstdint>
#include <string>

namespace berth {

// The memory that the process can still take. It is the least of what the system has available, and what the limits of
// its control groups (version 1 or 2) and of its address space leave. 0: unknown. `root`: where /proc and /sys are;
// tests give a folder.
int64_t AvailableMemory(const std::string& root = "");

// The processors that the control groups' quotas let the process use, rounded up; at least 1. 0: no quota.
int64_t CpuQuota(const std::string& root = "");

// The processors that the process may run on, and no more than its quota; at least 1.
int AvailableCpus();

}  // namespace berth

#endif  // BERTH_BASE_MACHINE_H_
