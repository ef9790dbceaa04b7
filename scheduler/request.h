// A request as the engine sees it, and the events that the engine emits for it. Both hold token ids only; text is the
// server's business. Plain data, moved between threads by value.
#ifndef BERTH_SCHEDULER_REQUEST_H_
#define BERTH_SCHEDULER_REQUEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cache/snapshot.h"
#include "models/step.h"
#include "models/token_constraint.h"
#include "models/token_rules.h"

namespace berth {

inline constexpr int64_t kMaxDraftTokens = 16;

// Chosen by the server, unique in the process's life. Clients' request ids are text and stay in the server.
using RequestKey = uint64_t;

// kUnread: the client left too much unread, or for too long.
enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kDeadline, kUnread, kError };
// "stop", "length", "cancelled", "deadline", "unread", "error"
absl::string_view FinishReasonName(FinishReason reason);

struct OutputLogprobs {
  float logprob = 0;  // of the chosen token
  std::vector<TokenLogprob> top;
};

// The logprobs of a prompt: for each of its tokens but the first, one entry of its own and then those of the likeliest
// tokens in its place, likeliest first. Entries that there are too few tokens for are NaN.
struct PromptLogprobs {
  int64_t entries_per_token = 0;
  std::vector<TokenLogprob> entries;
};

// Which hidden states of a prompt make its embedding, after the final norm: the last token's, or the mean of all.
enum class Pooling : uint8_t { kNone, kLast, kMean };

// How far a request came before it was saved. Together with the request, it is all that is needed to resume with the
// same tokens.
struct Progress {
  std::vector<int32_t> tokens;                // of its output
  std::vector<OutputLogprobs> logprobs;       // one per token, if the request asks for them
  FinishReason finish = FinishReason::kNone;  // kStop, kLength: it had ended
  int32_t stop_token = -1;                    // as in TokenEvent
  CacheSnapshot snapshot;                     // of the first tokens of prompt and output; empty: compute them again
};

// When a beam search ends, once it has num_beams ended beams. In quotes: the value of transformers' early_stopping.
enum class EarlyStopping : uint8_t {
  kHeuristic,  // "false": when the likeliest beam, if it ended now, would be no better than the worst ended one
  kAtOnce,     // "true": at once
  kNever,      // "never": when no beam can become better, however long it gets
};

struct BeamParams {
  int64_t num_beams = 0;        // 0: no beam search; else at least 2
  double length_penalty = 1.0;  // an ended beam's score is the sum of its logprobs over its length to this power
  EarlyStopping early_stopping = EarlyStopping::kHeuristic;

  friend bool operator==(const BeamParams&, const BeamParams&) = default;
};

struct Request {
  RequestKey key = 0;
  std::vector<int32_t> prompt;  // at least one token; for an encoder-decoder model, what the decoder starts from
  std::vector<int32_t> encoder_tokens;  // at least one for an encoder-decoder model, none for another
  SamplingParams sampling;
  // At least one, but 0 for an embedding. prompt + max_tokens is within the engine's max_sequence_tokens.
  int64_t max_tokens = 0;
  int64_t min_tokens = 0;               // no stop token is chosen before these
  std::vector<int32_t> stop_token_ids;  // the model's end tokens included, unless the client ignores them
  std::vector<int32_t> forced_first;    // the first output token is one of these; empty: any
  std::vector<int32_t> forced_last;     // the same for the token that reaches max_tokens; wins over forced_first
  TokenRules rules;                     // tokens banned or biased by what came before
  // What each output may be, from its first token on; null: anything. Each output and beam follows a copy of it.
  //   - A token of forced_first comes before the constraint begins. forced_last has no effect.
  //   - An output ends with kStop when nothing but the end may follow, and with kLength when max_tokens cuts it.
  //   - It ends with an error, alone, when no token is left to choose. That is at a dead end of the constraint, or at a
  //     limit of its parser. It may also be before min_tokens, where nothing but the end may come.
  //   - Tokens that have to come next are appended without a step for each, unless the request asks for logprobs before
  //     the mask, or for beams. After the mask their logprob is 0.
  std::shared_ptr<const TokenConstraint> constraint;
  int64_t num_outputs = 1;  // output i is sampled with seed + i; a beam search returns its best ones
  BeamParams beams;         // with beams, `sampling` has its defaults, except for temperature and seed
  // The most draft tokens that one step checks; 0: none. They come from prompt lookup. Has no effect on a request that
  // samples, has penalties or asks for logprobs. The output is the same with and without.
  int64_t draft_tokens = 0;
  // The logprobs of each prompt token but the first, and of the n likeliest tokens in its place. -1: none. Only
  // positions that are computed have logprobs, so such a request uses no prefix of others. A resumed one has none.
  int32_t prompt_logprobs = -1;
  // Compute the prompt's embedding, and end with it. Such a request has no output: its max_tokens is 0. The mean takes
  // all positions, so it uses no prefix of others, as with prompt_logprobs. kNone: generate.
  Pooling pooling = Pooling::kNone;
  // The lengths of the prompt's beginnings that end with a message, ascending and below the prompt's length. Others are
  // likely to begin with the same messages. A hint: it changes what is kept for them, but no token.
  std::vector<int32_t> message_ends;
  bool share_prefix = true;     // false: neither looks for its prefix nor leaves one
  std::string cache_salt;       // its tenant: it shares prefixes with requests of the same salt only
  int64_t priority = 0;         // among its tenant's requests; higher goes first
  bool saved = false;           // hand it to the SaveSink when asked to, and when it ends
  int64_t autosave_tokens = 0;  // save it after this many output tokens, again and again; 0: never
  // Resume from here: emit these tokens again, as replayed ones, then continue. The scheduler moves the snapshot out
  // when it takes the request. Null: the request is new.
  std::shared_ptr<Progress> progress;
  absl::Time arrival;
  absl::Time deadline = absl::InfiniteFuture();

