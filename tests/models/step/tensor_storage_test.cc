// The arena as a tensor. On the CPU a fence does nothing; with BERTH_TEST_DEVICE the arena is a GPU's, whose copies
// beside the steps run too.
#include "models/step/tensor_storage.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "cache/checkpoint.h"
#include "tests/models/aten_calls.h"
#include "tests/models/test_device.h"

namespace berth {
namespace {

class TensorStorageTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSize = int64_t{5} << 20;

  TensorStorageTest() : storage_(at::empty({kSize}, Options())) {}

  static at::TensorOptions Options() {
    const TestDevice* const gpu = GetTestDevice();
    return at::TensorOptions().dtype(at::kByte).device(gpu != nullptr ? gpu->device : at::Device(at::kCPU));
  }

  static std::vector<std::byte> Numbers(int64_t count) {
    std::vector<std::byte> bytes(static_cast<size_t>(count));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
    return bytes;
  }
  std::vector<std::byte> ReadAt(int64_t offset, int64_t count) const {
    std::vector<std::byte> bytes(static_cast<size_t>(count));
    storage_.Read(offset, count, bytes.data());
    return bytes;
  }

  TensorStorage storage_;
};

TEST_F(TensorStorageTest, ReadsWhatWasWritten) {
  const std::vector<std::byte> bytes = Numbers(kSize - 100);
  storage_.Write(100, kSize - 100, bytes.data());
  EXPECT_EQ(ReadAt(100, kSize - 100), bytes);
  if (GetTestDevice() != nullptr) return;  // the host cannot read it
  EXPECT_EQ(std::memcmp(storage_.base() + 100, bytes.data(), bytes.size()), 0);
}

TEST_F(TensorStorageTest, MovesOverItself) {
  for (const auto& [from, to] : {std::pair<int64_t, int64_t>(1000, 1300), {1300, 1000}, {0, 4000}}) {
    const std::vector<std::byte> bytes = Numbers(2000);
    storage_.Write(from, 2000, bytes.data());
    storage_.Move(from, to, 2000);
    EXPECT_EQ(ReadAt(to, 2000), bytes) << from << " to " << to;
  }
}

// By far more than the buffer that they pass through, which was made with the arena: they take no other memory.
TEST_F(TensorStorageTest, MovesOverItselfInPieces) {
  for (const auto& [from, to] : {std::pair<int64_t, int64_t>(0, 1000), {1000, 0}, {700, 701}}) {
    const std::vector<std::byte> bytes = Numbers(kSize - 1000);
    storage_.Write(from, kSize - 1000, bytes.data());
    const AtenCalls calls;
    storage_.Move(from, to, kSize - 1000);
    EXPECT_EQ(calls.Count("aten::clone") + calls.Count("aten::empty_like"), 0);
    EXPECT_EQ(ReadAt(to, kSize - 1000), bytes) << from << " to " << to;
  }
}

// A range outside the arena stands for an error of the device: ATen throws.
TEST_F(TensorStorageTest, RemembersTheFirstErrorAndDoesNothingAfterIt) {
  using Call = std::function<void(TensorStorage&)>;
  std::vector<std::byte> bytes = Numbers(64);
  const std::vector<Call> calls = {
      [](TensorStorage& s) { s.Move(kSize, 0, 64); },
      [](TensorStorage& s) { s.Move(kSize - 32, kSize - 48, 64); },
      [&](TensorStorage& s) { s.Read(kSize, 64, bytes.data()); },
      [&](TensorStorage& s) { s.Write(kSize, 64, bytes.data()); },
      [](TensorStorage& s) { s.Poison(kSize, 64); },
      [](TensorStorage& s) { s.Convert({.states = kSize, .states_bytes = 64, .checkpoint_bytes = 64}); },
  };
  for (const Call& call : calls) {
    at::Tensor arena = at::zeros({kSize}, Options());
    TensorStorage storage(arena);
    EXPECT_TRUE(storage.status().ok());
    call(storage);
    EXPECT_EQ(storage.status().code(), absl::StatusCode::kInternal);
    const std::string message(storage.status().message());
    EXPECT_TRUE(absl::StartsWith(message, "the arena's device failed: ")) << message;
    storage.Poison(0, 64);
    storage.Write(kSize + 1, 64, bytes.data());
    EXPECT_EQ(arena[0].item<uint8_t>(), 0);
    EXPECT_EQ(storage.status().message(), message);
    storage.Read(0, 64, bytes.data());
    for (std::byte byte : bytes) EXPECT_EQ(byte, std::byte{0xFF});
  }
}

// 40 numbers of float32, two groups: 40 bytes of values, 24 of padding, two scales.
const std::vector<CheckpointTensor> kTensors = {{.num_elements = 40, .scale_offset = 64, .size_bytes = 128}};
constexpr StateConversion kConversion = {
    .tensors = {}, .expands = false, .states = 64, .states_bytes = 192, .checkpoint = 512, .checkpoint_bytes = 128};

TEST_F(TensorStorageTest, ConvertsThroughTheHost) {
  std::vector<std::byte> states(192), checkpoint(128);
  for (int i = 0; i < 40; ++i) reinterpret_cast<float*>(states.data())[i] = static_cast<float>(i - 7) / 3;
  storage_.Write(64, 192, states.data());
  StateConversion conversion = kConversion;
  conversion.tensors = kTensors;
  storage_.Convert(conversion);
  QuantiseStates(kTensors, states.data(), checkpoint.data());
  EXPECT_EQ(ReadAt(512, 128), checkpoint);
  conversion.expands = true;
  storage_.Convert(conversion);
  ExpandStates(kTensors, checkpoint.data(), states.data());
  EXPECT_EQ(ReadAt(64, 192), states);
}

TEST_F(TensorStorageTest, ConvertsOnTheDeviceIfItCan) {
  int calls = 0;
  TensorStorage storage(at::zeros({kSize}, Options()), [&](const at::Tensor& arena, const StateConversion& conversion) {
    EXPECT_EQ(arena.numel(), kSize);
    EXPECT_EQ(conversion.checkpoint, 512);
    TORCH_CHECK(++calls == 1, "an error of the device");
  });
  storage.Convert(kConversion);
  EXPECT_TRUE(storage.status().ok());
  storage.Convert(kConversion);
  EXPECT_EQ(storage.status().code(), absl::StatusCode::kInternal);
  storage.Convert(kConversion);
  EXPECT_EQ(calls, 2);
}

TEST_F(TensorStorageTest, PoisonIsNoNumber) {
  storage_.Poison(512, 64);
  for (std::byte byte : ReadAt(512, 64)) EXPECT_EQ(byte, std::byte{0xFF});
}

// On a GPU, in pieces of equal size, with a smaller one at the end, and in one piece.
TEST_F(TensorStorageTest, AnotherThreadCopiesAfterAFence) {
  for (const int64_t size : {3 << 20, (3 << 20) + 5, (4 << 20) + 1, (64 << 10) + 1, 1}) {
    const std::vector<std::byte> bytes = Numbers(size);
    storage_.Poison(0, kSize);
    storage_.Fence();
    std::thread([&] { storage_.Write(4096, size, bytes.data()); }).join();
    storage_.Fence();
    std::vector<std::byte> read;
    std::thread([&] { read = ReadAt(4096, size); }).join();
    EXPECT_EQ(read, bytes) << size;
  }
}

}  // namespace
}  // namespace berth
