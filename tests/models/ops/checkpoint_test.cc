// Checkpoints that CUDA's kernel quantises and expands have the bytes of cache/checkpoint.h.
#include "models/ops/checkpoint/checkpoint.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cache/checkpoint.h"
#include "tests/models/ops/kernel_test.h"

namespace berth {
namespace {

constexpr int64_t kStatesBytes = 8192, kCheckpointBytes = 4096;

// Whole groups and a bit more, of both types; one that is copied.
const std::vector<CheckpointTensor> kTensors = {
    {.state_offset = 0, .num_elements = 1000, .offset = 0, .scale_offset = 1024, .size_bytes = 1088},
    {.state_offset = 4032, .num_elements = 64, .offset = 1088, .scale_offset = 64, .size_bytes = 128},
    {.state_offset = 4288,
     .num_elements = 333,
     .dtype = DType::kBFloat16,
     .offset = 1216,
     .scale_offset = 384,
     .size_bytes = 448},
    {.state_offset = 4992, .num_elements = 3, .offset = 1664, .size_bytes = 64},
    {.state_offset = 5056, .num_elements = 5, .dtype = DType::kBFloat16, .offset = 1728, .size_bytes = 64},
};

// Numbers of many magnitudes, groups of zeros, tiny ones, and one with a NaN and one with an infinity.
std::vector<std::byte> States() {
  std::vector<std::byte> states(kStatesBytes);
  std::mt19937 random(3);
  for (const CheckpointTensor& t : kTensors) {
    for (int64_t i = 0; i < t.num_elements; ++i) {
      const int64_t group = i / kCheckpointGroup;
      float value = std::normal_distribution<float>()(random) * std::exp2(static_cast<float>(group * 7 % 60) - 30);
      if (group == 3) value = 0;
      if (group == 4) value = 1e-37f;
      if (group == 5 && i % 32 == 9) value = std::numeric_limits<float>::quiet_NaN();
      if (group == 6 && i % 32 == 31) value = -std::numeric_limits<float>::infinity();
      std::byte* const to = states.data() + t.state_offset + i * DTypeBytes(t.dtype);
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      if (t.dtype == DType::kBFloat16) bits >>= 16;
      std::memcpy(to, &bits, static_cast<size_t>(DTypeBytes(t.dtype)));
    }
  }
  return states;
}

TEST(CheckpointConverterTest, HasTheBytesOfTheCpu) {
  const std::vector<std::byte> states = States();
  std::vector<std::byte> checkpoint(kCheckpointBytes, std::byte{0x55}), expanded(kStatesBytes);
  QuantiseStates(kTensors, states.data(), checkpoint.data());
  ExpandStates(kTensors, checkpoint.data(), expanded.data());

  const TestDevice* const gpu = GetTestDevice();
  const auto bytes_of = [](const std::vector<std::byte>& bytes) {
    return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte);
  };
  const at::Tensor arena =
      at::full({kStatesBytes + kCheckpointBytes}, 0x55, at::kByte).to(gpu != nullptr ? gpu->device : at::kCPU);
  arena.narrow(0, 0, kStatesBytes).copy_(bytes_of(states));
  ops::CheckpointConverter converter(gpu != nullptr ? gpu->kernels : BerthCudaKernels());
  StateConversion conversion = {.tensors = kTensors,
                                .expands = false,
                                .states = 0,
                                .states_bytes = kStatesBytes,
                                .checkpoint = kStatesBytes,
                                .checkpoint_bytes = kCheckpointBytes};
  converter(arena, conversion);
  EXPECT_TRUE(at::equal(arena.narrow(0, kStatesBytes, kCheckpointBytes).cpu(), bytes_of(checkpoint)));
  arena.narrow(0, 0, kStatesBytes).zero_();
  conversion.expands = true;
  converter(arena, conversion);
  const at::Tensor got = arena.narrow(0, 0, kStatesBytes).cpu();
  for (const CheckpointTensor& t : kTensors) {
    const auto numbers = [&](const at::Tensor& of) {
      const at::Tensor part = of.narrow(0, t.state_offset, t.num_elements * DTypeBytes(t.dtype));
      return part.view(t.dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16);
    };
    EXPECT_TRUE(at::allclose(numbers(got), numbers(bytes_of(expanded)), /*rtol=*/0, /*atol=*/0, /*equal_nan=*/true));
  }
}

}  // namespace
}  // namespace berth
