// Times each kernel of a llama's step by itself, in bfloat16 and with cold caches: one layer, the head and the choice
// of tokens. Prints one JSON object a line, with the least bytes and operations that the kernel needs. It runs on the
// GPU that BERTH_TEST_DEVICE names, timed by events, or else on one thread of the CPU. Run:
//   kernel_bench llama-1b|llama-8b|tiny [TURNS]
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/storage.h"
#include "models/ops/elementwise/elementwise.h"
#include "models/ops/matmul/matmul.h"
#include "models/ops/paged_attention/paged_attention.h"
#include "models/sampling/sample_step.h"
#include "models/step.h"
#include "models/step/execution.h"
#include "models/step/step_batch.h"
#include "tests/models/test_device.h"

namespace berth {
namespace {

struct Shape {
  std::string name;
  int64_t hidden, q_heads, kv_heads, head_dim, intermediate, vocab;
  std::vector<int64_t> rows, contexts, prompts;
};

const std::vector<Shape> kShapes = {
    {"llama-1b", 2048, 32, 4, 64, 5632, 32000, {1, 8, 64}, {1024, 8192, 32768}, {2048, 8192}},
    {"llama-8b", 4096, 32, 8, 128, 14336, 128256, {1, 8, 64}, {1024, 8192, 32768}, {2048, 8192}},
    {"tiny", 64, 4, 2, 16, 96, 300, {1, 3}, {40}, {20}},
};
constexpr int64_t kLongestCache = int64_t{1} << 20;  // tokens of all rows: longer ones are left out
constexpr int64_t kElement = 2;                      // bytes, bfloat16
constexpr int64_t kStepTokens = 4096;                // as the server's largest step, that fills the cache

class Bench {
 public:
  Bench(Shape shape, int turns) : shape_(std::move(shape)), turns_(turns), gpu_(GetTestDevice()) {
    at::set_num_threads(1);
    if (gpu_ != nullptr) execution_.cuda_kernels = gpu_->kernels;
    // More than any cache holds, so that each turn reads its operands from memory.
    flushed_ = at::empty({int64_t{gpu_ != nullptr ? 256 : 16} << 20}, Options().dtype(at::kByte));
  }

  void Run() {
    for (int64_t rows : shape_.rows) {
      Elementwise(rows);
      Products(rows);
      Choices(rows);
      for (int64_t context : shape_.contexts) {
        if (rows * context <= kLongestCache) Attention("decode attention", rows, context, 1);
      }
    }
    for (int64_t prompt : shape_.prompts) Attention("prefill attention", 1, prompt, prompt);
  }

 private:
  at::Device device() const { return gpu_ != nullptr ? gpu_->device : at::Device(at::kCPU); }
  at::TensorOptions Options() const { return at::TensorOptions().dtype(at::kBFloat16).device(device()); }
  at::Tensor Random(int64_t rows, int64_t columns) const { return at::randn({rows, columns}, Options()); }

  // Seconds that the device takes for the work.
  double TimeOnce(const std::function<void()>& work) const {
    flushed_.fill_(1);
    if (gpu_ == nullptr) {
      const auto start = std::chrono::steady_clock::now();
      work();
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device().type()).getStream(device());
    c10::Event start(device().type(), c10::EventFlag::BACKEND_DEFAULT);
    c10::Event end(device().type(), c10::EventFlag::BACKEND_DEFAULT);
    start.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    return start.elapsedTime(end) / 1e3;
  }

