// Whole models on the CUDA kernels, emulated on the CPU: no GPU takes part. They choose the tokens that the CPU's
// kernels choose, launched as graphs too.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/cache.h"
#include "models/kernels/cuda/graph.h"
#include "models/loader.h"
#include "models/ops/cuda_kernels.h"
#include "models/step/execution.h"
#include "models/step/row.h"
#include "models/warm_up.h"
#include "tests/models/aten_calls.h"
#include "tests/models/checkpoint_writer.h"
#include "tests/models/emulated_device.h"
#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"
#include "tests/models/recorded_step.h"

namespace berth {
namespace {

constexpr int kOutputs = 5;

// One greedy sequence. With an encoder-decoder model, the encoder reads the prompt, and the decoder's prompt is one
// token.
struct Sequence {
  SequenceLease lease;
  std::vector<int32_t> encoder_tokens;
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
          .sequence_length = static_cast<int64_t>(tokens.size()),
          .encoder_tokens = start == 0 ? sequence->encoder_tokens : absl::Span<const int32_t>()};
}

// All tokens of sequences that run together, with prompts of these lengths. `longest`: how long a sequence may become.
std::vector<std::vector<int32_t>> Generate(const std::string& model_dir, const std::vector<int32_t>& lengths,
                                           const Execution& execution = {}, const std::string& dtype = "float32",
                                           int64_t longest = 1024) {
  const bool graphs = execution.graph_recorder != nullptr;
  const auto model =
      *LoadedModel::Load({.model_dir = model_dir, .dtype = dtype, .cuda_graphs = graphs, .num_threads = 1}, execution);
  std::unique_ptr<EmulatedDevice> device;
  std::unique_ptr<ArenaStorage> storage = *model->CreateStorage(int64_t{32} << 20);
  if (execution.cuda_kernels != nullptr) {
    device = std::make_unique<EmulatedDevice>();
    storage = std::make_unique<EmulatedDeviceStorage>(std::move(storage));
  }
  const auto runner = *model->CreateRunner(storage.get(), {.rows = 8, .sequence_tokens = longest});
  const auto cache = *Cache::Create(model->cache_plan(), storage.get(), {.poison_returned_units = true});
  SamplingParams greedy;
  greedy.temperature = 0;
  std::vector<Sequence> sequences;
  for (int32_t length : lengths) {
    const bool encodes = model->cache_plan().has_cross();
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < length; ++i) prompt.push_back(3 + i * 7 % 40);
    Sequence sequence = {.lease = cache->NewLease(encodes ? length : 0), .tokens = prompt, .prompt_length = length};
    if (encodes) {
      sequence.encoder_tokens = prompt;
      sequence.tokens = {0};
      sequence.prompt_length = 1;
    }
    sequences.push_back(std::move(sequence));
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
  // The first step is a prefill, the second of its shape for the first time.
  EXPECT_EQ(runner->num_graph_launches(), graphs ? kOutputs - 2 : 0);
  std::vector<std::vector<int32_t>> tokens;
  for (const Sequence& sequence : sequences) tokens.push_back(sequence.tokens);
  return tokens;
}

// A T5 of random weights, in a folder of its own.
std::string WriteT5() {
  constexpr int64_t kVocab = 97, kHidden = 48, kHeads = 4, kHeadDim = 20, kInner = 64, kLayers = 2, kBuckets = 8;
  at::manual_seed(11);
  CheckpointWriter writer;
  const auto add = [&](const std::string& name, int64_t out, int64_t in, double scale) {
    writer.Add(name + ".weight", "F32", {out, in}, at::randn({out, in}) * scale);
  };
  const auto add_norm = [&](const std::string& name) {
    writer.Add(name + ".weight", "F32", {kHidden}, at::randn({kHidden}) * 0.2 + 1);
  };
  const auto add_attention = [&](const std::string& name) {
    for (const char* part : {".q", ".k", ".v"}) add(name + part, kHeads * kHeadDim, kHidden, 0.15);
    add(name + ".o", kHidden, kHeads * kHeadDim, 0.3);
  };
  for (const char* name : {"shared", "lm_head"}) add(name, kVocab, kHidden, 1);
  for (const std::string side : {"encoder", "decoder"}) {
    const bool crosses = side == "decoder";
    add(side + ".block.0.layer.0.SelfAttention.relative_attention_bias", kBuckets, kHeads, 1);
    add_norm(side + ".final_layer_norm");
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = absl::StrCat(side, ".block.", i, ".layer.");
      const std::string mlp = layer + (crosses ? "2" : "1");
      add_attention(layer + "0.SelfAttention");
      add_norm(layer + "0.layer_norm");
      if (crosses) add_attention(layer + "1.EncDecAttention");
      if (crosses) add_norm(layer + "1.layer_norm");
      add(mlp + ".DenseReluDense.wi", kInner, kHidden, 0.15);
      add(mlp + ".DenseReluDense.wo", kHidden, kInner, 0.15);
      add_norm(mlp + ".layer_norm");
    }
  }
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "t5";
  writer.Write(dir);
  std::ofstream(dir / "config.json") << absl::StrCat(
      R"({"model_type": "t5", "vocab_size": )", kVocab, R"(, "d_model": )", kHidden, R"(, "num_heads": )", kHeads,
      R"(, "d_kv": )", kHeadDim, R"(, "d_ff": )", kInner, R"(, "num_layers": )", kLayers,
      R"(, "relative_attention_num_buckets": )", kBuckets,
      R"(, "relative_attention_max_distance": 20, "tie_word_embeddings": false, "eos_token_id": 1})");
  return dir.string();
}

