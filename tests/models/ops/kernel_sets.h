// Which kernel sets a test can run on this machine. It names the others, so that a log says what was not tested.
// Single-threaded.
#ifndef BERTH_TESTS_MODELS_OPS_KERNEL_SETS_H_
#define BERTH_TESTS_MODELS_OPS_KERNEL_SETS_H_

#include <iostream>
#include <set>
#include <string>

#include "models/ops/cpu_kernels.h"

namespace berth {

// Whether the machine runs the set. If not, the log names it once, with what the machine lacks.
inline bool RunsHere(const ops::cpu::Kernels& kernels) {
  const char* const missing = ops::cpu::MissingInstructions(kernels);
  static auto* const named = new std::set<std::string>;
  if (missing != nullptr && named->insert(kernels.capability).second) {
    std::cerr << "not tested: kernels of " << kernels.capability << ", for the machine lacks " << missing << std::endl;
  }
  return missing == nullptr;
}

}  // namespace berth

#endif  // BERTH_TESTS_MODELS_OPS_KERNEL_SETS_H_
