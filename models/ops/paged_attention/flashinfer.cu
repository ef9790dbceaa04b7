// Causal attention by FlashInfer's kernel for tensor cores (version 0.6.9, attention/prefill.cuh), over the arena's
// blocks. It computes decode too, in tiles of 16 lanes. A build switch chooses it: see docs/cuda.md. Nothing of it has
// run on a GPU. What it does not cover, Attention<BFloat16> computes.
//
// Its kernel reads block tables through paged_kv_t, which has a specialisation here: it looks into Berth's own tables,
// so none is made for it. Keys that are divided leave results in float32, which FlashInfer's own launcher would round.
#include <cuda_bf16.h>

#include <flashinfer/page.cuh>

#include "models/ops/paged_attention/attention_kernel.cuh"
#include "models/ops/paged_attention/flashinfer.h"
#include "models/ops/paged_attention/flashinfer_plan.cuh"

namespace berth::ops::cuda {
namespace {

// Where a row's blocks begin among all pages: each row has room for the same number.
struct FirstPages {
  uint32_t shift;

  __host__ __device__ uint32_t operator[](uint32_t row) const { return row << shift; }
};

}  // namespace
}  // namespace berth::ops::cuda

// Positions count from the first block that a row still holds. REQUIRES: it has no sink blocks.
template <>
struct flashinfer::paged_kv_t<__nv_bfloat16, int64_t> {
  using DType = __nv_bfloat16;

  DType* k_data;
  DType* v_data;
  const berth::ops::Row* rows;
  const berth::ops::Blocks* blocks;
  uint_fastdiv page_size;
  uint32_t num_heads, head_dim, batch_size;
  berth::ops::cuda::FirstPages indptr;
  const int64_t* rope_pos_offset;  // null

  __device__ __forceinline__ uint32_t get_length(uint32_t r) const {
    const berth::ops::Row& row = rows[r];
    if (row.num_tokens == 0) return 0;
    return static_cast<uint32_t>(row.start + row.num_tokens) -
           static_cast<uint32_t>(blocks[r].expired_blocks) * static_cast<uint32_t>(page_size);
  }
  // Where a number of a key or value lies, counted in numbers. Pages from `last` on are not there.
  __device__ __forceinline__ size_t protective_get_kv_offset(uint32_t page, uint32_t head, uint32_t token,
                                                             uint32_t column, uint32_t last) const {
    if (page >= last) return 0;
    const berth::ops::Blocks& of_row = blocks[page >> indptr.shift];
    const uint32_t block = page & ((1u << indptr.shift) - 1);
    if (block >= static_cast<uint32_t>(of_row.num_offsets)) return 0;
    return static_cast<size_t>(of_row.offsets[block]) / sizeof(DType) +
           (static_cast<size_t>(head) * static_cast<uint32_t>(page_size) + token) * head_dim + column;
  }
};

#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variant_helper.cuh>

namespace berth::ops::cuda {
namespace {

// What FlashInfer's code reads, under its names.
template <typename Out>
struct Params {
  using DTypeQ = __nv_bfloat16;
  using DTypeKV = __nv_bfloat16;
  using DTypeO = Out;
  using IdType = int64_t;

  DTypeQ* q;
  flashinfer::paged_kv_t<DTypeKV, IdType> paged_kv;
  IdType* q_indptr;
  DTypeO* o;
  float* lse;
  flashinfer::uint_fastdiv group_size;
  uint32_t num_qo_heads, q_stride_n, q_stride_h;
  int32_t window_left;
  float sm_scale, softcap;
  const float* sinks;
  IdType *request_indices, *qo_tile_indices, *kv_tile_indices, *o_indptr;
  bool* block_valid_mask;
  IdType* kv_chunk_size_ptr;
  bool partition_kv;

  __device__ uint32_t get_qo_len(uint32_t row) const { return static_cast<uint32_t>(paged_kv.rows[row].num_tokens); }
  __device__ uint32_t get_kv_len(uint32_t row) const { return paged_kv.get_length(row); }
};

enum class Scores { kPlain, kCapped, kWithSink };

template <Scores kScores>
struct Variant : flashinfer::AttentionVariantBase {
  static constexpr bool use_softmax = true;

  uint32_t qo_len, kv_len, window_left;
  float sm_scale_log2, to_cap;

