// Dense products of LLaMA's shapes, beside at::linear and beside plain reads of memory, in the same run. Reports GB/s
// of weights for few rows (decode), and GFLOP/s for many (prefill). Weights are taken in turn from more than the last
// cache holds. Run:
//   bazel run -c opt //bench:matmul_bench -- --threads=1
#include <ATen/Parallel.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>
#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "models/ops/cpu_kernels.h"
#include "models/ops/matmul/matmul.h"
#include "models/step/thread_pool.h"

namespace berth {
namespace {

// Threads of a run; --threads.
int num_threads = 2;

// Twice the last cache, where the system tells its size.
const int64_t copies_bytes = std::max<int64_t>(int64_t{128} << 20, 2 * sysconf(_SC_LEVEL3_CACHE_SIZE));

enum Kind { kFloat32, kBFloat16, kInt8, kInt4 };

at::ScalarType TypeOf(Kind kind) { return kind == kFloat32 ? at::kFloat : at::kBFloat16; }

DType StorageOf(Kind kind) {
  if (kind == kInt8) return DType::kInt8;
  return kind == kInt4 ? DType::kInt4 : DType::kFloat32;
}

ops::PackedMatrix Pack(const at::Tensor& weight, DType storage, Execution* execution) {
  PackedWeights packed(execution);
  return ops::PackedMatrix("weight", weight, storage, &packed);
}

// Args: 0 inputs, 1 outputs, 2 rows.
struct Shape {
  explicit Shape(const benchmark::State& state)
      : inputs(state.range(0)), outputs(state.range(1)), rows(state.range(2)) {}
  int64_t inputs, outputs, rows;
};

void Report(benchmark::State& state, const Shape& shape, int64_t weight_bytes) {
  const auto count = static_cast<double>(state.iterations());
  state.counters["GB/s"] =
      benchmark::Counter(count * static_cast<double>(weight_bytes) / 1e9, benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(
      count * 2 * static_cast<double>(shape.rows * shape.inputs * shape.outputs) / 1e9, benchmark::Counter::kIsRate);
}

void Berth(benchmark::State& state, Kind kind) {
  ThreadPool pool(num_threads);
  Execution execution = {.threads = &pool};
  const Shape shape(state);
  const at::Tensor weight = at::randn({shape.outputs, shape.inputs}).to(TypeOf(kind));
  std::vector<ops::PackedMatrix> copies = {Pack(weight, StorageOf(kind), &execution)};
  const int64_t bytes = copies[0].size_bytes();
  while (static_cast<int64_t>(copies.size()) * bytes < copies_bytes) {
    copies.push_back(Pack(weight, StorageOf(kind), &execution));
  }
  const at::Tensor x = at::randn({shape.rows, shape.inputs}).to(TypeOf(kind));
  size_t turn = 0;
  for (auto _ : state) benchmark::DoNotOptimize(ops::MatMul(x, copies[turn++ % copies.size()], {}, execution));
  Report(state, shape, bytes);
}

void ATen(benchmark::State& state, Kind kind) {
  at::set_num_threads(num_threads);
  const Shape shape(state);
  std::vector<at::Tensor> copies = {at::randn({shape.outputs, shape.inputs}).to(TypeOf(kind))};
  const auto bytes = static_cast<int64_t>(copies[0].nbytes());
  while (static_cast<int64_t>(copies.size()) * bytes < copies_bytes) copies.push_back(copies[0].clone());
  const at::Tensor x = at::randn({shape.rows, shape.inputs}).to(TypeOf(kind));
  size_t turn = 0;
  for (auto _ : state) benchmark::DoNotOptimize(at::linear(x, copies[turn++ % copies.size()]));
  Report(state, shape, bytes);
}

// What the threads read at most, from more than the last cache holds.
void ReadMemory(benchmark::State& state) {
  ThreadPool pool(num_threads);
  constexpr int64_t kChunk = int64_t{1} << 16;  // words
  const at::Tensor memory = at::randn({copies_bytes / 4});
  const auto* words = static_cast<const int32_t*>(memory.const_data_ptr());
  for (auto _ : state) {
    ShareItems(&pool, memory.numel(), kChunk, [&](int64_t begin, int64_t end, int /*thread*/) {
      int32_t sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = begin; i < end; ++i) sum += words[i];
      benchmark::DoNotOptimize(sum);
    });
  }
  state.counters["GB/s"] =
      benchmark::Counter(static_cast<double>(state.iterations() * copies_bytes) / 1e9, benchmark::Counter::kIsRate);
}
BENCHMARK(ReadMemory)->UseRealTime();

// What a thread multiplies at most, of registers alone: kChains times `product` in each round, which adds to %0 what %1
// makes with itself. There are more chains of sums than a core has under way, and they begin with different numbers. In
// assembly, as g++ 12 copies the sums of some instructions to the stack and back.
#define BERTH_MULTIPLY(name, instructions, Register, kChains, product)                         \
  __attribute__((target(instructions), noinline)) double name(int64_t rounds, int64_t first) { \
    Register sums[kChains];                                                                    \
    using Number = std::decay_t<decltype(sums[0][0])>;                                         \
    const Register factor = Register{} + Number{1};                                            \
    for (int i = 0; i < kChains; ++i) sums[i] = Register{} + static_cast<Number>(first + i);   \
    for (int64_t i = 0; i < rounds; ++i) {                                                     \
      _Pragma("GCC unroll 24") for (Register & sum : sums) {                                   \
        Register own = sum;                                                                    \
        asm(product : "+v"(own) : "v"(factor) : "xmm15");                                      \
        sum = own;                                                                             \
      }                                                                                        \
    }                                                                                          \
    for (int i = 1; i < kChains; ++i) sums[0] += sums[i];                                      \
    return static_cast<double>(sums[0][0]);                                                    \
  }
BERTH_MULTIPLY(Pairs16, "avx512f,avx512bf16", __m512, 24, "vdpbf16ps %1, %1, %0")
BERTH_MULTIPLY(Floats16, "avx512f", __m512, 24, "vfmadd231ps %1, %1, %0")
BERTH_MULTIPLY(Floats8, "avx2,fma", __m256, 12, "vfmadd231ps %1, %1, %0")
BERTH_MULTIPLY(Bytes64, "avx512f,avx512vnni", __m512i, 24, "vpdpbusd %1, %1, %0")
BERTH_MULTIPLY(Bytes32, "avx2,avxvnni", __m256i, 12, "%{vex%} vpdpbusd %1, %1, %0")
// Without dot products of bytes: pairs of 16 bits, and pairs of bytes whose sums have 16 bits.
BERTH_MULTIPLY(Halves32, "avx512bw", __m512i, 24, "vpmaddwd %1, %1, %%zmm15; vpaddd %%zmm15, %0, %0")
BERTH_MULTIPLY(Halves16, "avx2", __m256i, 12, "vpmaddwd %1, %1, %%ymm15; vpaddd %%ymm15, %0, %0")
BERTH_MULTIPLY(Nibbles64, "avx512bw", __m512i, 24, "vpmaddubsw %1, %1, %%zmm15; vpaddw %%zmm15, %0, %0")
BERTH_MULTIPLY(Nibbles32, "avx2", __m256i, 12, "vpmaddubsw %1, %1, %%ymm15; vpaddw %%ymm15, %0, %0")
#undef BERTH_MULTIPLY

// One of these, and how many operations a round of it has.
struct RegisterProduct {
  const ops::cpu::Kernels* needs;  // a set whose processors have the instruction
  double (*run)(int64_t rounds, int64_t first);
  int64_t operations;
};
// The widest of each kind first.
const std::vector<RegisterProduct> kFloats = {{&ops::cpu::avx512::kKernels, Floats16, int64_t{24} * 32},
                                              {&ops::cpu::avx2::kKernels, Floats8, int64_t{12} * 16}};
const std::vector<RegisterProduct> kPairs = {{&ops::cpu::avx512_bf16::kKernels, Pairs16, int64_t{24} * 64}};
const std::vector<RegisterProduct> kBytes = {{&ops::cpu::avx512_vnni::kKernels, Bytes64, int64_t{24} * 128},
                                             {&ops::cpu::avx512::kKernels, Halves32, int64_t{24} * 64},
                                             {&ops::cpu::avx2_vnni::kKernels, Bytes32, int64_t{12} * 64},
                                             {&ops::cpu::avx2::kKernels, Halves16, int64_t{12} * 32}};
const std::vector<RegisterProduct> kNibbles = {{&ops::cpu::avx512_vnni::kKernels, Bytes64, int64_t{24} * 128},
                                               {&ops::cpu::avx512::kKernels, Nibbles64, int64_t{24} * 128},
                                               {&ops::cpu::avx2_vnni::kKernels, Bytes32, int64_t{12} * 64},
                                               {&ops::cpu::avx2::kKernels, Nibbles32, int64_t{12} * 64}};

void MultiplyRegisters(benchmark::State& state, const std::vector<RegisterProduct>& kind) {
  const auto product = std::find_if(kind.begin(), kind.end(),
                                    [](const RegisterProduct& own) { return ops::cpu::IsSupported(*own.needs); });
  if (product == kind.end()) return state.SkipWithError("the processor lacks the instruction");
  ThreadPool pool(num_threads);
  constexpr int64_t kRounds = 1 << 16, kPieces = 64;
  for (auto _ : state) {
    ShareItems(&pool, kPieces, 1, [&](int64_t begin, int64_t end, int /*thread*/) {
      for (int64_t i = begin; i < end; ++i) benchmark::DoNotOptimize(product->run(kRounds, i));
    });
  }
  const double total = static_cast<double>(state.iterations() * kPieces * kRounds * product->operations);
  state.counters["GFLOP/s"] = benchmark::Counter(total / 1e9, benchmark::Counter::kIsRate);
}
BENCHMARK_CAPTURE(MultiplyRegisters, Floats, kFloats)->UseRealTime();
BENCHMARK_CAPTURE(MultiplyRegisters, Pairs, kPairs)->UseRealTime();
BENCHMARK_CAPTURE(MultiplyRegisters, Bytes, kBytes)->UseRealTime();
BENCHMARK_CAPTURE(MultiplyRegisters, Nibbles, kNibbles)->UseRealTime();

// Work of nothing, for which all threads come: without a pause between the calls, and after one so long that the
// workers sleep.
void HandOver(benchmark::State& state) {
  ThreadPool pool(num_threads);
  for (auto _ : state) {
    state.PauseTiming();
    if (state.range(0) > 0) std::this_thread::sleep_for(std::chrono::microseconds(state.range(0)));
    state.ResumeTiming();
    std::atomic<int> came = 0;
    pool.Run([&](int) {
      ++came;
      while (came < num_threads) __builtin_ia32_pause();
    });
  }
}
BENCHMARK(HandOver)->Arg(0)->Arg(1000)->UseRealTime();

// A product so small that it is nothing but the call, and one just large enough to be shared by the threads.
void CallAndFork(benchmark::State& state) {
  ThreadPool pool(num_threads);
  Execution execution = {.threads = &pool};
  const int64_t inputs = state.range(0);
  const ops::PackedMatrix weight = Pack(at::randn({inputs, inputs}), DType::kFloat32, &execution);
  const at::Tensor x = at::randn({1, inputs});
  for (auto _ : state) benchmark::DoNotOptimize(ops::MatMul(x, weight, {}, execution));
}
BENCHMARK(CallAndFork)->Arg(32)->Arg(160)->Arg(288)->UseRealTime();

#define BERTH_SHAPES                                                 \
  ArgNames({"in", "out", "rows"})                                    \
      ->ArgsProduct({{768}, {3072}, {1, 4, 8, 64, 512}})             \
      ->ArgsProduct({{2048}, {5632}, {1, 2, 4, 8, 16, 32, 64, 512}}) \
      ->ArgsProduct({{5632}, {2048}, {1, 8, 512}})                   \
      ->UseRealTime()
#define BERTH_KIND(kind) BENCHMARK_CAPTURE(Berth, kind, kind)->BERTH_SHAPES
BERTH_KIND(kFloat32);
BERTH_KIND(kBFloat16);
BERTH_KIND(kInt8);
BERTH_KIND(kInt4);
BENCHMARK_CAPTURE(ATen, kFloat32, kFloat32)->BERTH_SHAPES;
BENCHMARK_CAPTURE(ATen, kBFloat16, kBFloat16)->BERTH_SHAPES;

}  // namespace
}  // namespace berth

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc > 1 && std::sscanf(argv[1], "--threads=%d", &berth::num_threads) == 1) --argc;
  if (argc > 1) {
    std::fprintf(stderr, "unknown argument %s; its own is --threads=N, the first\n", argv[argc - 1]);
    return 2;
  }
  benchmark::RunSpecifiedBenchmarks();
}
