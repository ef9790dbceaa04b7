// What quantising does to states' numbers, and how a checkpoint lies.
#include "cache/checkpoint.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "cache/spec.h"

namespace berth {
namespace {

const KvSpec kKv = {.kv_heads = 1, .key_dim = 8, .value_dim = 8};

std::vector<LayerCacheSpec> Layers() {
  return {{.kv = kKv, .states = {{.name = "conv", .shape = {3, 100}, .dtype = DType::kBFloat16}}},
          {.kv = kKv},
          {.states = {{.name = "small", .shape = {4}},
                      {.name = "recurrent", .shape = {5, 77}},
                      {.name = "large", .shape = {8, 64, 16}}}}};
}

CachePlan Plan(const std::vector<LayerCacheSpec>& layers) {
  auto plan = BuildCachePlan(layers, 16);
  EXPECT_TRUE(plan.ok()) << plan.status();
  QuantiseCheckpoints(layers, &*plan);
  return *std::move(plan);
}

float NumberAt(const std::byte* state, DType dtype, int64_t i) {
  float value = 0;
  if (dtype == DType::kFloat32) {
    std::memcpy(&value, state + 4 * i, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, state + 2 * i, sizeof(bits));
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

void SetNumber(float value, DType dtype, int64_t i, std::byte* state) {
  if (dtype == DType::kFloat32) {
    std::memcpy(state + 4 * i, &value, sizeof(value));
  } else {
    const uint16_t bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
    std::memcpy(state + 2 * i, &bits, sizeof(bits));
  }
}

struct States {
  explicit States(const std::vector<LayerCacheSpec>& layers)
      : plan(Plan(layers)),
        states(plan.groups[plan.state_group()].unit_bytes),
        checkpoint(plan.groups[plan.checkpoint_group()].unit_bytes, std::byte{0xEE}),
        expanded(states.size(), std::byte{0xDD}) {}

  // Fills the states with numbers of every size that a group may have.
  void Fill(uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (const CheckpointTensor& tensor : plan.checkpoints) {
      for (int64_t i = 0; i < tensor.num_elements; ++i) {
        const float size = std::pow(10.0f, static_cast<float>(i / kCheckpointGroup % 60) - 30);
        SetNumber(size * normal(random), tensor.dtype, i, states.data() + tensor.state_offset);
      }
    }
  }
  void RoundTrip() {
    QuantiseStates(plan.checkpoints, states.data(), checkpoint.data());
    ExpandStates(plan.checkpoints, checkpoint.data(), expanded.data());
  }
  float Before(const CheckpointTensor& tensor, int64_t i) const {
    return NumberAt(states.data() + tensor.state_offset, tensor.dtype, i);
  }
  float After(const CheckpointTensor& tensor, int64_t i) const {
    return NumberAt(expanded.data() + tensor.state_offset, tensor.dtype, i);
  }

  CachePlan plan;
  std::vector<std::byte> states;
  std::vector<std::byte> checkpoint;
  std::vector<std::byte> expanded;
};

TEST(QuantiseCheckpoints, AddsAGroupAndChangesNoOther) {
  const auto exact = BuildCachePlan(Layers(), 16);
  const CachePlan plan = Plan(Layers());
  ASSERT_EQ(plan.groups.size(), exact->groups.size() + 1);
  EXPECT_EQ(exact->checkpoint_group(), -1);
  EXPECT_EQ(exact->kept_group(), exact->state_group());
  EXPECT_EQ(plan.checkpoint_group(), static_cast<int>(exact->groups.size()));
  EXPECT_EQ(plan.kept_group(), plan.checkpoint_group());
  for (size_t g = 0; g < exact->groups.size(); ++g) {
    EXPECT_EQ(plan.groups[g].kind, exact->groups[g].kind);
    EXPECT_EQ(plan.groups[g].unit_bytes, exact->groups[g].unit_bytes);
  }
  const CacheGroup& group = plan.groups.back();
  EXPECT_EQ(CacheKindName(group.kind), "checkpoint");
  EXPECT_EQ(group.layers, (std::vector<int>{0, 2}));
  EXPECT_FALSE(group.grows());
  EXPECT_EQ(plan.BytesPerToken(), exact->BytesPerToken());
  EXPECT_EQ(plan.StateBytesPerSequence(), exact->StateBytesPerSequence());
}

TEST(QuantiseCheckpoints, TensorsAreAlignedAndDoNotOverlap) {
  const CachePlan plan = Plan(Layers());
  ASSERT_EQ(plan.checkpoints.size(), 4u);
  int64_t end = 0;
  for (const CheckpointTensor& tensor : plan.checkpoints) {
    EXPECT_EQ(tensor.offset, end);
    EXPECT_EQ(tensor.offset % 64, 0);
    EXPECT_EQ(tensor.scale_offset % 64, 0);
    if (tensor.scale_offset > 0) {
      EXPECT_GE(tensor.scale_offset, tensor.num_elements);
      EXPECT_GE(tensor.size_bytes, tensor.scale_offset + 2 * (tensor.num_elements / kCheckpointGroup));
    }
    end += tensor.size_bytes;
  }
  EXPECT_EQ(plan.groups.back().unit_bytes, end);
  EXPECT_EQ(plan.checkpoints[1].scale_offset, 0) << "of 16 bytes, which do not get fewer";
  EXPECT_EQ(plan.checkpoints[1].size_bytes, 64);
}

TEST(QuantiseCheckpoints, WithoutStatesThereIsNothingToDo) {
  EXPECT_EQ(Plan({{.kv = kKv}}).groups.size(), 1u);
  EXPECT_EQ(Plan({{.kv = kKv}}).kept_group(), -1);
}

TEST(QuantiseCheckpoints, MoreThanThreeInTheBytesOfOne) {
  // Mamba-2 of falcon_h1-1.5b's size, and a recurrence whose convolution is larger than its state.
  for (const std::vector<LayerCacheSpec>& layers :
       {std::vector<LayerCacheSpec>(
            24, {.states = {{.name = "conv", .shape = {3, 3584}}, {.name = "recurrent", .shape = {48, 256, 64}}}}),
        std::vector<LayerCacheSpec>(
            17, {.states = {{.name = "conv", .shape = {3, 2560}}, {.name = "recurrent", .shape = {2560}}}})}) {
    const CachePlan plan = Plan(layers);
    EXPECT_GT(plan.groups[0].unit_bytes, 37 * plan.groups[1].unit_bytes / 10);
  }
}

TEST(Checkpoint, NumbersAreOffByAtMostHalfAStepOfTheirGroup) {
  States s(Layers());
  s.Fill(1);
  s.RoundTrip();
  for (const CheckpointTensor& tensor : s.plan.checkpoints) {
    for (int64_t first = 0; first < tensor.num_elements; first += kCheckpointGroup) {
      const int64_t end = std::min(first + kCheckpointGroup, tensor.num_elements);
      float largest = 0;
      for (int64_t i = first; i < end; ++i) largest = std::max(largest, std::abs(s.Before(tensor, i)));
      // A bfloat16 state is rounded to its own type once more.
      const float most = tensor.scale_offset == 0 ? 0 : largest / (tensor.dtype == DType::kFloat32 ? 253 : 127);
      for (int64_t i = first; i < end; ++i) {
        ASSERT_LE(std::abs(s.After(tensor, i) - s.Before(tensor, i)), most) << "element " << i << " of " << largest;
      }
    }
  }
}

TEST(Checkpoint, TheSameStatesGiveTheSameBytesAndOnlyOnceLessThanTheyWere) {
  States s(Layers());
  s.Fill(2);
  s.RoundTrip();
  States again(Layers());
  std::fill(again.checkpoint.begin(), again.checkpoint.end(), std::byte{0x11});
  again.states = s.states;
  again.RoundTrip();
  EXPECT_EQ(s.checkpoint, again.checkpoint) << "whatever was there before, padding too";
  again.states = s.expanded;
  again.RoundTrip();
  EXPECT_EQ(s.checkpoint, again.checkpoint) << "what was rounded once is not rounded again";
}

TEST(Checkpoint, WhatIsNoNumberStaysNone) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    States s(Layers());
    s.Fill(3);
    for (const CheckpointTensor& tensor : s.plan.checkpoints) {
      SetNumber(bad, tensor.dtype, tensor.num_elements - 1, s.states.data() + tensor.state_offset);
    }
    s.RoundTrip();
    for (const CheckpointTensor& tensor : s.plan.checkpoints) {
      const int64_t last = (tensor.num_elements - 1) / kCheckpointGroup * kCheckpointGroup;
      for (int64_t i = 0; i < tensor.num_elements; ++i) {
        const bool with_it = tensor.scale_offset > 0 ? i >= last : i == tensor.num_elements - 1;
        ASSERT_EQ(!std::isfinite(s.After(tensor, i)), with_it) << i;
      }
    }
  }
}

TEST(Checkpoint, PoisonComesOutAsPoison) {
  States s(Layers());
  std::fill(s.states.begin(), s.states.end(), std::byte{0xFF});
  s.RoundTrip();
  for (const CheckpointTensor& tensor : s.plan.checkpoints) {
    for (int64_t i = 0; i < tensor.num_elements; ++i) ASSERT_TRUE(std::isnan(s.After(tensor, i)));
  }
  // And a checkpoint that was given back does not expand to numbers.
  std::fill(s.checkpoint.begin(), s.checkpoint.end(), std::byte{0xFF});
  std::fill(s.expanded.begin(), s.expanded.end(), std::byte{0});
  ExpandStates(s.plan.checkpoints, s.checkpoint.data(), s.expanded.data());
  for (const CheckpointTensor& tensor : s.plan.checkpoints) {
    for (int64_t i = 0; i < tensor.num_elements; ++i) ASSERT_TRUE(std::isnan(s.After(tensor, i)));
  }
}

TEST(Checkpoint, TheSmallestAndTheLargestNumbers) {
  States s({{.states = {{.name = "s", .shape = {4, kCheckpointGroup}}}}});
  const CheckpointTensor& tensor = s.plan.checkpoints[0];
  const float sizes[] = {0.0f, std::numeric_limits<float>::denorm_min(), 2e-35f, 3e38f};
  for (int64_t i = 0; i < tensor.num_elements; ++i) {
    SetNumber(i % 2 == 0 ? sizes[i / kCheckpointGroup] : -sizes[i / kCheckpointGroup], tensor.dtype, i,
              s.states.data());
  }
  s.RoundTrip();
  for (int64_t i = 0; i < tensor.num_elements; ++i) {
    const float before = s.Before(tensor, i);
    ASSERT_LE(std::abs(s.After(tensor, i) - before), std::max(1e-35f, std::abs(before) / 253)) << i;
  }
}

}  // namespace
}  // namespace berth
