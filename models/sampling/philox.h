// Philox4x32-10, a counter-based random number generator: a pure function of key and counter, so that a draw depends
// on nothing but the request's seed and the token's position. Thread-safe. Torch-free.
// Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC11).
#ifndef BERTH_MODELS_SAMPLING_PHILOX_H_
#define BERTH_MODELS_SAMPLING_PHILOX_H_

#include <array>
#include <cstdint>

namespace berth {

inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// Uniform in [0, 1), a multiple of 2^-53; `position` is the absolute position of the token being chosen.
inline double UniformAt(uint64_t seed, int64_t position) {
  const auto p = static_cast<uint64_t>(position);
  const std::array<uint32_t, 4> bits = Philox4x32({static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), 0, 0},
                                                  {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>((uint64_t{bits[0]} << 32 | bits[1]) >> 11) * 0x1p-53;
}

}  // namespace berth

#endif  // BERTH_MODELS_SAMPLING_PHILOX_H_
