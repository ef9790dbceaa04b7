#include "models/ops/matmul/matmul.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/types/span.h"
#include "models/ops/backend.h"
#include "models/ops/elementwise/elementwise.h"
#include "models/ops/parallel.h"

namespace berth::ops {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

// Uninitialised. Many bytes go to huge pages, where the system has them: panels are read from end to end.
at::Tensor AllocatePanels(int64_t size_bytes) {
  const int64_t alignment = size_bytes >= kHugePage ? kHugePage : kCacheLine;
  void* bytes = std::aligned_alloc(alignment, RoundUp(size_bytes, alignment));
  TORCH_CHECK(bytes != nullptr, "no memory for a weight of ", size_bytes, " bytes");
  // The last, partly used one stays in small pages.
  if (size_bytes >= kHugePage) madvise(bytes, size_bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return at::from_blob(
      bytes, {size_bytes}, [](void* p) { std::free(p); }, at::kByte);
}

// Whether every value is one of bfloat16's.
bool FitsBFloat16(const at::Tensor& weight) {
  const auto* bits = static_cast<const uint32_t*>(weight.const_data_ptr());
  constexpr int64_t kChunk = 4096;
  for (int64_t first = 0; first < weight.numel(); first += kChunk) {
    uint32_t low = 0;
    const int64_t end = std::min(first + kChunk, weight.numel());
    for (int64_t i = first; i < end; ++i) low |= bits[i] & 0xFFFF;
    if (low != 0) return false;
  }
  return true;
}

DType KindOf(const at::Tensor& weight, DType storage) {
  if (storage == DType::kInt8) return DType::kInt8;
  if (storage == DType::kInt4) return DType::kInt4;
  if (weight.scalar_type() == at::kBFloat16 || FitsBFloat16(weight)) return DType::kBFloat16;
  return DType::kFloat32;
}

// What the matrix will take where it is only measured. Its values matter to KindOf alone.
int64_t BytesWhenKept(const at::Tensor& weight, DType storage, PackedWeights::Purpose purpose) {
  const int64_t outputs = weight.size(0), inputs = weight.size(1);
  const int64_t scales = IsQuantised(storage) ? outputs * static_cast<int64_t>(sizeof(float)) : 0;
  if (purpose == PackedWeights::Purpose::kMeasureForCpu) {
    return PanelCount(outputs) * PanelBytes(KindOf(weight.contiguous(), storage), inputs) + scales;
  }
  return storage == DType::kInt8 ? outputs * inputs + scales : static_cast<int64_t>(weight.nbytes());
}

// What a product takes one thread, about, in nanoseconds: its multiplications, or reading the weight.
constexpr int64_t kMultiplicationsPerNanosecond = 64;
constexpr int64_t kBytesPerNanosecond = 32;
constexpr int64_t kPreparedPerNanosecond = 2;
// In less a second thread brings nothing; see kOperationsPerTask.
constexpr int64_t kWorthThreads = 15000;

struct Task {
  MatMulArgs args;
  MatMulLayout layout = {};
  int64_t last_item = 0;  // of all tasks' items, this one's end here

  int64_t Nanoseconds() const {
    const PackedWeight& w = args.weight;
    return std::max(args.rows * w.inputs * w.outputs / kMultiplicationsPerNanosecond,
                    PanelCount(w.outputs) * PanelBytes(w.dtype, w.inputs) / kBytesPerNanosecond);
  }
};

// Runs work(begin, end) for all of [0, items), by all threads if that is worth it: each takes several items at once,
// that follow each other in memory.
template <typename Work>
void Share(int64_t items, int64_t nanoseconds, ThreadPool* threads, const Work& work) {
  constexpr int64_t kPieces = 8;  // of a thread
  const int64_t grain =
      nanoseconds < kWorthThreads ? items : std::max<int64_t>(1, items / (NumThreads(threads) * kPieces));
  ShareItems(threads, items, grain, [&](int64_t begin, int64_t end, int /*thread*/) { work(begin, end); });
}

void Prepare(absl::Span<const Task> tasks, DType type, const Execution& execution) {
  for (const Task& task : tasks) {
    const int64_t nanoseconds = task.args.rows * task.args.weight.inputs / kPreparedPerNanosecond;
    const PrepareInputsArgs args = {task.args};
    Share(task.layout.row_tiles, nanoseconds, execution.threads, [&](int64_t begin, int64_t end) {
      CpuKernels(execution).prepare_inputs[TypeIndex(type)].run(args, begin, end, /*scratch=*/nullptr);
    });
  }
}

// While workers wait for the next product after this one, they read its weights ahead. Not of experts, which tokens
// choose anew in each step.
void ReadAheadOf(const Task& task, Execution& execution) {
  const PackedWeight& w = task.args.weight;
  const ReadRange next = execution.weights.Follow({w.panels, PanelCount(w.outputs) * PanelBytes(w.dtype, w.inputs)});
  execution.threads->ReadAhead(next.begin, next.size_bytes);
}

// The products one after the other, their items shared by the threads as one.
void Run(absl::Span<Task> tasks, DType type, Execution& execution) {
  const cpu::Kernels& kernels = CpuKernels(execution);
  int64_t input_bytes = 0, items = 0, nanoseconds = 0;
  const auto bytes_of = [](const Task& task) { return RoundUp(task.layout.prepared_bytes, kCacheLine); };
  for (Task& task : tasks) {
    task.layout = kernels.matmul_layout[TypeIndex(type)](task.args);
    items += MatMulItems(task.args.weight.outputs, task.layout.row_tiles);
    task.last_item = items;
    input_bytes += bytes_of(task);
    nanoseconds += task.Nanoseconds();
  }
  char* inputs = execution.Scratch(input_bytes);
  for (Task& task : tasks) {
    task.args.prepared = inputs;
    inputs += bytes_of(task);
  }
  Prepare(tasks, type, execution);
  Share(items, nanoseconds, execution.threads, [&](int64_t begin, int64_t end) {
    auto task =
        std::upper_bound(tasks.begin(), tasks.end(), begin, [](int64_t i, const Task& t) { return i < t.last_item; });
    for (; begin < end; begin = (task++)->last_item) {
      const int64_t first = task == tasks.begin() ? 0 : std::prev(task)->last_item;
      kernels.matmul[TypeIndex(type)].run(task->args, begin - first, std::min(end, task->last_item) - first,
                                          /*scratch=*/nullptr);
    }
  });
}

void CheckInputs(const at::Tensor& x, const PackedMatrix& weight) {
  TORCH_CHECK(x.size(1) == weight.inputs() && x.scalar_type() == weight.type(), "a product of ", x.sizes(), " ",
              x.scalar_type(), " and ", weight.outputs(), " x ", weight.inputs(), " ", weight.type());
}

// x and out: rows of the weight's type, or out of float32, with neighbouring columns side by side.
Task TaskOf(const at::Tensor& x, const PackedMatrix& weight, const float* bias, const at::Tensor& out) {
  CheckInputs(x, weight);
  return {.args = {.weight = weight.packed(),
                   .x = RowsOf(x),
                   .out = out.data_ptr(),
                   .out_is_float = out.scalar_type() == at::kFloat,
                   .bias = bias,
                   .rows = x.size(0),
                   .x_stride = x.stride(0),
                   .out_stride = out.stride(0),
                   .prepared = nullptr}};
}

// On another device than the CPU.
at::Tensor DeviceMatMul(const at::Tensor& x, const PackedMatrix& weight, const at::Tensor& bias,
                        const Execution& execution) {
  if (!weight.scales().defined()) return at::linear(x, weight.plain(), bias);
  if (BackendOf(x, execution) == Backend::kReference) {
    return at::linear(x, (weight.plain() * weight.scales().unsqueeze(1)).to(weight.type()), bias);
  }
  const cuda::Kernels& kernels = *execution.cuda_kernels;
  const Int8Weight int8 = {.values = weight.plain().const_data_ptr<int8_t>(),
                           .scales = weight.scales().const_data_ptr<float>(),
                           .outputs = weight.outputs(),
                           .inputs = weight.inputs()};
  at::Tensor out = at::empty({x.size(0), weight.outputs()}, x.options());
  const Int8MatMulArgs args = {.weight = int8,
                               .x = RowsOf(x),
                               .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                               .out = out.data_ptr(),
                               .rows = x.size(0),
                               .x_stride = x.stride(0),
                               .out_stride = out.stride(0)};
  if (IsLaunched(kernels.int8_matmul[TypeIndex(TypeOf(x))](args, LaunchParamsFor(x)))) return out;
  const at::Tensor expanded = at::empty({weight.outputs(), weight.inputs()}, x.options());
  CheckLaunched(
      kernels.expand_int8[TypeIndex(TypeOf(x))]({.weight = int8, .out = expanded.data_ptr()}, LaunchParamsFor(x)));
  return at::linear(x, expanded, bias);
}

// By one kernel of CUDA's. REQUIRES: no more rows than it takes (kGatedRows, kGatedInt8Rows).
at::Tensor GatedOnCuda(const at::Tensor& x, const PackedMatrix& weight, const at::Tensor& bias, Activation activation,
                       const Execution& execution) {
  CheckInputs(x, weight);
  at::Tensor out = at::empty({x.size(0), weight.outputs() / 2}, x.options());
  const GatedMatMulArgs args = {.weight = weight.plain().const_data_ptr(),
                                .scales = weight.scales().defined() ? weight.scales().const_data_ptr<float>() : nullptr,
                                .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                                .x = RowsOf(x),
                                .out = out.data_ptr(),
                                .rows = x.size(0),
                                .x_stride = x.stride(0),
                                .inputs = weight.inputs(),
                                .dim = weight.outputs() / 2,
                                .activation = activation};
  CheckLaunched(RunOnCuda(&cuda::Kernels::gated_matmul, TypeOf(x), args, LaunchParamsFor(x), execution));
  return out;
}

const float* BiasOf(const at::Tensor& bias) { return bias.defined() ? bias.const_data_ptr<float>() : nullptr; }

}  // namespace

PackedMatrix::PackedMatrix(const std::string& name, const at::Tensor& weight, DType storage, PackedWeights* packed)
    : packed_{.type = weight.scalar_type(), .inputs = weight.size(1), .outputs = weight.size(0)} {
  TORCH_CHECK(type() == at::kFloat || type() == at::kBFloat16, "a weight of type ", type());
  TORCH_CHECK(inputs() > 0 && outputs() > 0, "the matrix ", name, " is ", outputs(), " x ", inputs());
  if (packed->purpose() != PackedWeights::Purpose::kKeep) {
    packed->AddPlain(name, BytesWhenKept(weight, storage, packed->purpose()));
  } else if (packed->mapped()) {
    packed_ = packed->Take(name, outputs(), inputs(), type());
  } else if (weight.is_meta()) {
    return;  // the loader has failed, and the model will not run
  } else if (BackendOf(weight, packed->execution()) == Backend::kCpu) {
    Pack(weight.contiguous(), storage, packed->execution());
    packed->Add(name, packed_);
  } else {
    TORCH_CHECK(storage != DType::kInt4, "weights of 4 bits are for the CPU");
    if (storage == DType::kInt8) {
      KeepInt8(weight);
    } else {
      plain_ = weight.contiguous();  // llama4's experts come transposed
    }
    packed->AddPlain(name, size_bytes());
  }
}

void PackedMatrix::Pack(const at::Tensor& weight, DType storage, Execution& execution) {
  packed_.dtype = KindOf(weight, storage);
  const int64_t panels = PanelCount(outputs());
  packed_.panels = AllocatePanels(panels * PanelBytes(packed_.dtype, inputs()));
  if (IsQuantised(packed_.dtype)) packed_.scales = at::empty({outputs()}, at::kFloat);
  const PackMatrixArgs args = {.dtype = packed_.dtype,
                               .inputs = inputs(),
                               .outputs = outputs(),
                               .weight = weight.const_data_ptr(),
                               .stride = inputs(),
                               .panels = static_cast<char*>(packed_.panels.data_ptr()),
                               .scales = packed_.scales.defined() ? packed_.scales.mutable_data_ptr<float>() : nullptr};
  const DType type = TypeOf(weight);
  RunOnCpu(&cpu::Kernels::pack_matrix, type, args, panels, inputs() * kPanel, execution);
}

void PackedMatrix::KeepInt8(const at::Tensor& weight) {
  packed_.dtype = DType::kInt8;
  const at::Tensor exact = weight.to(at::kFloat);
  const at::Tensor scales = exact.abs().amax(1).div_(127);
  packed_.scales = scales;
  plain_ =
      (exact / scales.clamp_min(std::numeric_limits<float>::min()).unsqueeze(1)).round_().to(at::kChar).contiguous();
}

PackedWeight PackedMatrix::packed() const {
  return {.dtype = packed_.dtype,
          .inputs = inputs(),
          .outputs = outputs(),
          .panels = static_cast<const char*>(packed_.panels.const_data_ptr()),
          .scales = packed_.scales.defined() ? packed_.scales.const_data_ptr<float>() : nullptr};
}

int64_t PackedMatrix::size_bytes() const {
  if (!plain_.defined()) return packed_.size_bytes();
  return static_cast<int64_t>(plain_.nbytes() + (packed_.scales.defined() ? packed_.scales.nbytes() : 0));
}

at::Tensor MatMul(const at::Tensor& x, const PackedMatrix& weight, const at::Tensor& bias, Execution& execution,
                  bool in_float32) {
  const at::ScalarType type = in_float32 ? at::kFloat : x.scalar_type();
  if (weight.plain().defined()) return DeviceMatMul(x, weight, bias, execution).to(type);
  at::Tensor out = at::empty({x.size(0), weight.outputs()}, x.options().dtype(type));
  if (x.size(0) == 0) return out;
  Task task = TaskOf(x, weight, BiasOf(bias), out);
  if (execution.threads != nullptr) ReadAheadOf(task, execution);
  Run(absl::MakeSpan(&task, 1), TypeOf(x), execution);
  return out;
}

at::Tensor GatedMatMul(const at::Tensor& x, const PackedMatrix& weight, const at::Tensor& bias, Activation activation,
                       Execution& execution) {
  TORCH_CHECK(activation != kClampedSwiglu, "a product with a gate has no constants for this activation");
  const int64_t most = weight.scales().defined() ? kGatedInt8Rows : kGatedRows;
  if (BackendOf(x, execution) == Backend::kCuda && x.size(0) <= most) {
    return GatedOnCuda(x, weight, bias, activation, execution);
  }
  return GatedActivation(MatMul(x, weight, bias, execution), activation, execution);
}

at::Tensor BlockDiagonalMatMul(const at::Tensor& x, const std::vector<PackedMatrix>& weights, Execution& execution) {
  std::vector<at::Tensor> blocks = x.chunk(static_cast<int64_t>(weights.size()), 1);
  if (weights[0].plain().defined()) {
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = DeviceMatMul(blocks[i], weights[i], {}, execution);
    return at::cat(blocks, 1);
  }
  int64_t outputs = 0;
  for (const PackedMatrix& weight : weights) outputs += weight.outputs();
  at::Tensor out = at::empty({x.size(0), outputs}, x.options());
  if (x.size(0) == 0) return out;
  std::vector<Task> tasks;
  int64_t first = 0;
  for (size_t i = 0; i < blocks.size(); first += weights[i++].outputs()) {
    tasks.push_back(TaskOf(blocks[i], weights[i], nullptr, out.narrow(1, first, weights[i].outputs())));
  }
  Run(absl::MakeSpan(tasks), TypeOf(x), execution);
  return out;
}

at::Tensor GroupedMatMul(const at::Tensor& x, const std::vector<PackedMatrix>& experts, const at::Tensor& bias,
                         const std::vector<int64_t>& ends, Execution& execution) {
  at::Tensor out = at::empty({x.size(0), experts[0].outputs()}, x.options());
  std::vector<Task> tasks;
  int64_t begin = 0;
  for (size_t e = 0; e < ends.size(); begin = ends[e++]) {
    if (ends[e] == begin) continue;
    const at::Tensor rows = x.narrow(0, begin, ends[e] - begin);
    at::Tensor into = out.narrow(0, begin, ends[e] - begin);
    const at::Tensor of_expert = bias.defined() ? bias.select(0, static_cast<int64_t>(e)) : bias;
    if (experts[e].plain().defined()) {
      into.copy_(DeviceMatMul(rows, experts[e], of_expert, execution));
    } else {
      tasks.push_back(TaskOf(rows, experts[e], BiasOf(of_expert), into));
    }
  }
  if (!tasks.empty()) Run(absl::MakeSpan(tasks), TypeOf(x), execution);
  return out;
}

at::Tensor AddressesOf(const std::vector<PackedMatrix>& experts) {
  if (!experts[0].plain().defined()) return {};
  const int64_t count = static_cast<int64_t>(experts.size());
  at::Tensor addresses = at::empty({count, 2}, at::kLong);
  int64_t* at = addresses.mutable_data_ptr<int64_t>();
  for (const PackedMatrix& expert : experts) {
    *at++ = reinterpret_cast<int64_t>(expert.plain().const_data_ptr());
    *at++ = expert.scales().defined() ? reinterpret_cast<int64_t>(expert.scales().const_data_ptr()) : 0;
  }
  return addresses.to(experts[0].plain().device());
}

namespace {

// In a tensor of int32: [pairs, pairs, experts]. With a row of x for each pair, that is the pair's own.
PairGroups GroupsOf(const ExpertPairs& pairs) {
  if (!pairs.groups.defined()) return {};
  int* const first = pairs.groups.mutable_data_ptr<int>();
  return {.pairs = first,
          .x_rows = pairs.pairs_per_row == 1 ? first : first + pairs.count(),
          .ends = first + 2 * pairs.count()};
}

}  // namespace

void GroupPairs(int64_t experts, ExpertPairs* pairs, const Execution& execution) {
  if (BackendOf(pairs->chosen, execution) != Backend::kCuda) return;
  const int64_t count = pairs->count();
  if (count <= kExpertRows * experts) return;
  TORCH_CHECK(pairs->chosen.is_contiguous() && count <= std::numeric_limits<int>::max(), count, " pairs");
  pairs->groups = at::empty({2 * count + experts}, pairs->chosen.options().dtype(at::kInt));
  const GroupPairsArgs args = {.chosen = pairs->chosen.const_data_ptr<int64_t>(),
                               .experts = experts,
                               .num_pairs = count,
                               .pairs_per_row = pairs->pairs_per_row,
                               .groups = GroupsOf(*pairs)};
  CheckLaunched(
      RunOnCuda(&cuda::Kernels::group_pairs, DType::kBFloat16, args, LaunchParamsFor(pairs->chosen), execution));
}

at::Tensor ExpertMatMul(const at::Tensor& x, const std::vector<PackedMatrix>& experts, const at::Tensor& addresses,
                        const at::Tensor& bias, const ExpertPairs& pairs, const Execution& execution) {
  if (BackendOf(x, execution) != Backend::kCuda) return {};
  const PackedMatrix& first = experts[0];
  TORCH_CHECK(x.size(1) == first.inputs() && x.scalar_type() == first.type() && pairs.chosen.is_contiguous() &&
                  x.size(0) * pairs.pairs_per_row == pairs.count(),
              "a product of ", x.sizes(), " ", x.scalar_type(), " and experts of ", first.inputs(), " ", first.type());
  at::Tensor out = at::empty({pairs.count(), first.outputs()}, x.options());
  const ExpertMatMulArgs args = {.addresses = addresses.const_data_ptr<int64_t>(),
                                 .is_int8 = first.scales().defined(),
                                 .chosen = pairs.chosen.const_data_ptr<int64_t>(),
                                 .groups = GroupsOf(pairs),
                                 .x = RowsOf(x),
                                 .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                                 .out = out.data_ptr(),
                                 .experts = static_cast<int64_t>(experts.size()),
                                 .pairs = pairs.count(),
                                 .pairs_per_row = pairs.pairs_per_row,
                                 .outputs = first.outputs(),
                                 .inputs = first.inputs(),
                                 .x_stride = x.stride(0)};
  const bool has_run =
      IsLaunched(RunOnCuda(&cuda::Kernels::expert_matmul, TypeOf(x), args, LaunchParamsFor(x), execution));
  return has_run ? out : at::Tensor();
}

}  // namespace berth::ops
