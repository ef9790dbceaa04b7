// The library that nvcc made of the kernels: that it loads and has them all. It needs no GPU, and runs none of them.
#include "models/ops/cuda_library.h"

#include <gtest/gtest.h>

#include <cstring>

namespace berth {
namespace {

// The entries lie side by side, from the first to the last.
void ExpectAllEntries(const ops::cuda::Kernels& kernels) {
  EXPECT_FALSE(kernels.on_host_memory);
  const auto* first = reinterpret_cast<const char*>(&kernels.activation);
  const auto* end = reinterpret_cast<const char*>(&kernels.attention_scratch_bytes);
  for (const char* at = first; at < end; at += sizeof(void*)) {
    void* entry = nullptr;
    std::memcpy(&entry, at, sizeof(entry));
    EXPECT_NE(entry, nullptr) << (at - first) / sizeof(void*);
  }
}

TEST(CudaLibraryTest, HasEveryEntry) {
  const auto kernels = ops::cuda::LoadLibrary("models/ops/libberth_cuda.so");
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  EXPECT_STREQ((*kernels)->name, "sm_80, sm_90");
  EXPECT_EQ((*kernels)->attention_scratch_bytes, nullptr);
  ExpectAllEntries(**kernels);
}

TEST(CudaLibraryTest, MayHaveFlashInfersAttention) {
  const auto kernels = ops::cuda::LoadLibrary("models/ops/libberth_cuda_flashinfer.so");
  ASSERT_TRUE(kernels.ok()) << kernels.status();
  EXPECT_STREQ((*kernels)->name, "sm_80, sm_90, attention by FlashInfer");
  ExpectAllEntries(**kernels);

  // A step of 40 rows with a token each, whose keys are divided into up to 4 parts.
  ops::AttentionArgs args = {};
  args.kv = {.storage = DType::kBFloat16,
             .key = {.offset = 0, .scale_offset = 0, .dim = 128},
             .value = {.offset = 4096, .scale_offset = 0, .dim = 128},
             .block_tokens = 16,
             .kv_heads = 8};
  args.q_heads = 32;
  args.query_stride = 4096;
  ops::cuda::LaunchParams launch = {};
  launch.num_tokens = launch.num_rows = launch.num_tiles = 40;
  launch.longest_row = 1;
  launch.max_position = 1000;
  launch.split = {.num_tiles = 40, .tile_tokens = 1, .num_splits = 4, .num_partials = 160};
  const int64_t results = 40 * 3 * 32;  // 1,024 blocks allow 3 parts
  const int64_t bytes = (*kernels)->attention_scratch_bytes(args, launch);
  EXPECT_GT(bytes, results * 129 * 4);
  EXPECT_LT(bytes, results * 129 * 4 + 10'000);
  const auto is_covered = [&] { return (*kernels)->attention_scratch_bytes(args, launch) > 0; };
  args.kv.storage = DType::kInt8;
  EXPECT_FALSE(is_covered());
  args.kv.storage = DType::kBFloat16;
  args.kv.value.dim = 64;
  EXPECT_FALSE(is_covered()) << "keys and values of different dimensions";
  args.kv.value.dim = 128;
  args.sink_tokens = 4;
  EXPECT_FALSE(is_covered());
  args.sink_tokens = 0;
  launch.split.tile_tokens = 3;
  EXPECT_FALSE(is_covered()) << "rows with drafts";
  launch.split.tile_tokens = 1;
  launch.max_position = int64_t{1} << 26;
  EXPECT_FALSE(is_covered()) << "too many positions";
}

TEST(CudaLibraryTest, SaysWhatIsMissing) {
  const auto kernels = ops::cuda::LoadLibrary("/nowhere/libberth_cuda.so");
  EXPECT_EQ(kernels.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(kernels.status().message().find("/nowhere/libberth_cuda.so"), std::string::npos) << kernels.status();
}

}  // namespace
}  // namespace berth
