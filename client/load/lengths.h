// Distributions of prompt and output lengths, in tokens. A flag names them:
//   fixed:N                     always N
//   uniform:MIN:MAX             MIN to MAX, both included
//   lognormal:MEAN:SIGMA[:MAX]  MEAN of the length itself, SIGMA of its logarithm; rounded, at least 1, at most MAX
//   W*LENGTHS+W*LENGTHS...      one of these at random, by the weights W; "0.9*fixed:128+0.1*fixed:4000"
//
// Thread-compatible.
#ifndef BERTH_CLIENT_LOAD_LENGTHS_H_
#define BERTH_CLIENT_LOAD_LENGTHS_H_

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth::cli {

class LengthDistribution {
 public:
  LengthDistribution() = default;  // fixed:1
  static LengthDistribution Fixed(int64_t length);
  // INVALID_ARGUMENT naming what was expected. Lengths are at least 1.
  static absl::StatusOr<LengthDistribution> Parse(absl::string_view text);

  int64_t Sample(std::mt19937_64& random) const;

  // What Parse() reads.
  const std::string& text() const { return text_; }

 private:
  enum class Kind { kUniform, kLognormal };  // fixed is uniform:N:N
  static absl::StatusOr<LengthDistribution> ParseLognormal(absl::string_view mean, absl::string_view sigma);
  static absl::StatusOr<LengthDistribution> ParseMixture(absl::string_view text);

  Kind kind_ = Kind::kUniform;
  int64_t min_ = 1;
  int64_t max_ = 1;
  double mu_ = 0;  // mean and deviation of the logarithm
  double sigma_ = 0;
  std::vector<std::pair<double, LengthDistribution>> mixture_;  // by weight; empty: this is not a mixture
  std::string text_ = "fixed:1";
};

// For flags (flags/flag_value.h).
absl::Status ParseFlagValue(absl::string_view text, LengthDistribution* lengths);
std::string FormatFlagValue(const LengthDistribution& lengths);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_LENGTHS_H_