  // The number of sequences that it takes.
  int64_t num_sequences() const { return beams.num_beams > 0 ? beams.num_beams : num_outputs; }

  friend bool operator==(const Request&, const Request&) = default;
};

// Checks what would make a step fail for every request in it. INVALID_ARGUMENT names one of:
//   - an empty prompt, or a length over `max_sequence_tokens`;
//   - progress that is longer than the output may be;
//   - encoder tokens outside [1, max_encoder_tokens], or any where that is 0, because the model has no encoder;
//   - a token outside [0, vocab_size);
//   - outputs and beams that do not go together;
//   - what an embedding cannot be combined with.
absl::Status ValidateRequest(const Request& request, int64_t vocab_size, int64_t max_sequence_tokens,
                             int64_t max_encoder_tokens = 0);

// When things happened to a request. For the client's timings and the histograms.
struct RequestTimes {
  absl::Time arrival;
  absl::Time first_scheduled = absl::InfinitePast();  // InfinitePast: never
  absl::Time first_token = absl::InfinitePast();
  absl::Time finished = absl::InfinitePast();
  absl::Duration paused;  // after first_scheduled, in all: from each pause until it ran again
  int32_t num_preemptions = 0;
};

// A token of an output, its end, or both. A beam search emits all of its events at its end.
struct TokenEvent {
  RequestKey key = 0;
  int32_t output = 0;                   // its index among the request's outputs
  int32_t outputs_left = 0;             // when finish != kNone: outputs that continue; 0: the whole request ends
  int32_t token = RowResult::kNoToken;  // kNoToken: no token, only the end
  float logprob = 0;
  std::vector<TokenLogprob> top;
  PromptLogprobs prompt_logprobs;  // with the first token of a request that asks for them
  std::vector<float> embedding;    // with the end, kStop, of a request that asks for one; not normalised
  FinishReason finish = FinishReason::kNone;
  // The token that ended the output, in the event that has it in `token`. Replayed, its end comes in the next event,
  // which has it here too.
  int32_t stop_token = -1;
  absl::Status error;      // when finish == kError
  bool alone = false;      // when finish == kError: of this output only; other outputs of the request are not affected
  RequestTimes times;      // so far, of the output; unset if the event is not the engine's
  bool replayed = false;   // from the request's Progress, not from a step; no figure counts it
  int64_t num_cached = 0;  // prompt tokens that were in the cache already
};

// A save of a request has ended.
struct SaveEvent {
  RequestKey key = 0;
  int64_t num_tokens = 0;  // output tokens that are on the disk now; 0: the save had none, or failed
  bool last = false;       // no other save follows
  absl::Status error;      // of the save
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_REQUEST_H_
