// Turns one request's tokens into messages: text, token ids, logprobs, usage, and how it ended. Detokenises
// incrementally and ends the text at a stop string. Thread-compatible; only the delivery thread uses it.
//
// Invariant: the texts of all messages together are what the codec makes of their token ids, up to a stop string or the
// token that ends the output.
#ifndef BERTH_SERVER_DELIVERY_OUTPUT_ASSEMBLER_H_
#define BERTH_SERVER_DELIVERY_OUTPUT_ASSEMBLER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "berth/v1/inference.pb.h"
#include "scheduler/request.h"
#include "server/delivery/output_options.h"
#include "server/delivery/text_codec.h"

namespace berth {

class OutputAssembler {
 public:
  // `codec` must outlive the assembler.
  OutputAssembler(const TextCodec* codec, OutputOptions options, int64_t num_prompt_tokens);

  // Adds the event's token to `message`. True: a stop string ended the text, and `message` is the last. Drop what the
  // request still computes.
  absl::StatusOr<bool> AddToken(const TokenEvent& event, v1::GenerateResponse* message);

  // Makes `message` the last: the text that was held back, and `reason`. Not after AddToken said true.
  // REQUIRES: reason is kStop, kLength, kCancelled or kError.
  absl::Status Finish(FinishReason reason, int32_t stop_token, v1::GenerateResponse* message);

  // How many of the prompt's tokens the cache held already.
  void set_num_cached_tokens(int64_t count) { num_cached_tokens_ = count; }

  int64_t num_tokens() const { return num_tokens_; }
  // Whether the next token is one that the client has already: it is taken in, but not put into a message.
  bool skips_next() const { return num_tokens_ < skip_tokens_; }

 private:
  // Appends the piece; true when it found a stop string.
  bool AddPiece(TextPiece piece, v1::GenerateResponse* message);
  void FillUsage(v1::Usage* usage) const;
  // The text that the event's token adds.
  absl::StatusOr<TextPiece> AddText(const TokenEvent& event);
  // Writes a token's own logprob and those of the likeliest in its place.
  // `first`: at the beginning of a text.
  void WriteLogprobs(const TokenLogprob& own, absl::Span<const TokenLogprob> likeliest, bool first,
                     v1::TokenLogprobs* out) const;
  void AddPromptLogprobs(const PromptLogprobs& logprobs, v1::GenerateResponse* message) const;

  const TextCodec* codec_;
  std::unique_ptr<TextStream> text_;
  bool logprobs_;
  bool include_stop_;
  bool skip_special_tokens_;
  bool at_text_start_;  // the next token is the first of a text of its own
  int64_t num_prompt_tokens_;
  int64_t skip_tokens_;
  int64_t num_cached_tokens_ = 0;
  int64_t num_tokens_ = 0;
};

// The event's embedding, divided by its Euclidean norm if `options` say so.
std::vector<float> MakeEmbedding(const TokenEvent& event, const OutputOptions& options);

// 0 for what never happened.
v1::Timings MakeTimings(const RequestTimes& times);

}  // namespace berth

#endif  // BERTH_SERVER_DELIVERY_OUTPUT_ASSEMBLER_H_