  void Time(const std::string& kernel, int64_t rows, double bytes, double flops, const std::function<void()>& work,
            int64_t context = 0) const {
    for (int i = 0; i < 2; ++i) work();
    std::vector<double> seconds;
    for (int i = 0; i < turns_; ++i) seconds.push_back(TimeOnce(work));
    std::nth_element(seconds.begin(), seconds.begin() + turns_ / 2, seconds.end());
    const nlohmann::json line = {{"model", shape_.name},
                                 {"kernel", kernel},
                                 {"rows", rows},
                                 {"context", context},
                                 {"bytes", bytes},
                                 {"flops", flops},
                                 {"seconds", seconds[turns_ / 2]}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }

  void Elementwise(int64_t rows) {
    const at::Tensor x = Random(rows, shape_.hidden), other = Random(rows, shape_.hidden);
    const at::Tensor wide = Random(rows, 2 * shape_.intermediate);
    const at::Tensor weight = at::ones({shape_.hidden}, Options().dtype(at::kFloat));
    const auto bytes = static_cast<double>(rows * shape_.hidden * kElement);
    Time("norm", rows, 2 * bytes, 0, [&] { ops::RmsNorm(x, weight, 1e-5, execution_); });
    Time("residual", rows, 3 * bytes, 0, [&] { ops::AddResidual(x, other, execution_, 1); });
    Time("gated activation", rows, static_cast<double>(3 * rows * shape_.intermediate * kElement), 0,
         [&] { ops::GatedActivation(wide, ops::Activation::kSilu, execution_); });
  }

  void Product(const std::string& name, int64_t rows, int64_t inputs, int64_t outputs) {
    const at::Tensor x = Random(rows, inputs), weight = Random(outputs, inputs);
    Time(name, rows, static_cast<double>((outputs * inputs + rows * (inputs + outputs)) * kElement),
         2.0 * static_cast<double>(rows * inputs * outputs), [&] { at::linear(x, weight); });
  }
  // "product gate_up" and "gated activation" in one kernel.
  void GatedProduct(const std::string& name, int64_t rows, DType storage) {
    const bool is_int8 = storage == DType::kInt8;
    if (rows > (is_int8 ? ops::kGatedInt8Rows : ops::kGatedRows)) return;
    const int64_t inputs = shape_.hidden, outputs = shape_.intermediate;
    PackedWeights packed(&execution_);
    const ops::PackedMatrix weight("gate_up", Random(2 * outputs, inputs), storage, &packed);
    const at::Tensor x = Random(rows, inputs);
    const int64_t weight_bytes = 2 * outputs * (is_int8 ? inputs + 4 : inputs * kElement);  // 4: an output's scale
    Time(name, rows, static_cast<double>(weight_bytes + rows * (inputs + outputs) * kElement),
         4.0 * static_cast<double>(rows * inputs * outputs),
         [&] { ops::GatedMatMul(x, weight, {}, ops::Activation::kSilu, execution_); });
  }
  void Products(int64_t rows) {
    GatedProduct("gated product", rows, DType::kBFloat16);
    GatedProduct("gated product int8", rows, DType::kInt8);
    const int64_t q = shape_.q_heads * shape_.head_dim, kv = shape_.kv_heads * shape_.head_dim;
    Product("product qkv", rows, shape_.hidden, q + 2 * kv);
    Product("product o", rows, q, shape_.hidden);
    Product("product gate_up", rows, shape_.hidden, 2 * shape_.intermediate);
    Product("product down", rows, shape_.intermediate, shape_.hidden);
    Product("product head", rows, shape_.hidden, shape_.vocab);
  }

  void Choices(int64_t rows) {
    // As a language model gives them, roughly: a wide bulk and a few likely tokens.
    const at::Tensor logits = Random(rows, shape_.vocab).mul_(2.5);
    logits.narrow(1, 0, 20).add_(8);
    const std::vector<int32_t> history = {1};
    for (const auto& [name, params] : std::vector<std::pair<std::string, SamplingParams>>{
             {"choice greedy", {.temperature = 0}},
             {"choice plain", {.temperature = 1}},
             {"choice top_p", {.temperature = 1, .top_p = 0.9f}},
             {"choice top_k", {.temperature = 1, .top_k = 40}},
             {"choice penalty", {.temperature = 1, .repetition_penalty = 1.1f}},
             {"choice logprobs", {.temperature = 0, .num_logprobs = 5}}}) {
      StepPlan plan;
      std::vector<int> indices;
      for (int row = 0; row < rows; ++row) {
        plan.rows.push_back({.tokens = history, .sample = true, .sampling = &params, .history = history});
        indices.push_back(row);
      }
      StepSampler sampler(&execution_);
      StepResult result;
      Time(name, rows, static_cast<double>(rows * shape_.vocab) * kElement, 0,
           [&] { sampler.SampleRows(logits, plan, indices, &result); });
    }
  }

  // The newest `count` tokens of each of the rows, which have `context` tokens with them.
  void Attention(const std::string& name, int64_t rows, int64_t context, int64_t count) {
    const int64_t dim = shape_.head_dim;
    const KvSpec kv = {.kv_heads = shape_.kv_heads, .key_dim = dim, .value_dim = dim, .dtype = DType::kBFloat16};
    const CachePlan plan = *BuildCachePlan({{.kv = kv}}, /*block_tokens=*/16);
    const auto storage = *CreateDeviceStorage(device(), plan.BytesPerToken() * (context + 64) * rows + (8 << 20));
    storage->Poison(0, storage->size_bytes());
    const auto cache = *Cache::Create(plan, storage.get(), {});
    StepBatch batch(plan, storage->base(), device(), &execution_);
    std::vector<SequenceLease> leases;
    for (int64_t row = 0; row < rows; ++row) leases.push_back(cache->NewLease());
    while (leases[0].num_tokens() < context) {
      const int64_t before = context - count - leases[0].num_tokens();
      const int64_t tokens = before > 0 ? std::min(before, std::max<int64_t>(1, kStepTokens / rows)) : count;
      const std::vector<int32_t> ids(static_cast<size_t>(tokens), 1);
      StepPlan step;
      for (SequenceLease& lease : leases) {
        const int64_t start = lease.num_tokens();
        if (!lease.Grow(tokens).ok()) std::abort();
        step.rows.push_back({.lease = &lease, .tokens = ids, .start = start});
      }
      batch.Fill(step);
      const at::Tensor values = Random(rows * tokens, shape_.kv_heads * dim);
      ops::WriteKv(values, values, 0, batch);
    }
    const at::Tensor q = Random(rows * count, shape_.q_heads * dim);
    const at::Tensor k = Random(rows * count, shape_.kv_heads * dim);
    const auto cached = static_cast<double>(rows * context * 2 * shape_.kv_heads * dim * kElement);
    const auto new_bytes = static_cast<double>(rows * count * 2 * shape_.q_heads * dim * kElement);
    const double pairs = static_cast<double>(rows * count) * (static_cast<double>(context) - (count - 1) / 2.0);
    const ops::AttentionShape shape = {.layer = 0, .q_heads = shape_.q_heads, .head_dim = dim, .scale = 0.09};
    Time(
        name, rows, cached + new_bytes, 4 * pairs * static_cast<double>(shape_.q_heads * dim),
        [&] { ops::Attention(q, shape, batch); }, context);
    Time(
        name + ", write", rows, 2.0 * static_cast<double>(k.numel() * kElement), 0,
        [&] { ops::WriteKv(k, k, 0, batch); }, context);
  }

  Shape shape_;
  int turns_;
  const TestDevice* gpu_;
  Execution execution_;
  at::Tensor flushed_;
};

}  // namespace
}  // namespace berth

int main(int argc, char** argv) {
  for (const berth::Shape& shape : berth::kShapes) {
    if (argc < 2 || shape.name != argv[1]) continue;
    berth::Bench(shape, argc > 2 ? std::atoi(argv[2]) : 20).Run();
    return 0;
  }
  std::fprintf(stderr, "usage: kernel_bench llama-1b|llama-8b|tiny [TURNS]\n");
  return 1;
}
