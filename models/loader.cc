#include "models/loader.h"

#include <ATen/Parallel.h>
#include <c10/core/Device.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/machine.h"
#include "models/checkpoint/config_fields.h"
#include "models/checkpoint/safetensors.h"
#include "models/checkpoint/weight_loader.h"
#include "models/families/family.h"
#include "models/ops/cpu_kernels.h"
#include "models/ops/cuda_kernels.h"
#include "models/ops/matmul/packed_weights.h"
#include "models/runner/decode_graphs.h"
#include "models/runner/device.h"
#include "models/runner/torch_runner.h"
#include "models/step/thread_pool.h"

namespace berth {
namespace {

// On a GPU, or with its kernels emulated on the CPU.
bool RunsAsOnGpu(const at::Device& device, const Execution& execution) {
  return !device.is_cpu() || execution.cuda_kernels != nullptr;
}

class TorchModel : public LoadedModel {
 public:
  struct Parts {
    ModelInfo info;
    CachePlan plan;
    GenerationDefaults defaults;
    at::Device device;
    std::unique_ptr<ThreadPool> threads;
    std::unique_ptr<Execution> execution;
    std::unique_ptr<PackedWeights> packed;
    std::unique_ptr<Model> model;
    std::function<void(const std::string&)> on_graph_refusal;
  };
  explicit TorchModel(Parts parts) : parts_(std::move(parts)) {}

  const ModelInfo& info() const override { return parts_.info; }
  const CachePlan& cache_plan() const override { return parts_.plan; }
  const GenerationDefaults& generation_defaults() const override { return parts_.defaults; }
  absl::StatusOr<DeviceMemory> device_memory() const override {
    if (parts_.device.is_cpu()) return absl::FailedPreconditionError("the model runs on the CPU");
    return GetDeviceMemory(parts_.device);
  }
  absl::Status ReturnFreeMemory() const override {
    return parts_.device.is_cpu() ? absl::OkStatus() : berth::ReturnFreeMemory(parts_.device);
  }
  absl::StatusOr<std::unique_ptr<ArenaStorage>> CreateStorage(int64_t size_bytes) const override {
    return CreateDeviceStorage(parts_.device, size_bytes, parts_.execution->cuda_kernels);
  }
  absl::StatusOr<std::unique_ptr<ModelRunner>> CreateRunner(ArenaStorage* storage, const StepSize& limits) override {
    Execution* const execution = parts_.execution.get();
    const bool has_graphs = execution->graph_recorder != nullptr;
    StepBatch batch(parts_.plan, storage->base(), parts_.device, execution,
                    /*copy_tables=*/RunsAsOnGpu(parts_.device, *execution));
    batch.Reserve(limits);
    auto graphs = has_graphs ? std::make_unique<DecodeGraphs>(parts_.model.get(), execution->graph_recorder,
                                                              limits.sequence_tokens, parts_.on_graph_refusal)
                             : nullptr;
    return std::make_unique<TorchRunner>(parts_.info, parts_.model.get(), std::move(batch), std::move(graphs));
  }

