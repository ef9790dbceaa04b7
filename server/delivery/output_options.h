// How a request's tokens become messages. Plain data.
#ifndef BERTH_SERVER_DELIVERY_OUTPUT_OPTIONS_H_
#define BERTH_SERVER_DELIVERY_OUTPUT_OPTIONS_H_

#include <cstdint>

#include "server/delivery/text_codec.h"

namespace berth {

struct OutputOptions {
  TextStreamOptions text;
  bool logprobs = false;
  bool return_prompt_token_ids = false;
  int64_t skip_tokens = 0;      // the client has these first output tokens already; they are not sent again
  int64_t num_generated = 1;    // outputs that the engine gives
  int64_t num_returned = 1;     // the best of them, by mean logprob, if they are fewer
  bool sums_logprobs = false;   // report each output's cumulative_logprob
  bool saved_only = false;      // deliver what is saved only
  bool deliver_at_end = false;  // the engine reports all outputs when the last one has ended
  bool normalize = false;       // divide an embedding by its Euclidean norm

  friend bool operator==(const OutputOptions&, const OutputOptions&) = default;
};

}  // namespace berth

#endif  // BERTH_SERVER_DELIVERY_OUTPUT_OPTIONS_H_
