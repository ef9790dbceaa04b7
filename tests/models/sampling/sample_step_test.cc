// The CPU's sampler, the ATen reference and the emulated CUDA kernels choose the same tokens.
#include "models/sampling/sample_step.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <utility>

#include "models/ops/cuda_kernels.h"
#include "models/sampling/sampler.h"
#include "models/sampling/sampler_reference.h"
#include "models/step/execution.h"
#include "models/token_constraint.h"
#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"
#include "tests/models/test_device.h"

namespace berth {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// By the CPU, or by the kernels given.
void SampleRows(const at::Tensor& logits, const StepPlan& plan, absl::Span<const int> row_indices, StepResult* result,
                const ops::cuda::Kernels* kernels = nullptr) {
  Execution execution = {.cuda_kernels = kernels};
  StepSampler(&execution).SampleRows(logits, plan, row_indices, result);
}

// What is asked of a batch's rows: anything; a token, drawn or the likeliest; the likeliest token alone.
enum class Asked { kAnything, kToken, kGreedy };

// Masks from those that allow nothing to those that allow everything.
std::unique_ptr<RowMasks> RandomMasks(int64_t count, int64_t vocab, std::mt19937_64* random) {
  auto masks = std::make_unique<RowMasks>();
  for (uint32_t& word : masks->Reset(count, MaskWords(vocab))) word = 0;
  const absl::Span<uint32_t> words = masks->Reset(count, MaskWords(vocab));
  for (int64_t m = 0; m < count; ++m) {
    uint32_t* const mask = words.data() + m * MaskWords(vocab);
    const uint64_t kind = (*random)() % 8;
    if (kind == 0) continue;
    for (int64_t i = 0; i < vocab; ++i) {
      if (kind == 1 || (*random)() % (kind < 4 ? 2 : 50) == 0) mask[i / 32] |= uint32_t{1} << (i % 32);
    }
    const int64_t one = static_cast<int64_t>((*random)() % vocab);
    mask[one / 32] |= uint32_t{1} << (one % 32);
  }
  // Bits past the vocabulary mean nothing.
  if (vocab % 32 != 0) words.back() |= ~uint32_t{0} << (vocab % 32);
  masks->SetDone();
  return masks;
}

// A plan of random rows that owns what they borrow.
class Batch {
 public:
  Batch(int64_t rows, int64_t vocab, uint64_t seed, Asked asked = Asked::kAnything)
      : random_(seed), logits_(at::empty({rows, vocab})) {
    owned_.resize(static_cast<size_t>(rows));
    for (int64_t r = 0; r < rows; ++r) {
      FillLogits(logits_.data_ptr<float>() + r * vocab, vocab);
      FillRow(&owned_[r], vocab);
      if (asked == Asked::kAnything) continue;
      const SamplingParams p = owned_[r].params;
      owned_[r] = {.history = {1}, .prompt_length = 1, .masks = std::move(owned_[r].masks)};
      if (asked == Asked::kGreedy) {
        owned_[r].params.temperature = 0;
      } else {
        const int32_t top_k = OneOf({0, 0, 1, 40, 600, p.top_k, static_cast<int32_t>(vocab)});
        owned_[r].params = {
            .temperature = p.temperature, .top_k = top_k, .top_p = p.top_p, .min_p = p.min_p, .seed = p.seed};
      }
    }
    for (const Owned& o : owned_) {
      StepRow row;
      row.tokens = absl::MakeSpan(o.history).last(1);
      row.start = static_cast<int64_t>(o.history.size()) - 1;
      row.sample = true;
      row.sampling = &o.params;
      row.history = o.history;
      row.prompt_length = o.prompt_length;
      row.banned = o.banned;
      row.forced = o.forced;
      row.masks = o.masks.get();
      row.rank_allowed = o.rank_allowed;
      indices_.push_back(static_cast<int>(plan_.rows.size()));
      plan_.rows.push_back(row);
    }
  }

  const StepPlan& plan() const { return plan_; }
  StepRow* mutable_row(size_t i) { return &plan_.rows[i]; }
  void RoundToBfloat16() { logits_ = logits_.to(at::kBFloat16); }
  const at::Tensor& logits() const { return logits_; }

