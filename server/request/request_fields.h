// The fields of a GenerateRequest, each declared once: where the request keeps it, which values it takes, and what it
// is when it is absent. Two things follow from this table: reading and checking a request, and filling in the defaults
// of the request that a session file keeps. Functions; thread-safe.
//
// To add a request field:
//   1. Add it to proto/berth/v1/inference.proto. Its comment says what it does, its range and its default. berth-cli
//      then has a flag of that name, with the first sentences of the comment as help.
//   2. Add a line to VisitRequestFields, which binds it to a member of Request, SamplingParams or OutputOptions.
//   3. Use that member.
// Session files need no change: they keep the message. tests/server/request/request_fields_test.cc fails until 2 is
// done, checks the field's range, and sends it through a session file. A field that is more than one value (a list, an
// input) is read in validation.cc; name it in kFieldsReadByHand, and give the test a value.
#ifndef BERTH_SERVER_REQUEST_REQUEST_FIELDS_H_
#define BERTH_SERVER_REQUEST_REQUEST_FIELDS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "berth/v1/inference.pb.h"
#include "server/request/field_checks.h"
#include "server/request/validated_request.h"
#include "server/storage/session_id.h"

namespace berth {

inline constexpr absl::string_view kFieldsReadByHand[] = {
    "prompt",
    "chat",
    "token_ids",
    "add_special_tokens",
    "decoder_token_ids",
    "forced_bos_token_id",
    "sampling.logit_bias",
    "stopping.max_tokens",
    "stopping.stop",
    "stopping.stop_token_ids",
    "stopping.ignore_eos",
    "structure",
};

// In the column of values: every value of the type, or 0 and more, where a value above `most` means `most`.
struct AnyValue {};
struct Capped {
  int64_t most = 0;
};

// In the column of defaults: the member's value that means "absent". It may be outside the range.
template <typename T>
struct Unset {
  T value;
};
template <typename T>
Unset(T) -> Unset<T>;

// Calls `field(name, member, values, default)` for each field, in the order of reading: a range or default may use the
// members above it. The values are a Range, AnyValue, Capped, or a function that checks a text. `field.Has(name)` says
// whether to visit the fields of an optional message. `Out` is ValidatedRequest, const or not.
template <typename Out, typename Visitor>
void VisitRequestFields(const ValidationContext& context, uint64_t random_seed, Out* out, Visitor&& field) {
  const RequestLimits& limits = context.limits;
  const GenerationDefaults& model = context.defaults;
  const int64_t vocab_size = context.model->vocab_size;
  auto& request = out->request;
  auto& sampling = out->request.sampling;
  auto& beams = out->request.beams;
  auto& output = out->output;
  // clang-format off
  //    name                          member                            values                        default
  field("request_id",                 out->request_id,                  CheckRequestId,               Unset{""});
  field("skip_special_tokens",        output.text.skip_special_tokens,  AnyValue(),                   true);
  field("return_prompt_token_ids",    output.return_prompt_token_ids,   AnyValue(),                   false);
  field("share_prefix",               request.share_prefix,             AnyValue(),                   true);
  field("cache_salt",                 request.cache_salt,               CheckCacheSalt,               "");
  field("priority",                   request.priority,                Closed(-100, 100),             0);
  field("draft_tokens",               request.draft_tokens,             Closed(0, kMaxDraftTokens),   limits.default_draft_tokens);
  field("session_id",                 out->session_id,                  CheckSessionId,               Unset{""});
  field("autosave_tokens",            request.autosave_tokens,          AnyValue(),                   0);
  field("deliver_saved_only",         output.saved_only,                AnyValue(),                   false);

  field("sampling.temperature",       sampling.temperature,             Closed(0, 100),               model.temperature.value_or(1));
  field("sampling.top_k",             sampling.top_k,                   Capped{vocab_size},           model.top_k.value_or(0));
  field("sampling.top_p",             sampling.top_p,                   OpenBelow(0, 1),              model.top_p.value_or(1));
  field("sampling.min_p",             sampling.min_p,                   Closed(0, 1),                 model.min_p.value_or(0));
  field("sampling.repetition_penalty", sampling.repetition_penalty,     Closed(0.01, 100),            model.repetition_penalty.value_or(1));
  field("sampling.presence_penalty",  sampling.presence_penalty,        Closed(-2, 2),                0);
  field("sampling.frequency_penalty", sampling.frequency_penalty,       Closed(-2, 2),                0);
  field("sampling.no_repeat_ngram_size", request.rules.no_repeat_ngram_size, Closed(0, kMaxNgramSize),   model.rules.no_repeat_ngram_size);
  field("sampling.seed",              sampling.seed,                    AnyValue(),                   random_seed);
  field("logprobs",                   sampling.num_logprobs,            Closed(0, limits.max_logprobs), Unset{-1});
  field("prompt_logprobs",            request.prompt_logprobs,          Closed(0, limits.max_logprobs), Unset{-1});

  field("logprobs_after_mask",        sampling.logprobs_after_mask,     AnyValue(),                   false);

  field("stopping.min_tokens",        request.min_tokens,               AnyValue(),                   0);
  field("stopping.include_stop",      output.text.include_stop,         AnyValue(),                   false);

  field("n",                          output.num_returned,              Closed(1, limits.max_outputs), 1);
  field("best_of",                    output.num_generated,             Closed(output.num_returned, limits.max_outputs), output.num_returned);
  if (!field.Has("beam_search")) return;
  field("beam_search.num_beams",      beams.num_beams,                  Closed(2, std::min(limits.max_outputs, vocab_size / 2)), model.num_beams.value_or(0));
  field("beam_search.length_penalty", beams.length_penalty,             Closed(-10, 10),              model.length_penalty.value_or(1));
  field("beam_search.early_stopping", beams.early_stopping,             Closed(0, v1::EarlyStopping_MAX), model.early_stopping);
  // clang-format on
}

// Reads the table's fields of `in` into `out`, and checks them. `random_seed` is the seed of a request that has none.
// INVALID_ARGUMENT naming the first field with a wrong value.
absl::Status ReadRequestFields(const v1::GenerateRequest& in, const ValidationContext& context, uint64_t random_seed,
                               ValidatedRequest* out);

// Sets the absent fields of `message` that have a default to what was read into `valid`.
void FillInDefaults(const ValidatedRequest& valid, const ValidationContext& context, v1::GenerateRequest* message);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_REQUEST_FIELDS_H_
