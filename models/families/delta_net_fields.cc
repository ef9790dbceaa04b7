#include "models/families/delta_net_fields.h"

#include "models/families/transformer.h"

namespace berth {

GatedDeltaNetConfig ReadDeltaNet(ConfigReader& config, const GatedDeltaNetConfig& defaults) {
  GatedDeltaNetConfig c = defaults;
  c.k_heads = config.IntOr("linear_num_key_heads", defaults.k_heads, 1, kMaxHeads);
  c.v_heads = config.IntOr("linear_num_value_heads", defaults.v_heads, 1, kMaxHeads);
  c.key_dim = config.IntOr("linear_key_head_dim", defaults.key_dim, 1, kMaxDimension);
  c.value_dim = config.IntOr("linear_value_head_dim", defaults.value_dim, 1, kMaxDimension);
  c.kernel = config.IntOr("linear_conv_kernel_dim", 4, 2, 64);
  config.Require(c.v_heads % c.k_heads == 0, "linear_num_value_heads", "is not a multiple of linear_num_key_heads");
  config.Require(c.key_dim > 0, "linear_key_head_dim", "comes out as nothing");
  return c;
}

}  // namespace berth