  StepResult Fast(const ops::cuda::Kernels* kernels = nullptr, at::Device device = at::kCPU) const {
    StepResult result;
    SampleRows(logits_.to(device), plan_, indices_, &result, kernels);
    return result;
  }

  StepResult Reference(at::Device device) const {
    StepResult result;
    result.rows.resize(plan_.rows.size());
    std::vector<const StepRow*> rows;
    std::vector<RowResult*> results;
    for (size_t i = 0; i < plan_.rows.size(); ++i) {
      rows.push_back(&plan_.rows[i]);
      results.push_back(&result.rows[i]);
    }
    std::vector<const uint32_t*> masks;
    for (const StepRow* row : rows) masks.push_back(MaskOf(*row, kAfterDrafts));
    SampleRowsReference(logits_.to(device), rows, masks, absl::MakeSpan(results));
    return result;
  }

 private:
  struct Owned {
    SamplingParams params;
    std::vector<int32_t> history;
    int64_t prompt_length = 0;
    std::vector<int32_t> banned;
    std::vector<int32_t> forced;
    std::unique_ptr<RowMasks> masks;
    bool rank_allowed = false;
  };

  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[random_() % values.size()];
  }

  void FillLogits(float* x, int64_t vocab) {
    std::normal_distribution<float> normal(0, 1);
    const float spread = OneOf({0.0f, 0.1f, 1.0f, 3.0f, 10.0f});
    const bool rounded = random_() % 3 == 0;  // as bfloat16 would: many ties
    const bool holes = random_() % 4 == 0;
    for (int64_t i = 0; i < vocab; ++i) {
      x[i] = normal(random_) * spread;
      if (rounded) x[i] = std::round(x[i] * 8) / 8;
      if (holes && random_() % 2 == 0) x[i] = -kInf;
    }
    if (random_() % 20 == 0) x[random_() % vocab] = OneOf({NAN, kInf, -kInf});
  }

  void FillRow(Owned* o, int64_t vocab) {
    SamplingParams& p = o->params;
    const auto token = [&] { return static_cast<int32_t>(random_() % (vocab + 2)) - 1; };
    p.temperature = OneOf({0.0f, 1e-6f, 0.3f, 0.7f, 1.0f, 1.0f, 2.0f, 100.0f});
    p.top_k = OneOf({0, 0, 1, 2, 20, 50, 1000, 200000});
    p.top_p = OneOf({1.0f, 1.0f, 1e-6f, 0.1f, 0.5f, 0.8f, 0.95f, 0.9999f});
    p.min_p = OneOf({0.0f, 0.0f, 0.01f, 0.1f, 0.5f, 1.0f});
    p.repetition_penalty = OneOf({1.0f, 1.0f, 1.1f, 0.7f, 2.0f});
    p.presence_penalty = OneOf({0.0f, 0.0f, 0.5f, -1.0f});
    p.frequency_penalty = OneOf({0.0f, 0.0f, 0.3f, -0.2f});
    p.num_logprobs = OneOf({-1, -1, 0, 1, 5, 20});
    p.seed = random_();
    if (random_() % 3 == 0) p.logit_bias = {{token(), 3.5f}, {token(), -100.0f}};
    const size_t length = 1 + random_() % 200;
    while (o->history.size() < length) o->history.push_back(token());
    o->prompt_length = static_cast<int64_t>(random_() % length);
    if (random_() % 3 == 0) o->banned = {token(), token()};
    if (random_() % 9 == 0) o->forced = {token(), token(), token()};
    p.logprobs_after_mask = random_() % 2 == 0;
    o->rank_allowed = random_() % 4 == 0;
    if (random_() % 2 == 0) o->masks = RandomMasks(1, vocab, &random_);
  }

  std::mt19937_64 random_;
  at::Tensor logits_;
  std::vector<Owned> owned_;
  StepPlan plan_;
  std::vector<int> indices_;
};

