#include "models/families/encoder_decoder.h"

#include <ATen/ops/equal.h>

namespace berth {

void LoadSharedEmbeddings(WeightLoader& root, WeightLoader& model, int64_t vocab_size, int64_t hidden,
                          const at::Tensor& head_bias, EncoderDecoderModel::Parts* parts) {
  constexpr char kHead[] = "lm_head.weight";
  // A checkpoint may have any one of the tied matrices.
  at::Tensor shared;
  for (const char* name : {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}) {
    if (!model.Has("shared.weight") && !shared.defined()) shared = model.GetOptional(name, {vocab_size, hidden});
  }
  if (!model.Has("shared.weight") && !shared.defined()) shared = root.GetOptional(kHead, {vocab_size, hidden});
  if (!shared.defined()) shared = model.Get("shared.weight", {vocab_size, hidden});
  const auto own_or_shared = [&](WeightLoader& loader, const char* name) {
    const at::Tensor own = loader.GetOptional(name, {vocab_size, hidden});
    return !own.defined() || at::equal(own, shared) ? shared : own;
  };
  parts->encoder.embedding = own_or_shared(model, "encoder.embed_tokens.weight");
  parts->decoder.embedding = own_or_shared(model, "decoder.embed_tokens.weight");
  LinearWeights head = MatrixOf(root, {kHead}, own_or_shared(root, kHead));
  head.bias = head_bias;
  head.storage = HeadStorage(head.storage);
  parts->head.linear = head;
}

}  // namespace berth
