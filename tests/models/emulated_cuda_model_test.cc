// Whole models on the CUDA kernels, emulated on the CPU: no GPU takes part. They choose the tokens that the CPU's
// kernels choose.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/cache.h"
#include "models/kernels/cuda/dispatch.h"
#include "models/loader.h"
#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"

namespace berth {
namespace {

constexpr int kOutputs = 5;

// One greedy sequence.
struct Sequence {
  SequenceLease lease;
  std::vector<int32_t> tokens;
  int64_t prompt_length;
};

StepRow NextRow(Sequence* sequence, const SamplingParams& greedy) {
  const int64_t start = sequence->lease.num_tokens();
  const absl::Span<const int32_t> tokens = sequence->tokens;
  EXPECT_TRUE(sequence->lease.Grow(static_cast<int64_t>(tokens.size()) - start).ok());
  return {.lease = &sequence->lease,
          .tokens = tokens.subspan(start),
          .start = start,
          .sample = true,
          .sampling = &greedy,
          .history = tokens,
          .prompt_length = sequence->prompt_length,
          .sequence_length = static_cast<int64_t>(tokens.size())};
}

// All tokens of two sequences that run together, prompts of several tiles and of one.
std::vector<std::vector<int32_t>> Generate(const std::string& model_dir) {
  const auto model = *LoadedModel::Load({.model_dir = model_dir, .dtype = "float32", .num_threads = 1});
  const auto storage = *model->CreateStorage(int64_t{32} << 20);
  const auto runner = *model->CreateRunner(storage.get());
  const auto cache = *Cache::Create(model->cache_plan(), storage.get(), {.poison_returned_units = true});
  SamplingParams greedy;
  greedy.temperature = 0;
  std::vector<Sequence> sequences;
  for (int32_t length : {3, 37}) {
    Sequence& sequence =
        sequences.emplace_back(Sequence{.lease = cache->NewLease(), .tokens = {}, .prompt_length = length});
    for (int32_t i = 0; i < length; ++i) sequence.tokens.push_back(3 + i * 7 % 40);
  }
  StepResult result;
  for (int output = 0; output < kOutputs; ++output) {
    StepPlan plan;
    for (Sequence& sequence : sequences) {
      plan.rows.push_back(NextRow(&sequence, greedy));
      plan.num_tokens += static_cast<int64_t>(plan.rows.back().tokens.size());
    }
    EXPECT_TRUE(runner->Run(plan, &result).ok());
    for (size_t i = 0; i < sequences.size(); ++i) sequences[i].tokens.push_back(result.rows[i].token);
  }
  std::vector<std::vector<int32_t>> tokens;
  for (const Sequence& sequence : sequences) tokens.push_back(sequence.tokens);
  return tokens;
}

// Attention beside Mamba-2; sliding and full attention.
class EmulatedCudaModelTest : public ::testing::TestWithParam<const char*> {};

TEST_P(EmulatedCudaModelTest, ChoosesTheTokensOfTheCpu) {
  const std::string model = std::string("models/demo/") + GetParam();
  const auto expected = Generate(model);
  cuda::UseKernels(BerthCudaKernels());
  const int64_t blocks = cuda_emulation::NumBlocks();
  const auto emulated = Generate(model);
  EXPECT_GT(cuda_emulation::NumBlocks(), blocks);
  cuda::UseKernels(nullptr);
  EXPECT_EQ(emulated, expected);
}

INSTANTIATE_TEST_SUITE_P(Demos, EmulatedCudaModelTest, ::testing::Values("falcon_h1-demo", "gemma3-demo"),
                         [](const auto& info) { return std::string(info.param, info.param[0] == 'f' ? 9 : 6); });

}  // namespace
}  // namespace berth
