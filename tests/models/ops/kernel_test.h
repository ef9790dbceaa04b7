// The fixture of the kernel tests. Its parameters are both types, with every instruction set that the machine has, with
// matrix tiles emulated, and with the CUDA kernels emulated on the CPU (tests/models/kernels/cuda_emulation, no GPU).
// It has two equal poisoned arenas: one for the kernels, one for their ATen references. What the emulated kernels use
// is out of the host's reach. With BERTH_TEST_DEVICE (test_device.h) the CUDA kernels run on a GPU, and no others run;
// the references still run on the CPU. Single-threaded.
#ifndef BERTH_TESTS_MODELS_OPS_KERNEL_TEST_H_
#define BERTH_TESTS_MODELS_OPS_KERNEL_TEST_H_

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <array>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cache/cache.h"
#include "cache/storage.h"
#include "models/ops/cpu_kernels.h"
#include "models/ops/cuda_kernels.h"
#include "models/step/execution.h"
#include "models/step/step_batch.h"
#include "tests/models/emulated_device.h"
#include "tests/models/ops/kernel_sets.h"
#include "tests/models/test_device.h"

namespace berth {

struct KernelParam {
  const ops::cpu::Kernels* kernels;
  at::ScalarType type;
  const ops::cuda::Kernels* emulated = nullptr;  // those that take the CPU kernels' place
  const TestDevice* device = nullptr;            // the GPU that takes the CPU's

  bool on_cuda() const { return emulated != nullptr || device != nullptr; }
};

inline std::vector<KernelParam> KernelParams() {
  std::vector<KernelParam> params;
  std::vector<const ops::cpu::Kernels*> sets(std::begin(ops::cpu::kKernelSets), std::end(ops::cpu::kKernelSets));
  sets.insert(sets.end(), {&ops::cpu::amx_emulated::kKernels, &ops::cpu::avx2_vnni_emulated::kKernels});
  for (const ops::cpu::Kernels* kernels : sets) {
    if (!RunsHere(*kernels)) continue;
    for (at::ScalarType type : {at::kFloat, at::kBFloat16}) params.push_back({kernels, type});
  }
  return params;
}

// For operations that have CUDA kernels.
inline std::vector<KernelParam> KernelParamsWithCuda() {
  const TestDevice* const device = GetTestDevice();
  std::vector<KernelParam> params = device != nullptr ? std::vector<KernelParam>() : KernelParams();
  const ops::cuda::Kernels* const emulated = device != nullptr ? nullptr : BerthCudaKernels();
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    params.push_back({&ops::cpu::baseline::kKernels, type, emulated, device});
  }
  return params;
}

inline std::string KernelParamName(const ::testing::TestParamInfo<KernelParam>& info) {
  const KernelParam& param = info.param;
  const std::string kernels = param.emulated != nullptr ? "emulated_cuda"
                              : param.device != nullptr ? "cuda"
                                                        : param.kernels->capability;
  return kernels + (param.type == at::kFloat ? "_float32" : "_bfloat16");
}

class KernelTest : public ::testing::TestWithParam<KernelParam> {
 protected:
  // Before the members of a test's own fixture draw their numbers: ATen's default seed is another in each process.
  KernelTest() { at::manual_seed(2); }