void ExpectSame(const StepResult& fast, const StepResult& reference) {
  ASSERT_EQ(fast.rows.size(), reference.rows.size());
  for (size_t i = 0; i < fast.rows.size(); ++i) {
    const RowResult& a = fast.rows[i];
    const RowResult& b = reference.rows[i];
    ASSERT_EQ(a.token, b.token) << "row " << i;
    // Sums of doubles in different order, rounded to float: at most the last bit differs.
    ASSERT_TRUE(a.logprob == b.logprob || std::abs(a.logprob - b.logprob) < 1e-6f * (1 + std::abs(a.logprob))) << i;
    ASSERT_EQ(a.top.size(), b.top.size()) << "row " << i;
    for (size_t j = 0; j < a.top.size(); ++j) {
      ASSERT_EQ(a.top[j].token, b.top[j].token) << "row " << i << " top " << j;
      ASSERT_NEAR(a.top[j].logprob, b.top[j].logprob, 1e-6f * (1 + std::abs(a.top[j].logprob)));
    }
  }
}

class SampleStepTest : public testing::TestWithParam<std::tuple<std::string, int64_t>> {};

TEST_P(SampleStepTest, ReferenceChoosesTheSameTokens) {
  const auto& [device, vocab] = GetParam();
  if (device == "cuda" && GetTestDevice() == nullptr && !at::hasCUDA())
    GTEST_SKIP() << "no CUDA device here: the reference did not run on one";
  const int batches = vocab > 10000 ? 1 : vocab > 100 ? 10 : 40;  // of 40 rows, each with its own parameters
  int sampled = 0;
  for (int b = 0; b < batches; ++b) {
    const Batch batch(40, vocab, 1000 * vocab + b);
    const StepResult fast = batch.Fast();
    ExpectSame(fast, batch.Reference(at::Device(device)));
    for (const RowResult& row : fast.rows) sampled += row.token >= 0 ? 1 : 0;
  }
  EXPECT_GT(sampled, batches * 40 / 2);
}

INSTANTIATE_TEST_SUITE_P(Devices, SampleStepTest,
                         testing::Combine(testing::Values("cpu", "cuda"),
                                          testing::Values(1, 2, 3, 33, 1000, 1024, 5000, 32000, 151936)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::to_string(std::get<1>(info.param));
                         });

TEST(SampleRows, FillsOnlyTheRowsItIsGiven) {
  const Batch batch(4, 33, 1);
  const StepResult all = batch.Fast();
  StepResult result;
  const int rows[] = {3, 1};
  SampleRows(batch.logits().index_select(0, at::tensor({int64_t{3}, int64_t{1}})), batch.plan(), rows, &result);
  ASSERT_EQ(result.rows.size(), 4u);
  EXPECT_EQ(result.rows[0].token, RowResult::kNoToken);
  EXPECT_EQ(result.rows[2].token, RowResult::kNoToken);
  EXPECT_EQ(result.rows[1].token, all.rows[1].token);
  EXPECT_EQ(result.rows[3].token, all.rows[3].token);
}

TEST(SampleRows, ARowChoosesAloneAsItDoesInABatch) {
  const Batch batch(40, 5000, 2);
  const StepResult all = batch.Fast();
  for (int i = 0; i < 40; ++i) {
    StepResult alone;
    SampleRows(batch.logits().slice(0, i, i + 1), batch.plan(), {&i, 1}, &alone);
    EXPECT_EQ(alone.rows[i].token, all.rows[i].token);
    EXPECT_EQ(alone.rows[i].logprob, all.rows[i].logprob);
  }
}

TEST(SampleRows, TakesLogitsOfAnyStride) {
  const Batch batch(8, 100, 3);
  StepResult result;
  SampleRows(batch.logits().t().contiguous().t(), batch.plan(), {0, 1, 2, 3, 4, 5, 6, 7}, &result);
  ExpectSame(result, batch.Fast());
}

