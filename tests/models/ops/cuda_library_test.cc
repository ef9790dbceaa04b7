// The library that nvcc made of the kernels: that it loads and has them all. It needs no GPU, and runs none of them.
#include "models/ops/cuda_library.h"

#include <gtest/gtest.h>

#include <cstring>

namespace berth {
namespace {

TEST(CudaLibraryTest, HasEveryEntry) {
  const auto kernels = ops::cuda::LoadLibrary("models/ops/libberth_cuda.so");
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  EXPECT_STREQ((*kernels)->name, "sm_80, sm_90");
  EXPECT_FALSE((*kernels)->on_host_memory);
  // The entries are the table's end, from the first to the last.
  const auto* first = reinterpret_cast<const char*>(&(*kernels)->activation);
  const auto* end = reinterpret_cast<const char*>(*kernels + 1);
  for (const char* at = first; at < end; at += sizeof(void*)) {
    void* entry = nullptr;
    std::memcpy(&entry, at, sizeof(entry));
    EXPECT_NE(entry, nullptr) << (at - first) / sizeof(void*);
  }
}

TEST(CudaLibraryTest, SaysWhatIsMissing) {
  const auto kernels = ops::cuda::LoadLibrary("/nowhere/libberth_cuda.so");
  EXPECT_EQ(kernels.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(kernels.status().message().find("/nowhere/libberth_cuda.so"), std::string::npos) << kernels.status();
}

}  // namespace
}  // namespace berth
