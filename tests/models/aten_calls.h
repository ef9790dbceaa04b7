// Watches the operations of ATen that this thread runs, and says which of them a GPU would refuse. On the CPU, some
// operations take a bfloat16 input with float32 weights; on CUDA the same calls throw. So tests without a GPU have to
// look at the types themselves. Single-threaded; one watcher at a time.
#ifndef BERTH_TESTS_MODELS_ATEN_CALLS_H_
#define BERTH_TESTS_MODELS_ATEN_CALLS_H_

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/models/call_inputs.h"

namespace berth {

class AtenCalls {
 public:
  AtenCalls() {
    Names() = {};
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&Watch).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~AtenCalls() { at::removeCallback(handle_); }
  AtenCalls(const AtenCalls&) = delete;
  AtenCalls& operator=(const AtenCalls&) = delete;

  int Count(const std::string& name) const {
    return static_cast<int>(std::count(Names().all.begin(), Names().all.end(), name));
  }
  // Operations whose tensors have several floating-point types where CUDA wants one.
  const std::vector<std::string>& mixed() const { return Names().mixed; }

 private:
  struct Seen {
    std::vector<std::string> all, mixed;
  };
  static Seen& Names() {
    static Seen seen;
    return seen;
  }

  static std::unique_ptr<at::ObserverContext> Watch(const at::RecordFunction& function) {
    static constexpr std::array<std::string_view, 12> kOfOneType = {"aten::layer_norm", "aten::native_layer_norm",
                                                                    "aten::group_norm", "aten::linear",
                                                                    "aten::addmm",      "aten::mm",
                                                                    "aten::bmm",        "aten::baddbmm",
                                                                    "aten::matmul",     "aten::conv1d",
                                                                    "aten::conv2d",     "aten::convolution"};
    Names().all.emplace_back(function.name());
    if (std::find(kOfOneType.begin(), kOfOneType.end(), function.name()) == kOfOneType.end()) return nullptr;
    at::ScalarType type = at::ScalarType::Undefined;
    for (const c10::IValue& input : InputsOf(function)) {
      if (!input.isTensor() || !input.toTensor().defined() || !input.toTensor().is_floating_point()) continue;
      const at::ScalarType own = input.toTensor().scalar_type();
      if (type != at::ScalarType::Undefined && own != type) Names().mixed.emplace_back(function.name());
      type = own;
    }
    return nullptr;
  }

  at::CallbackHandle handle_;
};

}  // namespace berth

#endif  // BERTH_TESTS_MODELS_ATEN_CALLS_H_
