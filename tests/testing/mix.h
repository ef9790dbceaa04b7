// The hash of the fakes. Stateless.
#ifndef BERTH_TESTS_TESTING_MIX_H_
#define BERTH_TESTS_TESTING_MIX_H_

#include <cstdint>

namespace berth {

// splitmix64
inline uint64_t Mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace berth

#endif  // BERTH_TESTS_TESTING_MIX_H_