// A mixtral of random weights, in a folder of its own; without experts, a llama.
std::string WriteMixtral(int64_t layers = 2, bool has_experts = true) {
  constexpr int64_t kVocab = 97, kHidden = 48, kHeads = 4, kKvHeads = 2, kHeadDim = 12, kInner = 40;
  constexpr int64_t kExperts = 5;
  at::manual_seed(12);
  CheckpointWriter writer;
  const auto add = [&](const std::string& name, int64_t out, int64_t in) {
    writer.Add(name + ".weight", "F32", {out, in}, at::randn({out, in}) * 0.3);
  };
  const auto add_norm = [&](const std::string& name) {
    writer.Add(name + ".weight", "F32", {kHidden}, at::randn({kHidden}) * 0.2 + 1);
  };
  add("model.embed_tokens", kVocab, kHidden);
  add("lm_head", kVocab, kHidden);
  add_norm("model.norm");
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    add(layer + "self_attn.q_proj", kHeads * kHeadDim, kHidden);
    for (const char* part : {"k_proj", "v_proj"}) add(layer + "self_attn." + part, kKvHeads * kHeadDim, kHidden);
    add(layer + "self_attn.o_proj", kHidden, kHeads * kHeadDim);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) add_norm(layer + norm);
    if (!has_experts) {
      for (const char* into : {"gate_proj", "up_proj"}) add(layer + "mlp." + into, kInner, kHidden);
      add(layer + "mlp.down_proj", kHidden, kInner);
      continue;
    }
    add(layer + "block_sparse_moe.gate", kExperts, kHidden);
    for (int64_t e = 0; e < kExperts; ++e) {
      const std::string expert = absl::StrCat(layer, "block_sparse_moe.experts.", e, ".");
      for (const char* into : {"w1", "w3"}) add(expert + into, kInner, kHidden);
      add(expert + "w2", kHidden, kInner);
    }
  }
  const std::string type = has_experts ? "mixtral" : "llama";
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / type;
  writer.Write(dir);
  std::ofstream(dir / "config.json") << absl::StrCat(
      R"({"model_type": ")", type, R"(", "vocab_size": )", kVocab, R"(, "hidden_size": )", kHidden,
      R"(, "intermediate_size": )", kInner, R"(, "num_hidden_layers": )", layers, R"(, "num_attention_heads": )",
      kHeads, R"(, "num_key_value_heads": )", kKvHeads, R"(, "num_local_experts": )", kExperts,
      R"(, "num_experts_per_tok": 2, "max_position_embeddings": 512, "tie_word_embeddings": false, "eos_token_id": 1})");
  return dir.string();
}