  template <typename P>
  __device__ Variant(const P& params, uint32_t row, uint8_t* /*shared*/) {
    qo_len = params.get_qo_len(row);
    kv_len = params.get_kv_len(row);
    window_left = params.window_left >= 0 ? params.window_left : kv_len;
    const bool is_capped = kScores == Scores::kCapped;
    sm_scale_log2 = flashinfer::math::log2e * (is_capped ? params.softcap : params.sm_scale);
    to_cap = is_capped ? params.sm_scale / params.softcap : 0.0f;
  }
  REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
    if constexpr (kScores == Scores::kCapped) return flashinfer::math::tanh(logits * to_cap);
    return logits;
  })
  REGISTER_LOGITS_MASK(params, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx,
                       { return kv_idx + qo_len + window_left >= kv_len + qo_idx; })
  REGISTER_M_D_UPDATE(params, kv_tile_idx, qo_head_idx, m, d, scale, {
    if constexpr (kScores == Scores::kWithSink) {
      // The first part has it.
      const bool has_sink = kv_tile_idx == 0 && qo_head_idx < params.num_qo_heads;
      const float sink = has_sink ? params.sinks[qo_head_idx] * flashinfer::math::log2e : m;
      const float most = fmaxf(sink, m);
      scale = flashinfer::math::ptx_exp2(m - most);
      d = (has_sink ? flashinfer::math::ptx_exp2(sink - most) : 0.0f) + d * scale;
      m = most;
    }
  })
  REGISTER_OUTPUT_TRANSFORM(params, output, batch_idx, qo_idx, qo_head_idx, m, d, scale, {
    const float inverse = m != -flashinfer::math::inf ? flashinfer::math::ptx_rcp(d) : 0.0f;
    return kScores == Scores::kWithSink ? output * scale * inverse : output * inverse;
  })
};

// How many times 16 keys a warp takes at once. FlashInfer chooses these numbers on an A100 and an H100, except that for
// 64 lanes it takes 8, which do not fit the registers.
constexpr uint32_t KeyTiles(uint32_t lanes, uint32_t dim) { return lanes == 16 && dim == 128 ? 2 : 4; }

template <uint32_t kLanes, uint32_t kDim, Scores kScores, typename Out>
using Traits =
    flashinfer::KernelTraits<flashinfer::MaskMode::kCausal, kLanes, flashinfer::get_num_mma_q(kLanes),
                             KeyTiles(kLanes, kDim), kDim / 16, kDim / 16, flashinfer::get_num_warps_q(kLanes),
                             flashinfer::get_num_warps_kv(kLanes), flashinfer::PosEncodingMode::kNone, __nv_bfloat16,
                             __nv_bfloat16, Out, float, int64_t, Variant<kScores>>;

template <uint32_t kLanes, uint32_t kDim, Scores kScores, typename Out>
__global__ void __launch_bounds__(Traits<kLanes, kDim, kScores, Out>::NUM_THREADS)
    FlashInferKernel(const __grid_constant__ Params<Out> params) {
  using KernelTraits = Traits<kLanes, kDim, kScores, Out>;
  flashinfer::BatchPrefillWithPagedKVCacheDevice<KernelTraits>(
      params, reinterpret_cast<typename KernelTraits::SharedStorage&>(shared_memory));
}

// One launch of items.
struct Items {
  FlashInferShape shape;
  FlashInferPlan plan;
  float *values, *scales;  // the results of divided keys: [rows, parts, q_heads, dim] and [rows, parts, q_heads]
};

template <typename Out>
Params<Out> ParamsOf(const AttentionArgs& a, const LaunchParams& launch, const Items& items, uint32_t page_shift,
                     void* out) {
  const FlashInferPlan& plan = items.plan;
  Params<Out> p = {};
  p.q = static_cast<__nv_bfloat16*>(const_cast<void*>(a.query));
  p.paged_kv.k_data = reinterpret_cast<__nv_bfloat16*>(a.kv.arena + a.kv.key.offset);
  p.paged_kv.v_data = reinterpret_cast<__nv_bfloat16*>(a.kv.arena + a.kv.value.offset);
  p.paged_kv.rows = a.rows;
  p.paged_kv.blocks = a.kv.blocks;
  p.paged_kv.page_size = flashinfer::uint_fastdiv(static_cast<uint32_t>(a.kv.block_tokens));
  p.paged_kv.num_heads = static_cast<uint32_t>(a.kv.kv_heads);
  p.paged_kv.head_dim = static_cast<uint32_t>(a.kv.key.dim);
  p.paged_kv.batch_size = static_cast<uint32_t>(launch.num_rows);
  p.paged_kv.indptr.shift = page_shift;
  p.q_indptr = plan.first_tokens;
  p.o = static_cast<Out*>(out);
  p.lse = items.scales;
  p.group_size = flashinfer::uint_fastdiv(static_cast<uint32_t>(items.shape.group));
  p.num_qo_heads = static_cast<uint32_t>(a.q_heads);
  p.q_stride_n = static_cast<uint32_t>(a.query_stride);
  p.q_stride_h = static_cast<uint32_t>(a.kv.key.dim);
  p.window_left = a.window > 0 ? static_cast<int32_t>(a.window - 1) : -1;
  p.sm_scale = a.scale;
  p.softcap = a.softcap;
  p.sinks = a.sinks;
  p.request_indices = plan.rows;
  p.qo_tile_indices = plan.tiles;
  p.kv_tile_indices = plan.parts;
  p.o_indptr = plan.first_results;
  p.block_valid_mask = plan.is_item;
  p.kv_chunk_size_ptr = plan.part_keys;
  p.partition_kv = items.shape.is_divided();
  return p;
}

