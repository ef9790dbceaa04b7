// mixtral and qwen3_moe: llama's layers with experts. Source: transformers' models/{mixtral,qwen3_moe}.
#include <algorithm>
#include <utility>

#include "models/families/family.h"
#include "models/families/transformer.h"
#include "models/layers/experts.h"

namespace berth {
namespace {

// The number of experts has two names in files of both.
RouterConfig ReadRouter(ConfigReader& config, int64_t default_top_k) {
  const char* const count = config.Has("num_experts") ? "num_experts" : "num_local_experts";
  RouterConfig router = {.num_experts = config.Int(count, 1, kMaxHeads), .renormalize = true};
  router.top_k = ReadTopK(config, default_top_k, router.num_experts);
  return router;
}

}  // namespace

std::unique_ptr<Model> BuildMixtral(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadLlamaLike(config, weights, 1e6, 1e-5);
  ReadOneWindow(config, 0, &c);
  const RouterConfig router = ReadRouter(config, 2);
  c.load_mlp = [&](WeightLoader& loader, const std::string& layer, int) {
    const std::string prefix = layer + "block_sparse_moe.";
    auto matrices = LoadExperts(loader, prefix + "experts.", router.num_experts, c.hidden, c.intermediate,
                                {.gate = "w1", .up = "w3", .down = "w2"});
    return std::make_unique<Experts>(Router::Load(loader, prefix + "gate", c.hidden, router), std::move(matrices),
                                     Experts::Options{.activation = c.activation});
  };
  return BuildTransformer(config, weights, c);
}

std::unique_ptr<Model> BuildQwen3Moe(ConfigReader& config, WeightLoader& weights) {
  TransformerConfig c = ReadLlamaLike(config, weights, 1e4, 1e-6, /*may_lack_dense_mlp=*/true);
  c.qkv_bias = c.output_bias = config.BoolOr("attention_bias", false);
  c.qk_norm = QkNorm::kHead;
  // Here a window is for every layer.
  c.windows.assign(c.num_layers, ReadUsedWindow(config));
  RouterConfig router = ReadRouter(config, 8);
  router.renormalize = config.BoolOr("norm_topk_prob", false);
  const int64_t intermediate = config.IntOr("moe_intermediate_size", 768, 1, kMaxDimension);
  const std::vector<bool> sparse = ReadSparseLayers(config, c.num_layers);
  if (std::find(sparse.begin(), sparse.end(), false) != sparse.end()) RequireIntermediate(config, c);
  c.load_mlp = [&](WeightLoader& loader, const std::string& layer, int index) -> std::unique_ptr<FeedForward> {
    const std::string prefix = layer + "mlp.";
    if (!sparse[index]) return LoadDenseMlp(loader, prefix, c);
    return std::make_unique<Experts>(
        Router::Load(loader, prefix + "gate", c.hidden, router),
        LoadExperts(loader, prefix + "experts.", router.num_experts, c.hidden, intermediate),
        Experts::Options{.activation = c.activation});
  };
  return BuildTransformer(config, weights, c);
}

}  // namespace berth
