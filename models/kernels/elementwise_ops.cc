#include "models/kernels/elementwise_ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "models/kernels/parallel.h"

// Compiled for each level of x86-64, one of which is chosen when the program starts.
#define BERTH_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))

namespace berth::ops {
namespace {

// exp(x), within 2 units in the last place, for |x| <= 87; as in cpu/kernels.inc.
[[gnu::always_inline]] inline float Exp(float x) {
  const float clamped = x > 87.0f ? 87.0f : (x < -87.0f ? -87.0f : x);
  const float n = std::floor(clamped * 1.44269504088896341f + 0.5f);
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return x == x ? p * power : x;
}

BERTH_CLONES void SigmoidRow(const float* x, float* out, int64_t columns) {
  for (int64_t i = 0; i < columns; ++i) out[i] = 1.0f / (1.0f + Exp(-x[i]));
}

BERTH_CLONES void SiluRow(const float* x, float* out, int64_t columns) {
  for (int64_t i = 0; i < columns; ++i) out[i] = x[i] / (1.0f + Exp(-x[i]));
}

BERTH_CLONES void GeluTanhRow(const float* x, float* out, int64_t columns) {
  for (int64_t i = 0; i < columns; ++i) {
    // 0.5 x (1 + tanh(u)) == x sigmoid(2 u)
    const float u = 0.7978845608028654f * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
    out[i] = x[i] / (1.0f + Exp(-2.0f * u));
  }
}

void GeluRow(const float* x, float* out, int64_t columns) {
  for (int64_t i = 0; i < columns; ++i) out[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678118654752f));
}

// bfloat16 goes through float32 and back, by ATen's copies, which are exact or round to nearest wherever they stand.
template <typename Function>
at::Tensor ByRow(const at::Tensor& x, const Function& function) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor out = at::empty({x.size(0), x.size(1)}, wide.options());
  const auto* from = static_cast<const float*>(RowsOf(wide));
  float* to = out.data_ptr<float>();
  Parallel(x.size(0), x.size(1) * 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      function(from + row * wide.stride(0), to + row * out.size(1), out.size(1));
    }
  });
  return out.to(x.scalar_type());
}

}  // namespace

at::Tensor Sigmoid(const at::Tensor& x) { return x.is_cpu() ? ByRow(x, SigmoidRow) : at::sigmoid(x); }
at::Tensor Silu(const at::Tensor& x) { return x.is_cpu() ? ByRow(x, SiluRow) : at::silu(x); }
at::Tensor Gelu(const at::Tensor& x) { return x.is_cpu() ? ByRow(x, GeluRow) : at::gelu(x, "none"); }
at::Tensor GeluTanh(const at::Tensor& x) { return x.is_cpu() ? ByRow(x, GeluTanhRow) : at::gelu(x, "tanh"); }

}  // namespace berth::ops
