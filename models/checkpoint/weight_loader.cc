#include "models/checkpoint/weight_loader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace berth {
namespace {

at::ScalarType ToScalarType(DType dtype) {
  return dtype == DType::kFloat32 ? at::ScalarType::Float : at::ScalarType::BFloat16;
}

// Undefined for what no floating-point weight is stored in.
at::ScalarType ToScalarType(TensorDType dtype) {
  switch (dtype) {
    case TensorDType::kF32:
      return at::ScalarType::Float;
    case TensorDType::kBF16:
      return at::ScalarType::BFloat16;
    case TensorDType::kF16:
      return at::ScalarType::Half;
    default:
      return at::ScalarType::Undefined;
  }
}

std::string ShapeText(at::IntArrayRef shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

bool IsComputedBuffer(absl::string_view name) {
  return absl::EndsWith(name, "inv_freq") || absl::EndsWith(name, "masked_bias") ||
         absl::EndsWith(name, "position_ids");
}

// How a multimodal checkpoint wraps its text model: `first` of a name becomes `stored`.
struct Wrapping {
  absl::string_view first, stored;
};
constexpr absl::string_view kHead = "lm_head.";
constexpr Wrapping kNoWrapping = {"", ""};
constexpr Wrapping kWrappings[] = {{"model.", "model.language_model."}, {"", "language_model."}};

const Wrapping& FindWrapping(const Checkpoint& checkpoint) {
  for (const Wrapping& wrapping : kWrappings) {
    for (const std::string& name : checkpoint.names()) {
      if (absl::StartsWith(name, wrapping.stored)) return wrapping;
    }
  }
  return kNoWrapping;
}

// The file's bytes as a tensor. `owner` keeps them mapped as long as the tensor lives.
at::Tensor FromFile(const TensorView& view, at::ScalarType type, std::shared_ptr<const Checkpoint> owner) {
  const auto address = reinterpret_cast<uintptr_t>(view.data);
  if (view.bytes == 0 || address % c10::elementSize(type) != 0) {
    at::Tensor copy = at::empty(view.shape, type);
    if (view.bytes > 0) std::memcpy(copy.mutable_data_ptr(), view.data, static_cast<size_t>(view.bytes));
    return copy;
  }
  return at::from_blob(
      const_cast<std::byte*>(view.data), view.shape, [owner = std::move(owner)](void*) {}, at::TensorOptions(type));
}

}  // namespace

struct WeightLoader::State {
  std::shared_ptr<const Checkpoint> checkpoint;
  Options options;
  Wrapping wrapping;
  absl::Status status;
  absl::flat_hash_set<std::string> read;
  absl::flat_hash_set<std::string> kept;
  std::vector<std::string> ignored_prefixes;
  int64_t num_parameters = 0;
  int64_t weight_bytes = 0;

  bool IsOfText(absl::string_view name) const {
    return absl::StartsWith(name, wrapping.stored) || (!wrapping.first.empty() && absl::StartsWith(name, kHead));
  }
};

WeightLoader::WeightLoader(std::shared_ptr<const Checkpoint> checkpoint, const Options& options)
    : state_(std::make_shared<State>()) {
  state_->checkpoint = std::move(checkpoint);
  state_->wrapping = FindWrapping(*state_->checkpoint);
  state_->options = options;
}

WeightLoader::WeightLoader(std::shared_ptr<State> state, std::string prefix)
    : state_(std::move(state)), prefix_(std::move(prefix)) {}

WeightLoader WeightLoader::Under(absl::string_view prefix) const {
  return WeightLoader(state_, absl::StrCat(prefix_, prefix));
}

WeightLoader WeightLoader::UnderFirst(std::initializer_list<absl::string_view> prefixes,
                                      absl::string_view probe) const {
  for (absl::string_view prefix : prefixes) {
    if (Has(absl::StrCat(prefix, probe))) return Under(prefix);
  }
  return Under(prefixes.size() == 0 ? "" : *prefixes.begin());
}

std::vector<std::string> WeightLoader::StoredNames(absl::string_view name) const {
  std::string full = absl::StrCat(prefix_, name);
  const Wrapping& wrapping = state_->wrapping;
  const std::string& base = state_->options.base_prefix;
  if (absl::StartsWith(full, wrapping.first)) {
    full = absl::StrCat(wrapping.stored, full.substr(wrapping.first.size()));
  }
  if (base.empty()) return {full};
  std::vector<std::string> names = {full, base + full};
  if (absl::StartsWith(full, base)) names.push_back(full.substr(base.size()));
  return names;
}

std::string WeightLoader::StoredName(absl::string_view name) const {
  const std::vector<std::string> names = StoredNames(name);
  for (const std::string& stored : names) {
    if (state_->checkpoint->Find(stored) != nullptr) return stored;
  }
  return names[0];
}

bool WeightLoader::Has(absl::string_view name) const { return state_->checkpoint->Find(StoredName(name)) != nullptr; }

bool WeightLoader::Same(absl::string_view a, absl::string_view b) const {
  const TensorView* x = state_->checkpoint->Find(StoredName(a));
  const TensorView* y = state_->checkpoint->Find(StoredName(b));
  return x != nullptr && y != nullptr && x->dtype == y->dtype && x->shape == y->shape &&
         std::memcmp(x->data, y->data, static_cast<size_t>(x->bytes)) == 0;
}

std::vector<int64_t> WeightLoader::Shape(absl::string_view name) const {
  const TensorView* view = state_->checkpoint->Find(StoredName(name));
  return view == nullptr ? std::vector<int64_t>{} : view->shape;
}

void WeightLoader::Fail(absl::Status status) {
  if (state_->status.ok()) state_->status = std::move(status);
}

at::Tensor WeightLoader::WithoutValues(at::IntArrayRef shape, at::ScalarType type) {
  return at::empty(shape, at::TensorOptions(type).device(at::kMeta));
}

const TensorView* WeightLoader::Find(const std::string& full_name, at::IntArrayRef shape) {
  const TensorView* view = state_->checkpoint->Find(full_name);
  if (view == nullptr) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("checkpoint: ", full_name, ": is absent, expected shape ", ShapeText(shape))));
    return nullptr;
  }
  if (at::IntArrayRef(view->shape) != shape) {
    Fail(absl::InvalidArgumentError(absl::StrCat("checkpoint: ", full_name, ": shape ", ShapeText(view->shape),
                                                 " found, ", ShapeText(shape), " expected")));
    return nullptr;
  }
  return view;
}

