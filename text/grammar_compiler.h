// Compiles grammars on a few threads of its own, and keeps the compiled ones. Requests with the same spec share one
// compilation, also while it is under way. Thread-safe. Torch-free.
#ifndef BERTH_TEXT_GRAMMAR_COMPILER_H_
#define BERTH_TEXT_GRAMMAR_COMPILER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "models/token_constraint.h"
#include "text/grammar_spec.h"

namespace berth {

class GrammarCompiler {
 public:
  using Constraint = std::shared_ptr<const TokenConstraint>;
  // Called once, from Compile or on one of the compiler's threads.
  using Callback = std::function<void(absl::StatusOr<Constraint>)>;
  using Compile = std::function<absl::StatusOr<CompiledGrammar>(const GrammarSpec&, std::stop_token)>;

  struct Options {
    int64_t threads = 1;
    int64_t max_waiting = 256;                      // further specs are refused with RESOURCE_EXHAUSTED
    int64_t cache_bytes = int64_t{256} << 20;       // of compiled grammars, the least recently used of which go first
    absl::Duration timeout = absl::Seconds(10);     // of one compilation, from its start; then INVALID_ARGUMENT
    Compile compile;                                // CompileGrammar with the model's vocabulary; tests give their own
  };
};

}  // namespace berth

#endif  // BERTH_TEXT_GRAMMAR_COMPILER_H_