  // Sets up layers with these needs, and five sequences without tokens yet, with encoders of `encoder_tokens`.
  void SetUpCache(const std::vector<LayerCacheSpec>& specs,
                  const std::array<int64_t, 5>& encoder_tokens = {0, 0, 0, 0, 0}, int64_t block_tokens = 8) {
    specs_ = specs;
    execution_.cpu_kernels = GetParam().kernels;
    const TestDevice* const gpu = GetParam().device;
    execution_.cuda_kernels = gpu != nullptr ? gpu->kernels : GetParam().emulated;
    at::manual_seed(3);
    const CachePlan plan = *BuildCachePlan(specs, block_tokens);
    const at::Device device = gpu != nullptr ? gpu->device : at::Device(at::kCPU);
    fast_storage_ = *CreateDeviceStorage(device, int64_t{16} << 20);
    if (GetParam().emulated != nullptr) {
      device_ = std::make_unique<EmulatedDevice>();
      fast_storage_ = std::make_unique<EmulatedDeviceStorage>(std::move(fast_storage_));
    }
    reference_storage_ = *CreateHostStorage(int64_t{16} << 20);
    for (ArenaStorage* storage : {fast_storage_.get(), reference_storage_.get()}) {
      storage->Poison(0, storage->size_bytes());
    }
    cache_ = *Cache::Create(plan, fast_storage_.get(), {.poison_returned_units = true});
    // As on a GPU, CUDA's kernels read a copy of the tables.
    const bool copy_tables = GetParam().on_cuda();
    fast_ = std::make_unique<StepBatch>(plan, fast_storage_->base(), device, &execution_, copy_tables);
    reference_ = std::make_unique<StepBatch>(plan, reference_storage_->base(), at::kCPU, &execution_);
    for (int64_t length : encoder_tokens) leases_.push_back(cache_->NewLease(length));
  }

  DType dtype() const { return GetParam().type == at::kFloat ? DType::kFloat32 : DType::kBFloat16; }

  // Grows each lease by its count and fills both batches. A row's encoder runs in its first step. Checks the marks of
  // the step before.
  void NextStep(const std::vector<int64_t>& counts) {
    ASSERT_NO_FATAL_FAILURE(CheckMarks());
    const StepPlan plan = GrowAll(counts);
    ASSERT_EQ(plan.num_tokens, std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    fast_->Fill(plan);
    reference_->Fill(plan);
  }

  // The step of leases that grow by their counts. A row is missing if the arena has no room.
  StepPlan GrowAll(const std::vector<int64_t>& counts) {
    StepPlan plan;
    tokens_.resize(4000);
    std::iota(tokens_.begin(), tokens_.end(), 1);
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      const int64_t start = leases_[i].num_tokens();
      if (!leases_[i].Grow(counts[i]).ok()) continue;
      // Some rows have marks, after a few tokens and more; others have none.
      if ((i == 1 || i == 2) && counts[i] >= 6) {
        for (const int64_t part : {counts[i] / 3, counts[i] * 2 / 3}) leases_[i].MarkStates(start + part);
      }
      const absl::Span<const int32_t> tokens = absl::MakeConstSpan(tokens_);
      plan.rows.push_back({.lease = &leases_[i],
                           .tokens = tokens.first(counts[i]),
                           .start = start,
                           .history = tokens.first(start + counts[i]),
                           .prompt_length = 45});
      if (start == 0) plan.rows.back().encoder_tokens = tokens.first(leases_[i].num_cross_tokens());
      plan.num_tokens += counts[i];
    }
    return plan;
  }

  // The states at the last step's marks are those of the reference, if the test compares states. Drops the marks.
  void CheckMarks() {
    for (SequenceLease& lease : leases_) {
      if (!compares_states_) lease.Publish({}, /*checkpoint=*/false);
      for (const StateMark& mark : lease.marks()) {
        bool any = false;
        for (size_t layer = 0; layer < specs_.size(); ++layer) {
          for (size_t s = 0; s < specs_[layer].states.size(); ++s) {
            const int64_t offset = mark.offset + cache_->plan().layers[layer].state_offsets[s];
            const StateSpec& spec = specs_[layer].states[s];
            const at::Tensor actual = StateAt(*fast_storage_, offset, spec);
            const at::Tensor expected = StateAt(*reference_storage_, offset, spec);
            // Poison where the test does not compute this state. Units that return are poisoned in the fast arena only.
            if (at::isnan(expected).any().item<bool>() || at::isnan(actual).all().item<bool>()) continue;
            any = true;
            ASSERT_NO_FATAL_FAILURE(ExpectClose(actual, expected, 1e-5));
          }
        }
        ASSERT_TRUE(any) << "no state was copied to the mark at position " << mark.position;
      }
      lease.Publish({}, /*checkpoint=*/false);
    }
  }
  static at::Tensor StateAt(const ArenaStorage& storage, int64_t offset, const StateSpec& spec) {
    const bool wide = spec.dtype == DType::kFloat32;
    int64_t count = 1;
    for (const int64_t size : spec.shape) count *= size;
    std::vector<std::byte> bytes(count * (wide ? 4 : 2));
    storage.Read(offset, static_cast<int64_t>(bytes.size()), bytes.data());
    return at::from_blob(bytes.data(), {count}, wide ? at::kFloat : at::kBFloat16).to(at::kFloat).clone();
  }