// A cohere2 of random weights, whose norms are layer norms, in a folder of its own.
std::string WriteCohere2() {
  constexpr int64_t kVocab = 97, kHidden = 48, kHeads = 4, kKvHeads = 2, kHeadDim = 12, kInner = 40, kLayers = 2;
  at::manual_seed(13);
  CheckpointWriter writer;
  const auto add = [&](const std::string& name, int64_t out, int64_t in) {
    writer.Add(name + ".weight", "F32", {out, in}, at::randn({out, in}) * 0.3);
  };
  add("model.embed_tokens", kVocab, kHidden);
  writer.Add("model.norm.weight", "F32", {kHidden}, at::randn({kHidden}) * 0.2 + 1);
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    add(layer + "self_attn.q_proj", kHeads * kHeadDim, kHidden);
    for (const char* part : {"k_proj", "v_proj"}) add(layer + "self_attn." + part, kKvHeads * kHeadDim, kHidden);
    add(layer + "self_attn.o_proj", kHidden, kHeads * kHeadDim);
    for (const char* part : {"gate_proj", "up_proj"}) add(layer + "mlp." + part, kInner, kHidden);
    add(layer + "mlp.down_proj", kHidden, kInner);
    writer.Add(layer + "input_layernorm.weight", "F32", {kHidden}, at::randn({kHidden}) * 0.2 + 1);
  }
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "cohere2";
  writer.Write(dir);
  std::ofstream(dir / "config.json") << absl::StrCat(
      R"({"model_type": "cohere2", "vocab_size": )", kVocab, R"(, "hidden_size": )", kHidden,
      R"(, "intermediate_size": )", kInner, R"(, "num_hidden_layers": )", kLayers, R"(, "num_attention_heads": )",
      kHeads, R"(, "num_key_value_heads": )", kKvHeads,
      R"(, "sliding_window": 16, "sliding_window_pattern": 2, "max_position_embeddings": 512, "eos_token_id": 1})");
  return dir.string();
}

void ExpectTheTokensOfTheCpu(const std::string& model) {
  const std::vector<int32_t> lengths = {3, 37};  // of a tile and of several
  const auto expected = Generate(model, lengths);
  const int64_t blocks = cuda_emulation::NumBlocks();
  const int tables = EmulatedDevice::num_tables();
  const auto emulated = Generate(model, lengths, {.cuda_kernels = BerthCudaKernels()});
  EXPECT_GT(cuda_emulation::NumBlocks(), blocks);
  EXPECT_GT(EmulatedDevice::num_tables(), tables);
  EXPECT_EQ(emulated, expected);
}

// A graph that computes its work anew at each launch, from the same addresses: what it takes from elsewhere shows.
class FakeGraph final : public ops::cuda::Graph {
 public:
  explicit FakeGraph(std::function<void()> work) : work_(std::move(work)) {}
  void Launch() override { work_(); }

 private:
  std::function<void()> work_;
};

class FakeRecorder final : public ops::cuda::GraphRecorder {
 public:
  std::unique_ptr<ops::cuda::Graph> Record(const std::function<void()>& work) override {
    return std::make_unique<FakeGraph>(work);
  }
};

void ExpectTheTokensOfTheCpuByGraphs(const std::string& model) {
  const std::vector<int32_t> lengths = {3, 270, 1};  // the shape has a fourth row, and two splits of keys
  const auto expected = Generate(model, lengths);
  FakeRecorder recorder;
  const auto launched = Generate(model, lengths, {.cuda_kernels = BerthCudaKernels(), .graph_recorder = &recorder});
  EXPECT_EQ(launched, expected);
}

