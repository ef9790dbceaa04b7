// Watches a step that becomes a CUDA graph: what the recording would refuse or lose, and what the step launches.
// Single-threaded; one watcher at a time.
#ifndef BERTH_TESTS_MODELS_RECORDED_STEP_H_
#define BERTH_TESTS_MODELS_RECORDED_STEP_H_

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/models/call_inputs.h"
#include "tests/models/kernels/cuda_emulation/cuda_runtime.h"

namespace berth {

// Counts by name: of our kernels under "kernels", of ATen's operations under theirs.
using Launches = std::map<std::string, int64_t>;

inline std::string ToString(const Launches& launches) {
  std::string text;
  int64_t total = 0;
  for (const auto& [name, count] : launches) {
    absl::StrAppend(&text, ", ", name, " ", count);
    total += count;
  }
  return absl::StrCat(total, text.empty() ? "" : ":", text.empty() ? "" : text.substr(1));
}

class RecordedStep {
 public:
  RecordedStep() : kernels_before_(cuda_emulation::NumLaunches()) {
    Calls() = {};
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&Begin, &End).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~RecordedStep() { at::removeCallback(handle_); }
  RecordedStep(const RecordedStep&) = delete;
  RecordedStep& operator=(const RecordedStep&) = delete;

  // Calls that wait for the device, or copy between it and the host.
  std::vector<std::string> refused() const { return Calls().refused; }
  // A call of ATen's counts once, whatever it calls in turn. Views, and allocations, launch nothing; those calls that
  // may be views count by the copies that they make.
  Launches launches() const {
    Launches launches = Calls().launches;
    launches["kernels"] = cuda_emulation::NumLaunches() - kernels_before_;
    return launches;
  }

 private:
  struct Seen {
    int depth = 0;
    bool may_be_view = false;  // the outermost call
    std::vector<std::string> refused;
    Launches launches;
  };
  static Seen& Calls() {
    static Seen seen;
    return seen;
  }

  static bool MayBeView(std::string_view name) {
    static const std::set<std::string_view> kNames = {
        "alias",         "as_strided", "chunk",      "contiguous",  "detach",  "empty",  "empty_like",
        "empty_strided", "expand",     "expand_as",  "flatten",     "movedim", "narrow", "new_empty",
        "permute",       "reshape",    "reshape_as", "select",      "slice",   "split",  "split_with_sizes",
        "squeeze",       "t",          "to",         "transpose",   "type_as", "unbind", "unflatten",
        "unsqueeze",     "view",       "view_as",    "_unsafe_view"};
    return kNames.contains(name);
  }
  // Their results' sizes or values are the host's.
  static bool Waits(std::string_view name) {
    static const std::set<std::string_view> kNames = {"item",
                                                      "_local_scalar_dense",
                                                      "is_nonzero",
                                                      "nonzero",
                                                      "nonzero_numpy",
                                                      "argwhere",
                                                      "equal",
                                                      "allclose",
                                                      "masked_select",
                                                      "bincount",
                                                      "repeat_interleave",
                                                      "unique_consecutive",
                                                      "_unique",
                                                      "_unique2",
                                                      "unique_dim",
                                                      "pin_memory",
                                                      "_pin_memory"};
    return kNames.contains(name);
  }
  static bool IsMask(const c10::IValue& value) {
    if (value.isTensor()) {
      return value.toTensor().defined() && value.toTensor().scalar_type() == at::kBool;
    }
    if (!value.isList()) return false;
    for (const c10::IValue& of_list : value.toListRef()) {
      if (IsMask(of_list)) return true;
    }
    return false;
  }
  // Copies to a device that the call names: between the host and a GPU, or nothing.
  static bool Copies(std::string_view name, c10::ArrayRef<const c10::IValue> inputs) {
    if (name == "index" || name == "index_put_") return inputs.size() > 1 && IsMask(inputs[1]);
    if (name != "to" && name != "_to_copy") return false;
    for (const c10::IValue& input : inputs) {
      if (input.isDevice()) return true;
    }
    return false;
  }

  static std::unique_ptr<at::ObserverContext> Begin(const at::RecordFunction& function) {
    Seen& seen = Calls();
    const std::string_view full = function.name();
    const std::string_view name = full.substr(full.rfind(':') + 1);
    if (Waits(name) || Copies(name, InputsOf(function))) seen.refused.emplace_back(name);
    if (seen.depth++ == 0) {
      seen.may_be_view = MayBeView(name);
      if (!seen.may_be_view) ++seen.launches[std::string(name)];
    } else if (seen.may_be_view && name == "copy_") {
      ++seen.launches["copy_"];
    }
    return nullptr;
  }
  static void End(const at::RecordFunction&, at::ObserverContext*) { --Calls().depth; }

  int64_t kernels_before_;
  at::CallbackHandle handle_;
};

}  // namespace berth

#endif  // BERTH_TESTS_MODELS_RECORDED_STEP_H_