  // What `compute` gives for a new sequence that is computed in steps of `counts` tokens, put together. It is called
  // once in each step with slice, and slice(x) is the step's part of x's rows.
  template <typename Compute>
  at::Tensor InSteps(const std::vector<int64_t>& counts, const Compute& compute) {
    leases_[0].Reset();
    std::vector<at::Tensor> outputs;
    int64_t done = 0;
    for (int64_t count : counts) {
      NextStep({count});
      outputs.push_back(compute([&](const at::Tensor& x) { return x.narrow(0, done, count); }));
      done += count;
    }
    return at::cat(outputs, 0);
  }

  // Prefill of ragged lengths, continuation in chunks shorter than the convolution, decode, and mixes of them.
  static std::vector<std::vector<int64_t>> Steps() {
    return {{1, 7, 40, 0, 2}, {1, 1, 1, 33, 1}, {17, 2, 1, 1, 9}, {1, 1, 1, 1, 1}, {3, 0, 25, 1, 1}};
  }

  at::Tensor Random(int64_t tokens, int64_t columns) {
    // A slice of a wider product, as layers give it.
    return at::randn({tokens, columns + 24}).to(GetParam().type).narrow(1, 8, columns);
  }

  // x as the kernels under test take it: itself, or a copy on the GPU whose strides are the same.
  at::Tensor OnDevice(const at::Tensor& x) const {
    if (GetParam().device == nullptr || !x.defined()) return x;
    const auto size = static_cast<int64_t>(x.storage().nbytes()) / x.element_size();
    const at::Tensor whole = x.as_strided({size}, {1}, 0).to(GetParam().device->device);
    return whole.as_strided(x.sizes(), x.strides(), x.storage_offset());
  }
  // Does this for the tensors of an operation's shape, inputs or weights.
  template <typename Tensors>
  Tensors OnDevice(Tensors of) const {
    const auto move = [&](auto&... tensors) { ((tensors = OnDevice(tensors)), ...); };
    if constexpr (requires { of.sinks; }) move(of.sinks);
    if constexpr (requires { of.distance_bias; }) move(of.distance_bias);
    if constexpr (requires { of.gate; }) move(of.x, of.gate, of.dt, of.b, of.c);
    if constexpr (requires { of.recurrence_bias; }) move(of.input_bias, of.recurrence_bias, of.rate);
    return of;
  }

  // In float32 only the order of sums differs, so the error is a few roundings of the largest terms. In bfloat16, one
  // rounding of each result to 8 bits may also fall the other way.
  void ExpectClose(const at::Tensor& actual, const at::Tensor& expected, double roundings = 2e-6) {
    const at::Tensor a = actual.cpu().to(at::kFloat);
    const at::Tensor e = expected.cpu().to(at::kFloat);
    const double relative = GetParam().type == at::kFloat ? 0 : 1.0 / 128;
    const double absolute = roundings * e.abs().max().item<float>();
    ASSERT_TRUE(at::allclose(a, e, relative, absolute))
        << "largest difference " << (a - e).abs().max().item<float>() << ", largest value " << absolute / roundings;
  }

  std::vector<LayerCacheSpec> specs_;
  Execution execution_;
  std::unique_ptr<EmulatedDevice> device_;
  std::unique_ptr<ArenaStorage> fast_storage_, reference_storage_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<StepBatch> fast_, reference_;
  std::vector<int32_t> tokens_;
  bool compares_states_ = true;  // false: no test of the fixture computes states by the kernels and by the reference
  std::vector<SequenceLease> leases_;
};

}  // namespace berth

#endif  // BERTH_TESTS_MODELS_OPS_KERNEL_TEST_H_