 private:
  Parts parts_;
};

// Completes `execution` with what the device has and the options ask for. The device's kernels may be missing, which
// `info` tells.
absl::Status OpenExecution(const LoadOptions& options, const at::Device& device, Execution* execution,
                           ModelInfo* info) {
  execution->chunk_invariant_scans = options.chunk_invariant_scans;
  if (device.is_cuda()) {
    const auto kernels = LoadDeviceKernels(device);
    if (kernels.ok()) {
      execution->cuda_kernels = *kernels;
      info->device_kernels = (*kernels)->name;
    } else {
      info->missing_kernels = std::string(kernels.status().message());
    }
  }
  if (!options.cuda_graphs) {
    execution->graph_recorder = nullptr;
  } else if (execution->graph_recorder == nullptr) {
    const auto recorder = LoadGraphRecorder(device);
    if (!recorder.ok() && device.is_cpu()) return recorder.status();
    if (!recorder.ok()) info->missing_graphs = std::string(recorder.status().message());
    execution->graph_recorder = recorder.ok() ? *recorder : nullptr;
  }
  return absl::OkStatus();
}

// The name of the type that most bytes of numbers have; "": the checkpoint has no such numbers. Transformers takes the
// type of the first tensor, which is the same one unless the types are mixed.
std::string DTypeOfMost(const Checkpoint& checkpoint) {
  struct Type {
    TensorDType dtype;
    const char* name;
    int64_t bytes;
  };
  Type types[] = {
      {TensorDType::kF32, "float32", 0}, {TensorDType::kBF16, "bfloat16", 0}, {TensorDType::kF16, "float16", 0}};
  for (const std::string& name : checkpoint.names()) {
    const TensorView& tensor = *checkpoint.Find(name);
    for (Type& type : types) type.bytes += tensor.dtype == type.dtype ? tensor.bytes : 0;
  }
  const Type& most = *std::max_element(std::begin(types), std::end(types),
                                       [](const Type& a, const Type& b) { return a.bytes < b.bytes; });
  return most.bytes > 0 ? most.name : "";
}

// `on_gpu` decides what stands for float16, which has no kernels here. On the CPU that is float32, which loses nothing.
// On a GPU, float32 would cost twice the bytes, and has no tensor cores.
absl::StatusOr<DType> ChooseDType(const LoadOptions& options, bool on_gpu, const Checkpoint& checkpoint,
                                  ConfigReader& config, ConfigReader& text, ModelInfo* info) {
  std::string name = options.dtype == "auto" ? ReadDTypeName(config) : options.dtype;
  if (name.empty()) name = ReadDTypeName(text);
  if (name.empty()) name = DTypeOfMost(checkpoint);
  if (name == "float32") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBFloat16;
  if (options.dtype == "auto" && name == "float16" && on_gpu) {
    constexpr absl::string_view kRounded =
        "the checkpoint's float16 weights are rounded to bfloat16, which has 8 bits of precision, not 11; "
        "--dtype=float32 keeps them as they are, in twice the memory";
    info->warnings.emplace_back(kRounded);
    return DType::kBFloat16;
  }
  if (options.dtype == "auto" && (name == "float16" || name.empty())) return DType::kFloat32;
  return absl::InvalidArgumentError(absl::StrCat("dtype: \"", name, "\" is not auto, float32 or bfloat16"));
}

// The type of the matrices. `dtype` is the model's.
absl::StatusOr<DType> ChooseMatrixDType(const LoadOptions& options, DType dtype) {
  if (options.weights == "auto") return dtype;
  if (options.weights != "int8" && options.weights != "int4") {
    return absl::InvalidArgumentError(absl::StrCat("weights: \"", options.weights, "\" is not auto, int8 or int4"));
  }
  if (options.weights == "int4" && options.device != "cpu") {
    return absl::FailedPreconditionError(
        absl::StrCat("weights: \"int4\" runs on device cpu, not on ", options.device, "; int8 runs on both"));
  }
  return options.weights == "int8" ? DType::kInt8 : DType::kInt4;
}

// What --cache_dtype makes of the layers' own choice.
absl::Status ChooseCacheDType(const LoadOptions& options, std::vector<LayerCacheSpec>* specs) {
  if (options.cache_dtype == "auto") return absl::OkStatus();
  if (options.cache_dtype != "int8" && options.cache_dtype != "int4") {
    return absl::InvalidArgumentError(
        absl::StrCat("cache_dtype: \"", options.cache_dtype, "\" is not auto, int8 or int4"));
  }
  QuantiseKv(options.cache_dtype == "int8" ? DType::kInt8 : DType::kInt4, options.cache_residual_tokens, specs);
  return absl::OkStatus();
}

// What the flags make of what the layers need.
absl::StatusOr<CachePlan> MakeCachePlan(const LoadOptions& options, std::vector<LayerCacheSpec> specs) {
  if (options.attention_window > 0) LimitAttention(options.attention_window, options.sink_tokens, &specs);
  if (absl::Status status = ChooseCacheDType(options, &specs); !status.ok()) return status;
  if (options.state_checkpoint_dtype != "auto" && options.state_checkpoint_dtype != "int8") {
    return absl::InvalidArgumentError(
        absl::StrCat("state_checkpoint_dtype: \"", options.state_checkpoint_dtype, "\" is not auto or int8"));
  }
  auto plan = BuildCachePlan(specs, options.block_tokens);
  if (plan.ok() && options.state_checkpoint_dtype == "int8") QuantiseCheckpoints(specs, &*plan);
  return plan;
}

std::string ModelName(const LoadOptions& options) {
  if (!options.name.empty()) return options.name;
  std::filesystem::path path = std::filesystem::weakly_canonical(options.model_dir);
  return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

// What builds the text model: all of `config`, or the part of a multimodal model's that describes the text model.
ConfigReader TextConfig(ConfigReader& config, const Family& family) {
  if (!config.Has("text_config")) return config;
  ConfigReader text = config.Object("text_config");
  auto inner = FindFamily(text.StringOr("model_type", family.model_type));
  text.Require(inner.ok() && (*inner)->build == family.build, "model_type",
               absl::StrCat("is not the text model of ", family.model_type));
  if (family.head_is_outside) text.TakeFrom(config, "tie_word_embeddings");
  return text;
}

void SetEndTokens(const std::vector<int32_t>& tokens, ModelInfo* info) {
  info->eos_token_ids = tokens;
  for (const std::string& line : EndTokenWarnings(tokens, info->vocab_size)) info->warnings.push_back(line);
}

std::string BasePrefix(const Family& family) {
  return family.base_prefix.empty() ? "model." : std::string(family.base_prefix);
}

// Weights that are packed in a way that the family cannot unpack.
void RefuseQuantization(ConfigReader& config, absl::string_view implemented) {
  if (!config.Has("quantization_config")) return;
  ConfigReader quantization = config.Object("quantization_config");
  if (!quantization.Has("quant_method")) {
    config.RefuseUnless("quantization_config");
  } else if (implemented.empty()) {
    quantization.RefuseUnless("quant_method");
  } else {
    quantization.RefuseUnless("quant_method", implemented);
  }
}

// A decoder that was made an encoder of texts: each token sees those after it too.
void RefuseBothDirections(ConfigReader& config) {
  config.RefuseUnless("is_causal", true);
  for (const std::string& name : config.StringListOr("architectures", {})) {
    config.Require(!absl::StrContains(name, "Bidirectional"), "architectures",
                   "names a model whose tokens see those after them, which is not implemented");
  }
}

void RefuseVariants(ConfigReader& config, absl::string_view quantization) {
  RefuseQuantization(config, quantization);
  RefuseBothDirections(config);
  config.Require(!config.Has("per_layer_config"), "per_layer_config", "is not implemented");
}

// What the matrices go through: from a file, into one, or, in a dry run, only counted.
std::unique_ptr<PackedWeights> OpenPackedWeights(const LoadOptions& options, const at::Device& device,
                                                 Execution* execution) {
  using Purpose = PackedWeights::Purpose;
  if (options.dry_run) {
    return std::make_unique<PackedWeights>(execution,
                                           device.is_cpu() ? Purpose::kMeasureForCpu : Purpose::kMeasureForOther);
  }
  if (!device.is_cpu() || options.packed_file.empty()) return std::make_unique<PackedWeights>(execution);
  return std::make_unique<PackedWeights>(options.packed_file, options.packed_identity, execution);
}

// A tensor that no layer read is a sign of a wrong port or of a wrong checkpoint: never serve it.
absl::Status CheckAllRead(const WeightLoader& weights) {
  std::vector<std::string> unused = weights.Unused();
  if (unused.empty()) return absl::OkStatus();
  const size_t count = unused.size();
  unused.resize(std::min<size_t>(count, 4));
  return absl::InvalidArgumentError(absl::StrCat(
      "the checkpoint has ", count, " tensors that this architecture does not use: ", absl::StrJoin(unused, ", "),
      count > unused.size() ? ", ..." : ""));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::Load(const LoadOptions& options, const Execution& prepared) {
  auto device = OpenDevice(options.device);
  if (!device.ok()) return device.status();
  const int num_threads = options.num_threads > 0 ? options.num_threads : AvailableCpus();
  at::set_num_threads(num_threads);
  auto threads = std::make_unique<ThreadPool>(num_threads);
  auto execution = std::make_unique<Execution>(prepared);
  execution->threads = threads.get();
  ModelInfo info;
  info.name = ModelName(options);
  if (absl::Status status = OpenExecution(options, *device, execution.get(), &info); !status.ok()) return status;

  auto json = JsonConfig::Create(options.model_dir + "/config.json");
  if (!json.ok()) return json.status();
  ConfigReader config(*json);
  info.model_type = config.String("model_type");
  info.architectures = config.StringListOr("architectures", {});
  if (!config.status().ok()) return config.status();
  auto family = FindFamily(info.model_type);
  if (!family.ok()) return family.status();
  ConfigReader text = TextConfig(config, **family);
  for (ConfigReader* part : {&config, &text}) RefuseVariants(*part, (*family)->quantization);
  if (!config.status().ok()) return config.status();
  auto checkpoint = Checkpoint::Open(options.model_dir);
  if (!checkpoint.ok()) return checkpoint.status();
  auto dtype = ChooseDType(options, RunsAsOnGpu(*device, *execution), **checkpoint, config, text, &info);
  if (!dtype.ok()) return dtype.status();
  auto matrices = ChooseMatrixDType(options, *dtype);
  if (!matrices.ok()) return matrices.status();
  auto defaults = ReadGenerationDefaults(options.model_dir, *json, &info.warnings);
  if (!defaults.ok()) return defaults.status();

  auto packed = OpenPackedWeights(options, *device, execution.get());
  // How much a dry run's matrix takes depends on its values only where float32 may be stored as bfloat16 (matmul.cc).
  const bool depends_on_values = device->is_cpu() && *dtype == DType::kFloat32;
  WeightLoader weights(*std::move(checkpoint),
                       {.dtype = *dtype,
                        .device = options.dry_run ? at::Device(at::kCPU) : *device,
                        .matrices = *matrices,
                        .packed = packed.get(),
                        .matrices_need_no_values = options.dry_run ? !depends_on_values : packed->mapped(),
                        .base_prefix = BasePrefix(**family)});
  std::unique_ptr<Model> model;
  try {
    model = (*family)->build(text, weights);
  } catch (const c10::Error& error) {
    // What it throws after the first error follows from that.
    if (!weights.status().ok()) return weights.status();
    return absl::InternalError(absl::StrCat("loading failed: ", error.what_without_backtrace()));
  }
  info.max_positions = text.IntOr("max_position_embeddings", 0, 0, int64_t{1} << 40);
  if (!config.status().ok()) return config.status();
  if (!weights.status().ok()) return weights.status();
  if (absl::Status status = CheckAllRead(weights); !status.ok()) return status;

  auto plan = MakeCachePlan(options, model->cache_specs());
  if (!plan.ok()) return plan.status();
  info.rope_switch_length = model->rope_switch_length();
  info.max_shareable_tokens = model->max_shareable_tokens();
  info.num_layers = static_cast<int64_t>(plan->layers.size());
  info.position_limit = model->position_limit();
  info.vocab_size = model->vocab_size();
  info.hidden_size = model->hidden_size();
  info.num_parameters = weights.num_parameters();
  info.weight_bytes = weights.weight_bytes() + packed->size_bytes();
  if (options.dry_run) info.missing_bytes = device->is_cpu() ? packed->size_bytes() : info.weight_bytes;
  info.weights_were_packed = packed->mapped();
  SetEndTokens(defaults->eos_token_ids, &info);
  info.dtype = *dtype;
  info.device = options.device;
  if (!options.dry_run) packed->Keep(options.on_packed_file);
  return std::make_unique<TorchModel>(TorchModel::Parts{.info = std::move(info),
                                                        .plan = *std::move(plan),
                                                        .defaults = *std::move(defaults),
                                                        .device = *device,
                                                        .threads = std::move(threads),
                                                        .execution = std::move(execution),
                                                        .packed = std::move(packed),
                                                        .model = std::move(model),
                                                        .on_graph_refusal = options.on_graph_refusal});
}

std::vector<std::pair<std::string, std::string>> SupportedModelTypes() {
  std::vector<std::pair<std::string, std::string>> types;
  for (const Family& family : Families()) types.emplace_back(family.model_type, family.cache_kinds);
  return types;
}

std::string CpuCapability() { return ops::cpu::GetKernels().capability; }

std::vector<CpuKernelSet> CpuKernelSets() {
  std::vector<CpuKernelSet> sets;
  for (const ops::cpu::Kernels* set : ops::cpu::kKernelSets) {
    const char* const missing = ops::cpu::MissingInstructions(*set);
    sets.push_back({set->capability, missing == nullptr ? "" : missing});
  }
  return sets;
}

std::string LibtorchVersion() { return TORCH_VERSION; }

}  // namespace berth