void WeightLoader::Count(const std::string& full_name, const at::Tensor& tensor, Use use) {
  if (state_->read.insert(full_name).second) state_->num_parameters += tensor.numel();
  // An embedding that is a head too is kept as well, whoever asked first.
  if (use == Use::kKept && state_->kept.insert(full_name).second) {
    state_->weight_bytes += static_cast<int64_t>(tensor.nbytes());
  }
}

at::Tensor WeightLoader::Convert(const std::string& full_name, const TensorView& view, at::ScalarType from,
                                 at::ScalarType to, Use use) {
  try {
    at::Tensor tensor = use == Use::kPacked && state_->options.matrices_need_no_values
                            ? WithoutValues(view.shape, to)
                            : FromFile(view, from, state_->checkpoint).to(state_->options.device, to);
    Count(full_name, tensor, use);
    return tensor;
  } catch (const c10::Error& e) {
    Fail(absl::ResourceExhaustedError(absl::StrCat("checkpoint: ", full_name, ": ", view.bytes,
                                                   " bytes could not be allocated: ", e.what_without_backtrace())));
    return WithoutValues(view.shape, to);
  }
}

at::Tensor WeightLoader::Load(absl::string_view name, at::IntArrayRef shape, DType dtype, Use use) {
  const std::string full_name = StoredName(name);
  const TensorView* view = Find(full_name, shape);
  if (view == nullptr) return WithoutValues(shape, ToScalarType(dtype));
  const at::ScalarType type = ToScalarType(view->dtype);
  if (type == at::ScalarType::Undefined) {
    Fail(absl::InvalidArgumentError(absl::StrCat("checkpoint: ", full_name, ": dtype ",
                                                 std::string(TensorDTypeName(view->dtype)),
                                                 " found, F32, BF16 or F16 expected")));
    return WithoutValues(shape, ToScalarType(dtype));
  }
  return Convert(full_name, *view, type, ToScalarType(dtype), use);
}

at::Tensor WeightLoader::GetBytes(absl::string_view name, at::IntArrayRef shape) {
  const std::string full_name = StoredName(name);
  const TensorView* view = Find(full_name, shape);
  if (view == nullptr) return WithoutValues(shape, at::kByte);
  if (view->dtype != TensorDType::kU8) {
    Fail(absl::InvalidArgumentError(absl::StrCat("checkpoint: ", full_name, ": dtype ",
                                                 std::string(TensorDTypeName(view->dtype)), " found, U8 expected")));
    return WithoutValues(shape, at::kByte);
  }
  return Convert(full_name, *view, at::kByte, at::kByte, Use::kPacked);
}

at::Tensor WeightLoader::Get(absl::string_view name, at::IntArrayRef shape) {
  return Load(name, shape, state_->options.dtype);
}

at::Tensor WeightLoader::GetMatrix(absl::string_view name, at::IntArrayRef shape) {
  return Load(name, shape, state_->options.dtype, Use::kPacked);
}

at::Tensor WeightLoader::GetOptional(absl::string_view name, at::IntArrayRef shape) {
  return Has(name) ? Get(name, shape) : at::Tensor();
}

at::Tensor WeightLoader::GetFloat32(absl::string_view name, at::IntArrayRef shape) {
  return Load(name, shape, DType::kFloat32);
}

void WeightLoader::IgnoreUnder(absl::string_view prefix) {
  for (std::string& stored : StoredNames(prefix)) state_->ignored_prefixes.push_back(std::move(stored));
}

std::vector<std::string> WeightLoader::Unused() const {
  std::vector<std::string> unused;
  for (const std::string& name : state_->checkpoint->names()) {
    if (state_->read.contains(name) || IsComputedBuffer(name)) continue;
    bool ignored = !state_->IsOfText(name);
    for (const std::string& prefix : state_->ignored_prefixes) ignored = ignored || absl::StartsWith(name, prefix);
    if (!ignored) unused.push_back(name);
  }
  return unused;
}

const absl::Status& WeightLoader::status() const { return state_->status; }
const WeightLoader::Options& WeightLoader::options() const { return state_->options; }
int64_t WeightLoader::num_parameters() const { return state_->num_parameters; }
int64_t WeightLoader::weight_bytes() const { return state_->weight_bytes; }

}  // namespace berth