// Looks at the calls of each graph's step.
class WatchingRecorder final : public ops::cuda::GraphRecorder {
 public:
  std::unique_ptr<ops::cuda::Graph> Record(const std::function<void()>& work) override {
    return std::make_unique<FakeGraph>([this, work] {
      const RecordedStep step;
      work();
      refused = step.refused();
      launches = step.launches();
    });
  }

  std::vector<std::string> refused;
  Launches launches;
};

// What a decode step launches, in bfloat16, where sequences are too short for their keys to be divided.
Launches LaunchesOf(const std::string& model, int64_t longest = ops::kSplitTokens) {
  WatchingRecorder recorder;
  Generate(model, {3}, {.cuda_kernels = BerthCudaKernels(), .graph_recorder = &recorder}, "bfloat16", longest);
  EXPECT_EQ(recorder.refused, std::vector<std::string>()) << model;
  return recorder.launches;
}

// One layer more, and what it launches more.
std::string LaunchesOfALayer(const std::function<std::string(int64_t)>& write) {
  Launches two = LaunchesOf(write(2));
  Launches three = LaunchesOf(write(3));
  Launches layer;
  for (const auto& [name, count] : three) {
    if (count != two[name]) layer[name] = count - two[name];
  }
  return ToString(layer);
}

// Launches limit how fast a small model decodes. Lower a count where a change earns it; raise one only with a reason.
TEST(EmulatedCudaLaunchesTest, ADecodeStepsLaunchesAreKnown) {
  EXPECT_EQ(LaunchesOfALayer([](int64_t layers) { return WriteMixtral(layers, /*has_experts=*/false); }),
            "8: kernels 5, linear 3");
  EXPECT_EQ(LaunchesOfALayer([](int64_t layers) { return WriteMixtral(layers); }), "13: copy_ 1, kernels 9, linear 3");
  // Four layers, the embedding, the last norm and the head.
  EXPECT_EQ(ToString(LaunchesOf("models/demo/falcon_h1-demo")),
            "68: add 1, add_ 4, copy_ 1, index_select 2, kernels 33, linear 21, mul 4, mul_ 2");
  // Where a sequence may have more keys, each layer also merges what it divides.
  EXPECT_EQ(ToString(LaunchesOf("models/demo/falcon_h1-demo", ops::kSplitTokens + 1)),
            "72: add 1, add_ 4, copy_ 1, index_select 2, kernels 37, linear 21, mul 4, mul_ 2");
}

// The kernel that chooses tokens reads a head's bfloat16.
TEST(EmulatedCudaLaunchesTest, NothingConvertsTheLogits) {
  EXPECT_EQ(LaunchesOf(WriteMixtral(/*layers=*/2, /*has_experts=*/false)).count("copy_"), 0u);
}

// What a server on a GPU runs before it serves, on models with a cache of each kind. Steps after it are as before.
TEST(EmulatedCudaWarmUpTest, RunsTheLargestStepsAndRecordsGraphs) {
  for (const std::string& model_dir : {std::string("models/demo/falcon_h1-demo"), WriteT5(), WriteCohere2()}) {
    FakeRecorder recorder;
    const auto model = *LoadedModel::Load({.model_dir = model_dir, .cuda_graphs = true, .num_threads = 1},
                                          {.cuda_kernels = BerthCudaKernels(), .graph_recorder = &recorder});
    const auto storage = *model->CreateStorage(int64_t{32} << 20);
    const auto runner = *model->CreateRunner(storage.get(), {.rows = 3, .sequence_tokens = 300});
    const auto counts = WarmUp(model->cache_plan(), storage.get(), runner.get(),
                               {.max_running = 3,
                                .max_step_tokens = 100,
                                .prefill_chunk_tokens = 64,
                                .max_sequence_tokens = 300,
                                .max_drafts = 16,
                                .graphs = true});
    ASSERT_TRUE(counts.ok()) << counts.status();
    EXPECT_EQ(counts->prefill_tokens, 100) << model_dir;
    EXPECT_EQ(counts->decode_rows, 3);
    EXPECT_EQ(counts->draft_tokens, 3 * 16);
    EXPECT_EQ(counts->graphs, model->cache_plan().has_cross() ? 0 : 3) << model_dir;
    EXPECT_EQ(runner->num_graph_refusals(), 0);
  }
}