// The CUDA kernels: on the GPU that BERTH_TEST_DEVICE names, or else emulated on the CPU. `blocks`: how many the
// emulated kernels must have run.
void ExpectEmulatedIsSame(const Batch& batch, int64_t blocks) {
  const StepResult expected = batch.Fast();
  if (const TestDevice* gpu = GetTestDevice()) return ExpectSame(batch.Fast(gpu->kernels, gpu->device), expected);
  const int64_t before = cuda_emulation::NumBlocks();
  const StepResult emulated = batch.Fast(BerthCudaKernels());
  ExpectSame(emulated, expected);
  EXPECT_EQ(cuda_emulation::NumBlocks() - before, blocks);
}

TEST(SampleRows, TheEmulatedKernelIsGreedyAsTheCpuIs) {
  for (int64_t vocab : {1, 33, 4999, 5000}) ExpectEmulatedIsSame(Batch(40, vocab, 4 + vocab, Asked::kGreedy), 40);
}

class EmulatedSampleTest : public testing::TestWithParam<int64_t> {
 protected:
  void TearDown() override { cuda_emulation::SetOrder(cuda_emulation::Order::kAscending); }
};

// In either order of threads and blocks: see the emulation.
TEST_P(EmulatedSampleTest, TheKernelDrawsAsTheCpuDoes) {
  const int64_t vocab = GetParam();
  const int64_t rows = vocab > 100000 ? 8 : 40;
  const int batches = (vocab > 10000 ? 2 : 4) * (std::getenv("BERTH_FULL") != nullptr ? 10 : 1);
  for (int b = 0; b < batches; ++b) {
    cuda_emulation::SetOrder(b % 2 == 0 ? cuda_emulation::Order::kAscending : cuda_emulation::Order::kDescending);
    ExpectEmulatedIsSame(Batch(rows, vocab, 2000 * vocab + b, Asked::kToken), rows);
  }
}

// The least draw, and those next to both ends of kept tokens' shares, with the tokens that they must give. A kernel
// that keeps others moves the ends.
struct Draws {
  std::vector<ops::SampleParams> params;
  std::vector<int32_t> expected;

  Draws(const SamplingParams& p, const std::vector<std::pair<int32_t, double>>& distribution) {
    constexpr double kMargin = 1e-11;  // sums of doubles in different order
    constexpr size_t kMostTokens = 6;
    const size_t stride = std::max<size_t>(1, distribution.size() / kMostTokens);
    double before = 0;
    for (size_t i = 0; i < distribution.size(); ++i) {
      const auto [token, share] = distribution[i];
      const double after = before + share;
      if (share > 1e-9 && (i % stride == 0 || i + 1 == distribution.size())) {
        Add(p, before + kMargin, token);
        Add(p, after - kMargin, token);
      }
      before = after;
    }
    Add(p, 0, distribution[0].first);
  }

  void Add(const SamplingParams& p, double uniform, int32_t token) {
    params.push_back({.inverse_temperature = 1.0 / static_cast<double>(p.temperature),
                      .uniform = uniform,
                      .top_p = p.top_p,
                      .min_p = p.min_p,
                      .top_k = p.top_k});
    expected.push_back(token);
  }
};

