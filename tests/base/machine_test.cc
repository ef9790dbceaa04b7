// What the limits of a machine leave, read from folders that look like /proc and /sys.
#include "base/machine.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

class MachineTest : public testing::Test {
 protected:
  MachineTest()
      : root_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                           testing::UnitTest::GetInstance()->current_test_info()->name())) {
    Write("/proc/meminfo", "MemTotal:       9000 kB\nMemFree: 1 kB\nMemAvailable:   8000 kB\n");
  }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const std::string root_;
};

TEST_F(MachineTest, MemoryWithoutControlGroupsIsTheSystems) { EXPECT_EQ(AvailableMemory(root_), 8000 * 1024); }

TEST_F(MachineTest, MemoryRespectsVersion2AndTheGroupsAround) {
  Write("/proc/self/cgroup", "0::/pod/container\n");
  Write("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  Write("/sys/fs/cgroup/pod/memory.max", "5000000\n");
  Write("/sys/fs/cgroup/pod/memory.current", "3000000\n");
  Write("/sys/fs/cgroup/pod/memory.stat", "anon 1000\ninactive_file 500000\nactive_file 7\n");
  EXPECT_EQ(AvailableMemory(root_), 2500000);
  Write("/sys/fs/cgroup/pod/container/memory.max", "1000000\n");
  Write("/sys/fs/cgroup/pod/container/memory.current", "1200000\n");
  EXPECT_EQ(AvailableMemory(root_), 0);
}

TEST_F(MachineTest, MemorySeesItsOwnGroupAtTheRootOfANamespace) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "3000000\n");
  EXPECT_EQ(AvailableMemory(root_), 3000000);
}

TEST_F(MachineTest, MemoryRespectsVersion1) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n1:name=systemd:/\n");
  Write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4000000\n");
  Write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1000000\n");
  Write("/sys/fs/cgroup/memory/a/memory.stat", "inactive_file 5\ntotal_inactive_file 600000\n");
  EXPECT_EQ(AvailableMemory(root_), 3600000);
}

TEST_F(MachineTest, MemoryRespectsTheLimitOfAddressSpace) {
  Write("/proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max cpu time              unlimited            unlimited            seconds   \n"
        "Max address space         5000000              unlimited            bytes     \n");
  Write("/proc/self/status", "Name:\tberth-server\nVmSize:\t    3000 kB\n");
  EXPECT_EQ(AvailableMemory(root_), 5000000 - 3000 * 1024);
  Write("/proc/self/limits", "Max address space         unlimited            unlimited            bytes     \n");
  EXPECT_EQ(AvailableMemory(root_), 8000 * 1024);
}

TEST_F(MachineTest, NoQuotaIsNone) {
  EXPECT_EQ(CpuQuota(root_), 0);
  Write("/proc/self/cgroup", "0::/pod\n");
  Write("/sys/fs/cgroup/pod/cpu.max", "max 100000\n");
  EXPECT_EQ(CpuQuota(root_), 0);
  Write("/proc/self/cgroup", "4:cpu,cpuacct:/a\n");
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota(root_), 0);
}

TEST_F(MachineTest, TheQuotaIsTheLeastOfTheGroupsAround) {
  Write("/proc/self/cgroup", "0::/pod/container\n");
  Write("/sys/fs/cgroup/pod/cpu.max", "300000 100000\n");
  EXPECT_EQ(CpuQuota(root_), 3);
  Write("/sys/fs/cgroup/pod/container/cpu.max", "150000 100000\n");
  EXPECT_EQ(CpuQuota(root_), 2) << "rounded up";
  Write("/sys/fs/cgroup/pod/container/cpu.max", "1000 100000\n");
  EXPECT_EQ(CpuQuota(root_), 1);
}

TEST_F(MachineTest, TheQuotaRespectsVersion1) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/a/b\n4:memory:/a/b\n");
  Write("/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "400000\n");
  Write("/sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota(root_), 4);
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000\n");
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(CpuQuota(root_), 1);
}

TEST_F(MachineTest, ThisOneHasMemoryAndCpus) {
  EXPECT_GT(AvailableMemory(), 0);
  const int all = AvailableCpus();
  EXPECT_GE(all, 1);
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(AvailableCpus(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(AvailableCpus(), all);
}

}  // namespace
}  // namespace berth