template <uint32_t kLanes, uint32_t kDim, Scores kScores, typename Out>
int LaunchItems(const Params<Out>& params, const Items& items, const LaunchParams& launch) {
  using KernelTraits = Traits<kLanes, kDim, kScores, Out>;
  static_assert(!KernelTraits::IsInvalid());
  return LaunchBlocks(FlashInferKernel<kLanes, kDim, kScores, Out>,
                      Grid(items.shape.items(), 1, params.paged_kv.num_heads),
                      dim3(kWarp, KernelTraits::NUM_WARPS_Q, KernelTraits::NUM_WARPS_KV),
                      sizeof(typename KernelTraits::SharedStorage), launch.stream, params);
}

// Merges the results of the parts of each row's token. REQUIRES: it is the packed token with the row's number.
template <uint32_t kDim>
int MergeParts(const AttentionArgs& a, const Items& items, const LaunchParams& launch) {
  constexpr int64_t kBlocks = 1024;
  constexpr uint32_t kVector = 4, kX = kDim / kVector, kY = 128 / kX, kStages = 4;
  constexpr int64_t kBytes = kStages * kY * kDim * sizeof(float) + 128 * sizeof(float);
  const int64_t results = items.shape.num_tiles * a.q_heads;
  return LaunchBlocks(
      flashinfer::PersistentVariableLengthMergeStatesKernel<kVector, kX, kY, kStages, float, __nv_bfloat16, int64_t>,
      Grid(results < kBlocks ? results : kBlocks), dim3(kX, kY), kBytes, launch.stream, items.values, items.scales,
      items.plan.first_results, static_cast<__nv_bfloat16*>(a.out), static_cast<float*>(nullptr),
      static_cast<uint32_t>(items.shape.num_tiles), static_cast<uint32_t*>(nullptr), static_cast<uint32_t>(a.q_heads));
}

template <uint32_t kDim, Scores kScores>
int RunItems(const AttentionArgs& a, const Items& items, uint32_t page_shift, const LaunchParams& launch) {
  const FlashInferShape& shape = items.shape;
  int result = Launch(FlashInferPlanKernel, Grid(1), kPlanThreads, 0, launch.stream, a, shape, items.plan,
                      static_cast<int>(shape.items_of_tile()));
  if (result != kLaunched) return result;
  if (shape.is_divided()) {
    const Params<float> params = ParamsOf<float>(a, launch, items, page_shift, items.values);
    result = LaunchItems<16, kDim, kScores>(params, items, launch);
    return result == kLaunched ? MergeParts<kDim>(a, items, launch) : result;
  }
  const Params<__nv_bfloat16> params = ParamsOf<__nv_bfloat16>(a, launch, items, page_shift, a.out);
  if (shape.tile_lanes == 16) return LaunchItems<16, kDim, kScores>(params, items, launch);
  if (shape.tile_lanes == 64) return LaunchItems<64, kDim, kScores>(params, items, launch);
  return LaunchItems<128, kDim, kScores>(params, items, launch);
}

template <uint32_t kDim>
int RunDim(const AttentionArgs& a, const Items& items, uint32_t page_shift, const LaunchParams& launch) {
  if (a.softcap > 0) return RunItems<kDim, Scores::kCapped>(a, items, page_shift, launch);
  if (a.sinks != nullptr) return RunItems<kDim, Scores::kWithSink>(a, items, page_shift, launch);
  return RunItems<kDim, Scores::kPlain>(a, items, page_shift, launch);
}

// log2 of the pages that a row has room for; -1: FlashInfer's 32 bits are too few for all rows' positions.
int PageShift(const AttentionArgs& a, const LaunchParams& launch) {
  constexpr int64_t kMost = int64_t{1} << 31;
  for (int shift = 0; (launch.num_rows << shift) * a.kv.block_tokens < kMost; ++shift) {
    if ((a.kv.block_tokens << shift) > launch.max_position) return shift;
  }
  return -1;
}

