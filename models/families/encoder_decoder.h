// What the encoder-decoder families share: one embedding that the encoder, the decoder and the head may or may not have
// in common. Load time only.
#ifndef BERTH_MODELS_FAMILIES_ENCODER_DECODER_H_
#define BERTH_MODELS_FAMILIES_ENCODER_DECODER_H_

#include <cstdint>

#include "models/checkpoint/weight_loader.h"
#include "models/layers/encoder_decoder.h"

namespace berth {

// Reads `model`'s shared.weight, {encoder,decoder}.embed_tokens.weight and `root`'s lm_head.weight. If one of the last
// three is absent or equals the first, it shares the first: transformers ties them despite the configuration. The
// head's bias: [vocab_size], or undefined.
void LoadSharedEmbeddings(WeightLoader& root, WeightLoader& model, int64_t vocab_size, int64_t hidden,
                          const at::Tensor& head_bias, EncoderDecoderModel::Parts* parts);

}  // namespace berth

#endif  // BERTH_MODELS_FAMILIES_ENCODER_DECODER_H_
