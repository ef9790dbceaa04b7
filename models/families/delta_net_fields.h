// The fields of config.json that describe gated delta nets. Pure functions.
#ifndef BERTH_MODELS_FAMILIES_DELTA_NET_FIELDS_H_
#define BERTH_MODELS_FAMILIES_DELTA_NET_FIELDS_H_

#include "models/checkpoint/json_config.h"
#include "models/layers/gated_delta_net.h"

namespace berth {

// linear_num_key_heads to linear_conv_kernel_dim, over `defaults`. Errors stick to `config`.
GatedDeltaNetConfig ReadDeltaNet(ConfigReader& config, const GatedDeltaNetConfig& defaults);

}  // namespace berth

#endif  // BERTH_MODELS_FAMILIES_DELTA_NET_FIELDS_H_
