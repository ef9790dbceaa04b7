// Distributions of prompt and output lengths, in tokens. A flag names them:
//   fixed:N                     always N
//   uniform:MIN:MAX             MIN to MAX, both included
//   lognormal:MEAN:SIGMA[:MAX]  MEAN of the length itself, SIGMA of its logarithm; rounded, at least 1, at most MAX
//
// Thread-compatible.
#ifndef BERTH_CLIENT_LOAD_LENGTHS_H_
#define BERTH_CLIENT_LOAD_LENGTHS_H_

#include <cstdint>
#include <random>
#include <string>

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

  Kind kind_ = Kind::kUniform;
  int64_t min_ = 1;
  int64_t max_ = 1;
  double mu_ = 0;  // mean and deviation of the logarithm
  double sigma_ = 0;
  std::string text_ = "fixed:1";
};

// For flags (flags/flag_value.h).
absl::Status ParseFlagValue(absl::string_view text, LengthDistribution* lengths);
std::string FormatFlagValue(const LengthDistribution& lengths);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_LENGTHS_H_
