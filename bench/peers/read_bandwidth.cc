// How fast this machine's threads together read memory: what bounds a decode step, which reads every weight once.
//
// read_bandwidth [threads] prints GB/s: the best of 8 passes over 1 GiB, far above any cache, split evenly. Each thread
// sums its part, in independent lanes so that additions do not wait for each other.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr size_t kWords = (size_t{1} << 30) / sizeof(uint64_t);
constexpr size_t kLanes = 64;
constexpr int kPasses = 8;

__attribute__((target_clones("arch=x86-64-v4", "avx2", "default"))) uint64_t Sum(const uint64_t* words, size_t count) {
  uint64_t lanes[kLanes] = {};
  for (size_t i = 0; i + kLanes <= count; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += words[i + lane];
  }
  uint64_t sum = 0;
  for (uint64_t lane : lanes) sum += lane;
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t num_threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : std::thread::hardware_concurrency();
  const std::vector<uint64_t> words(kWords, 1);
  const size_t part = kWords / num_threads;
  double best = 0;
  uint64_t total = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::vector<uint64_t> sums(num_threads);
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (size_t i = 0; i < num_threads; ++i) {
      threads.emplace_back([&, i] { sums[i] = Sum(words.data() + i * part, part); });
    }
    for (std::thread& thread : threads) thread.join();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(num_threads * part * sizeof(uint64_t)) / elapsed.count() / 1e9);
    for (uint64_t sum : sums) total += sum;
  }
  std::printf("%.1f\n", best);
  return total == 0;  // so that the sums are needed
}