TEST_P(EmulatedSampleTest, TheKernelKeepsWhatTheCpuKeeps) {
  const int64_t vocab = GetParam();
  const Batch batch(vocab > 10000 ? 4 : 16, vocab, 3000 + vocab, Asked::kToken);
  constexpr int64_t kRowsAtOnce = 5;
  std::vector<double> scratch(ops::SampleScratchBytes(kRowsAtOnce, vocab, /*has_edits=*/false) / sizeof(double));
  Sampler sampler;
  for (size_t r = 0; r < batch.plan().rows.size(); ++r) {
    const StepRow& row = batch.plan().rows[r];
    const float* logits = batch.logits().const_data_ptr<float>() + static_cast<int64_t>(r) * vocab;
    RowResult result;
    sampler.SampleRow({logits, static_cast<size_t>(vocab)}, row, &result);
    if (result.token < 0 || row.sampling->temperature == 0) continue;
    const Draws draws(*row.sampling, sampler.LastDistribution());
    std::vector<int32_t> tokens(draws.params.size());
    const std::vector<int32_t> mask_of(tokens.size(), 0);  // all have the same
    const ops::SampleArgs args = {.logits = logits,
                                  .rows = static_cast<int64_t>(tokens.size()),
                                  .stride = 0,  // each from the same logits
                                  .vocab = vocab,
                                  .params = draws.params.data(),
                                  .scratch = scratch.data(),
                                  .num_scratch = kRowsAtOnce,
                                  .tokens = tokens.data(),
                                  .bad_token = RowResult::kBadLogits,
                                  .masks = {.words = MaskOf(row, kAfterDrafts), .mask_of = mask_of.data()}};
    ASSERT_EQ(BerthCudaKernels()->sample[0](args, ops::cuda::LaunchParams()), ops::cuda::kLaunched);
    EXPECT_EQ(tokens, draws.expected) << "row " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, EmulatedSampleTest, testing::Values(1, 5, 64, 513, 1024, 5003, 32000, 151936));

TEST(SampleRows, TheEmulatedKernelTakesRowsInTurns) { ExpectEmulatedIsSame(Batch(150, 33, 5, Asked::kToken), 112); }

// Rows that ask for logprobs, penalties and the like, beside rows that do not.
TEST_P(EmulatedSampleTest, TheKernelAnswersWhateverIsAsked) {
  const int64_t vocab = GetParam();
  const int64_t rows = vocab > 100000 ? 8 : 40;
  const int batches = (vocab > 10000 ? 1 : 4) * (std::getenv("BERTH_FULL") != nullptr ? 10 : 1);
  for (int b = 0; b < batches; ++b) {
    cuda_emulation::SetOrder(b % 2 == 0 ? cuda_emulation::Order::kAscending : cuda_emulation::Order::kDescending);
    ExpectEmulatedIsSame(Batch(rows, vocab, 5000 * vocab + b), rows);
  }
}

// As a model in bfloat16 gives them on a device. The kernel takes them as they are.
TEST_P(EmulatedSampleTest, TheKernelReadsBfloat16) {
  const int64_t vocab = GetParam();
  const int64_t rows = vocab > 100000 ? 2 : vocab > 10000 ? 8 : 40;
  for (Asked asked : {Asked::kAnything, Asked::kToken, Asked::kGreedy}) {
    Batch batch(rows, vocab, 7000 * vocab, asked);
    batch.RoundToBfloat16();
    ExpectEmulatedIsSame(batch, rows);
  }
}

TEST_P(EmulatedSampleTest, TheOrderOfThreadsChangesNothing) {
  const Batch batch(8, std::min<int64_t>(GetParam(), 5003), 6);
  const StepResult expected = batch.Fast(BerthCudaKernels());
  for (uint32_t seed : {1, 2}) {
    cuda_emulation::SetOrder(cuda_emulation::Order::kRandom, seed);
    const StepResult result = batch.Fast(BerthCudaKernels());
    for (size_t i = 0; i < result.rows.size(); ++i) {
      EXPECT_EQ(result.rows[i].token, expected.rows[i].token);
      EXPECT_EQ(result.rows[i].logprob, expected.rows[i].logprob);
    }
  }
}

// One row of these, next to a row that asks for nothing.
void ExpectEmulatedIsSameFor(const SamplingParams& params, absl::Span<const int32_t> history, int64_t vocab,
                             int64_t blocks, const std::vector<int32_t>& forced = {}) {
  Batch batch(2, vocab, 11, Asked::kToken);
  StepRow* const row = batch.mutable_row(0);
  row->sampling = &params;
  row->history = history;
  row->prompt_length = static_cast<int64_t>(history.size()) / 3;
  row->forced = forced;
  ExpectEmulatedIsSame(batch, blocks);
}

TEST(SampleRows, TheEmulatedKernelPenalisesWhatALongHistoryRepeats) {
  constexpr int64_t kVocab = 700;
  std::mt19937_64 random(12);
  std::vector<int32_t> history;
  for (int i = 0; i < 5000; ++i) history.push_back(static_cast<int32_t>(random() % (1 + random() % (kVocab + 5))) - 2);
  for (float temperature : {0.0f, 1.0f}) {
    for (const auto& [repetition, presence, frequency] :
         {std::tuple{1.3f, 0.0f, 0.0f}, {1.0f, 0.4f, 0.0f}, {1.0f, 0.0f, 0.02f}, {0.8f, -0.3f, 0.01f}}) {
      const SamplingParams params = {.temperature = temperature,
                                     .repetition_penalty = repetition,
                                     .presence_penalty = presence,
                                     .frequency_penalty = frequency,
                                     .num_logprobs = 3};
      ExpectEmulatedIsSameFor(params, history, kVocab, 2);
    }
  }
}

TEST(SampleRows, TheEmulatedKernelAddsAllBiasesOfATokenAndForcesOneTwice) {
  const SamplingParams params = {.temperature = 0, .logit_bias = {{5, 3}, {9, 2}, {5, 40}, {5, -1}}, .num_logprobs = 1};
  ExpectEmulatedIsSameFor(params, {}, 50, 2);
  ExpectEmulatedIsSameFor(params, {}, 50, 2, {7, 7, 50, 3, 7});
  ExpectEmulatedIsSameFor(params, {}, 50, 2, {50, -1});  // none is left
}

TEST(SampleRows, TheEmulatedKernelGivesAsManyLogprobsAsAreAskedFor) {
  for (int32_t count : {300, 513, 1024}) {
    ExpectEmulatedIsSameFor({.num_logprobs = count}, {}, 700, 2);
    ExpectEmulatedIsSameFor({.num_logprobs = count}, {}, 5000, 2);
  }
}

TEST(SampleRows, NoKernelRunsForMoreLogprobsThanItHasRoomFor) {
  ExpectEmulatedIsSameFor({.num_logprobs = 1025}, {}, 2000, 0);
}

TEST(SampleRows, NoKernelRunsForAVocabularyThatItDoesNotCover) {
  ExpectEmulatedIsSame(Batch(1, (1 << 21) + 1, 8, Asked::kToken), 0);
}

TEST(SampleRows, TheEmulatedKernelReplacesDraftsAsTheCpuDoes) {
  const Batch batch(4, 513, 8, Asked::kToken);
  const SamplingParams greedy = {.temperature = 0};
  StepPlan plan = batch.plan();
  const std::vector<int32_t> tokens = {7};
  const std::vector<int32_t> drafts = {8, 9};
  plan.rows[1].sampling = &greedy;
  plan.rows[1].tokens = tokens;
  plan.rows[1].drafts = drafts;
  std::mt19937_64 random(10);
  const std::unique_ptr<RowMasks> masks = RandomMasks(3, 513, &random);
  plan.rows[1].masks = masks.get();
  const int lines[] = {0, 1, 1, 1, 2};  // the plan's last row has no logits
  const at::Tensor logits = Batch(5, 513, 9, Asked::kToken).logits();
  StepResult expected;
  SampleRows(logits, plan, lines, &expected);
  StepResult emulated;
  const int64_t before = cuda_emulation::NumBlocks();
  SampleRows(logits, plan, lines, &emulated, BerthCudaKernels());
  EXPECT_EQ(cuda_emulation::NumBlocks() - before, 5);
  ExpectSame(emulated, expected);
  EXPECT_EQ(emulated.rows[1].verified_tokens.size(), 2u);
  EXPECT_EQ(emulated.rows[1].verified_tokens, expected.rows[1].verified_tokens);
  EXPECT_EQ(emulated.rows[3].token, RowResult::kNoToken);
  // Each place has the mask of its own.
  for (int64_t place = 0; place < 3; ++place) {
    const int32_t token = place < 2 ? expected.rows[1].verified_tokens[place] : expected.rows[1].token;
    const uint32_t* const mask = masks->Wait() + place * masks->num_words();
    if (token >= 0) {
      EXPECT_NE(mask[token / 32] >> (token % 32) & 1, 0u) << place;
    } else {
      EXPECT_EQ(token, RowResult::kNoAllowedToken) << place;
    }
  }
}

}  // namespace
}  // namespace berth