// Attention beside Mamba-2; sliding and full attention.
class EmulatedCudaModelTest : public ::testing::TestWithParam<const char*> {};

TEST_P(EmulatedCudaModelTest, ChoosesTheTokensOfTheCpu) {
  ExpectTheTokensOfTheCpu(std::string("models/demo/") + GetParam());
}

TEST_P(EmulatedCudaModelTest, GraphsChooseTheTokensOfTheCpu) {
  ExpectTheTokensOfTheCpuByGraphs(std::string("models/demo/") + GetParam());
}

INSTANTIATE_TEST_SUITE_P(Demos, EmulatedCudaModelTest, ::testing::Values("falcon_h1-demo", "gemma3-demo"),
                         [](const auto& info) { return std::string(info.param, info.param[0] == 'f' ? 9 : 6); });

TEST(EmulatedCudaEncoderTest, ChoosesTheTokensOfTheCpu) { ExpectTheTokensOfTheCpu(WriteT5()); }

TEST(EmulatedCudaLayerNormTest, ChoosesTheTokensOfTheCpu) { ExpectTheTokensOfTheCpu(WriteCohere2()); }

// No call that only the CPU accepts: on a GPU, it would fail every step.
TEST(EmulatedCudaTypesTest, ModelsInBfloat16MixNoTypes) {
  for (const std::string& model : {std::string("models/demo/falcon_h1-demo"), std::string("models/demo/gemma3-demo"),
                                   WriteT5(), WriteMixtral(), WriteCohere2()}) {
    const AtenCalls calls;
    Generate(model, {3, 37}, {.cuda_kernels = BerthCudaKernels()}, "bfloat16");
    EXPECT_GT(calls.Count("aten::linear"), 0);
    EXPECT_EQ(calls.mixed(), std::vector<std::string>()) << model;
  }
}

// In float32, a GPU would read twice the bytes, and multiply without its matrix units.
TEST(EmulatedCudaTypesTest, Float16RunsAsBfloat16) {
  const std::string model_dir = WriteMixtral(/*layers=*/1, /*has_experts=*/false);
  std::string config;
  ASSERT_TRUE(std::getline(std::ifstream(model_dir + "/config.json"), config, '\0'));
  config.insert(1, R"("dtype": "float16", )");
  std::ofstream(model_dir + "/config.json") << config;
  const auto load = [&](const std::string& dtype, const Execution& execution) {
    return *LoadedModel::Load({.model_dir = model_dir, .dtype = dtype, .num_threads = 1}, execution);
  };
  const Execution emulated = {.cuda_kernels = BerthCudaKernels()};
  const auto on_gpu = load("auto", emulated);
  EXPECT_EQ(on_gpu->info().dtype, DType::kBFloat16);
  ASSERT_EQ(on_gpu->info().warnings.size(), 1u);
  EXPECT_TRUE(on_gpu->info().warnings[0].starts_with("the checkpoint's float16 weights are rounded to bfloat16"));
  EXPECT_EQ(load("float32", emulated)->info().dtype, DType::kFloat32);
  EXPECT_EQ(load("auto", {})->info().dtype, DType::kFloat32);  // on the CPU
}

TEST(EmulatedCudaExpertsTest, ChooseTheTokensOfTheCpu) {
  const std::string model = WriteMixtral();
  ExpectTheTokensOfTheCpu(model);
  ExpectTheTokensOfTheCpuByGraphs(model);
}

}  // namespace
}  // namespace berth