bool IsCovered(const AttentionArgs& a, const LaunchParams& launch) {
  const int64_t dim = a.kv.key.dim, group = a.q_heads / a.kv.kv_heads;
  if (a.kv.storage != DType::kBFloat16 || a.kv.value.dim != dim || (dim != 64 && dim != 128)) return false;
  if (a.recent_tokens > 0 || a.sink_tokens > 0 || a.chunk > 0 || a.bias != nullptr) return false;
  if (a.sinks != nullptr && a.softcap > 0) return false;
  // Rows with drafts whose keys are divided, and heads that do not fit a tile.
  if (launch.split.num_splits > 0 && (launch.split.tile_tokens > 1 || group > 16)) return false;
  if (launch.num_tokens * a.query_stride >= int64_t{1} << 32 || launch.max_position >= int64_t{1} << 24) return false;
  return AreAligned<BFloat16>(a.query, a.query_stride) && AreAligned<BFloat16>(a.out, dim) &&
         IsAligned<BFloat16>(a.kv, a.kv.key) && IsAligned<BFloat16>(a.kv, a.kv.value) && PageShift(a, launch) >= 0;
}

// Parts of the caller's memory, one after the other.
struct Memory {
  uintptr_t at;

  template <typename T>
  T* Take(int64_t count) {
    at = (at + 15) / 16 * 16;
    T* const taken = reinterpret_cast<T*>(at);
    at += static_cast<uintptr_t>(count) * sizeof(T);
    return taken;
  }
};

Items LayOut(const AttentionArgs& a, const FlashInferShape& shape, Memory* memory) {
  Items items = {};
  items.shape = shape;
  FlashInferPlan& plan = items.plan;
  for (int64_t** const array : {&plan.rows, &plan.tiles, &plan.parts}) *array = memory->Take<int64_t>(shape.items());
  plan.is_item = memory->Take<bool>(shape.items());
  plan.first_tokens = memory->Take<int64_t>(shape.num_rows);
  plan.first_results = memory->Take<int64_t>(shape.num_rows + 1);
  plan.part_keys = memory->Take<int64_t>(1);
  if (!shape.is_divided()) return items;
  const int64_t results = shape.items() * a.q_heads;
  items.values = memory->Take<float>(results * a.kv.value.dim);
  items.scales = memory->Take<float>(results);
  return items;
}

// The step's rows whose keys are divided, and the others.
struct Launches {
  Items divided = {}, whole = {};

  Launches(const AttentionArgs& a, const LaunchParams& launch, Memory* memory) {
    const SplitKv& split = launch.split;
    FlashInferShape shape = {};
    shape.group = a.q_heads / a.kv.kv_heads;
    shape.num_rows = launch.num_rows;
    shape.parts = 1;
    if (split.num_splits > 0) {
      const int64_t most = kSplitBlocks / (split.num_tiles * a.kv.kv_heads);
      shape.parts = split.num_splits < most ? split.num_splits : most;
    }
    if (shape.is_divided()) {
      shape.tile_lanes = 16;
      shape.num_tiles = split.num_tiles;
      divided = LayOut(a, shape, memory);
      shape.first_tile = split.num_tiles;
    }
    shape.parts = 1;
    const int64_t lanes = launch.longest_row * shape.group;
    shape.tile_lanes = lanes <= 16 ? 16 : lanes <= 64 ? 64 : 128;
    shape.num_tiles = launch.num_tiles - shape.first_tile;
    whole = LayOut(a, shape, memory);
  }
};

int Run(const AttentionArgs& a, const LaunchParams& launch) {
  Memory memory = {reinterpret_cast<uintptr_t>(a.scratch)};
  const Launches launches(a, launch, &memory);
  const auto page_shift = static_cast<uint32_t>(PageShift(a, launch));
  for (const Items& items : {launches.divided, launches.whole}) {
    if (items.shape.num_tiles == 0) continue;
    const int result =
        a.kv.key.dim == 64 ? RunDim<64>(a, items, page_shift, launch) : RunDim<128>(a, items, page_shift, launch);
    if (result != kLaunched) return result;
  }
  return kLaunched;
}

}  // namespace

template <typename T>
int Attention(const AttentionArgs& a, const LaunchParams& launch);  // cuda.cu

int64_t FlashInferScratchBytes(const AttentionArgs& a, const LaunchParams& launch) {
  if (!IsCovered(a, launch)) return 0;
  Memory memory = {};
  const Launches launches(a, launch, &memory);
  return static_cast<int64_t>(memory.at);
}

int FlashInferAttention(const AttentionArgs& a, const LaunchParams& launch) {
  return a.scratch != nullptr ? Run(a, launch) : Attention<BFloat16>(a, launch);
}

}  // namespace berth::ops::cuda
