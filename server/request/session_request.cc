#include "server/request/session_request.h"

#include <cmath>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/request/field_checks.h"
#include "server/request/validation.h"

namespace berth {
namespace {

template <typename Ids>
std::vector<int32_t> ToVector(const Ids& ids) {
  return std::vector<int32_t>(ids.begin(), ids.end());
}

absl::Status CheckLogprobs(const Progress& progress, int64_t num_logprobs, int64_t vocab_size) {
  const size_t count = num_logprobs >= 0 ? progress.tokens.size() : 0;
  if (progress.logprobs.size() != count) {
    return Invalid("output_logprobs: ", progress.logprobs.size(), " entries; ", count, " are needed");
  }
  for (const OutputLogprobs& logprobs : progress.logprobs) {
    const int64_t num_top = static_cast<int64_t>(logprobs.top.size());
    if (absl::Status s = CheckCount("output_logprobs.top", num_top, num_logprobs); !s.ok()) return s;
    if (std::isnan(logprobs.logprob)) return Invalid("output_logprobs.logprob: nan is not a logprob");
    for (const TokenLogprob& top : logprobs.top) {
      if (absl::Status s = CheckToken("output_logprobs.top", top.token, vocab_size); !s.ok()) return s;
      if (std::isnan(top.logprob)) return Invalid("output_logprobs.top.logprob: nan is not a logprob");
    }
  }
  return absl::OkStatus();
}

// The request's scheduler checks how long the output is, and whether the cache is one of this request.
absl::Status CheckProgress(const v1::SessionFile& file, const Progress& progress, const ValidatedRequest& valid,
                           int64_t vocab_size) {
  Checks checks;
  checks.Add(CheckTokens("output", progress.tokens, vocab_size));
  checks.Add(CheckLogprobs(progress, valid.request.sampling.num_logprobs, vocab_size));
  checks.Add(CheckRange("finish", int64_t{file.finish()}, Closed(0, v1::FINISH_REASON_LENGTH)));
  checks.Add(CheckRange("stop_token", int64_t{file.stop_token()}, Closed(-1, static_cast<double>(vocab_size - 1))));
  return checks.status();
}

// The model's rules, beside what the request has of them.
absl::Status ReadRules(const v1::SessionFile& file, TokenRules* rules) {
  Checks checks;
  const double most = static_cast<double>(kMaxNgramSize);
  checks.Add(CheckRange("no_repeat_input_ngram_size", int64_t{file.no_repeat_input_ngram_size()}, Closed(0, most)));
  rules->no_repeat_input_ngram_size = file.no_repeat_input_ngram_size();
  rules->suppressed = ToVector(file.suppressed());
  rules->suppressed_first = ToVector(file.suppressed_first());
  for (const v1::SessionFile::Bias& bias : file.biases()) {
    if (bias.token_ids().empty()) checks.Add(Invalid("biases.token_ids: 0 tokens; at least 1 is needed"));
    if (!(bias.bias() < HUGE_VALF)) checks.Add(Invalid("biases.bias: ", bias.bias(), " is not a bias"));
    rules->biases.push_back({ToVector(bias.token_ids()), bias.bias()});
  }
  return checks.status();
}

absl::StatusOr<ValidatedRequest> ReadSession(const v1::SessionFile& file, const ValidationContext& context) {
  ValidationContext explicit_context = context;
  explicit_context.defaults = GenerationDefaults();  // the file says all; another default must not add to it
  explicit_context.is_resumed = true;
  absl::StatusOr<ValidatedRequest> valid = ValidateGenerate(file.request(), explicit_context, /*random_seed=*/0);
  if (!valid.ok()) return valid;
  const int64_t vocab_size = context.model->vocab_size;
  Checks checks;
  checks.Add(CheckTokens("stop_token_ids", file.stop_token_ids(), vocab_size));
  checks.Add(CheckTokens("forced_first", file.forced_first(), vocab_size));
  checks.Add(CheckTokens("forced_last", file.forced_last(), vocab_size));
  checks.Add(CheckTokens("text_context", file.text_context(), vocab_size));
  valid->request.stop_token_ids = ToVector(file.stop_token_ids());
  valid->request.forced_first = ToVector(file.forced_first());
  valid->request.forced_last = ToVector(file.forced_last());
  checks.Add(ReadRules(file, &valid->request.rules));
  valid->output.text.context = ToVector(file.text_context());
  if (valid->structure.has_value()) valid->structure->own_text = file.text_context().empty();
  Progress progress = ReadProgress(file);
  checks.Add(CheckProgress(file, progress, *valid, vocab_size));
  if (!checks.status().ok()) return checks.status();
  valid->request.progress = std::make_shared<Progress>(std::move(progress));
  return valid;
}

}  // namespace

v1::SessionFile MakeSessionFile(const ValidatedRequest& valid) {
  const Request& request = valid.request;
  v1::SessionFile file;
  *file.mutable_request() = *valid.session_request;
  file.mutable_stop_token_ids()->Assign(request.stop_token_ids.begin(), request.stop_token_ids.end());
  file.mutable_forced_first()->Assign(request.forced_first.begin(), request.forced_first.end());
  file.mutable_forced_last()->Assign(request.forced_last.begin(), request.forced_last.end());
  const TokenRules& rules = request.rules;
  file.set_no_repeat_input_ngram_size(rules.no_repeat_input_ngram_size);
  file.mutable_suppressed()->Assign(rules.suppressed.begin(), rules.suppressed.end());
  file.mutable_suppressed_first()->Assign(rules.suppressed_first.begin(), rules.suppressed_first.end());
  for (const TokenRules::Bias& bias : rules.biases) {
    v1::SessionFile::Bias* const added = file.add_biases();
    added->mutable_token_ids()->Assign(bias.tokens.begin(), bias.tokens.end());
    added->set_bias(bias.bias);
  }
  const std::vector<int32_t>& context = valid.output.text.context;
  file.mutable_text_context()->Assign(context.begin(), context.end());
  file.set_stop_token(-1);
  return file;
}

absl::StatusOr<ValidatedRequest> ResumeSession(SessionFileContent content, const ValidationContext& context) {
  absl::StatusOr<ValidatedRequest> valid = ReadSession(content.file, context);
  if (!valid.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("session_id: \"", content.file.request().session_id(),
                     "\" cannot be resumed by this server: ", valid.status().message()));
  }
  valid->request.progress->snapshot = std::move(content.snapshot);
  return valid;
}

absl::StatusOr<ValidatedRequest> ResumeSession(SessionFileContent content, const v1::ResumeSessionRequest& resume,
                                               const ValidationContext& context) {
  absl::StatusOr<ValidatedRequest> valid = ResumeSession(std::move(content), context);
  if (!valid.ok()) return valid;
  valid->request_id = resume.request_id();
  valid->output.skip_tokens = resume.received_tokens();
  if (resume.has_request_id()) {
    if (absl::Status s = CheckRequestId("request_id", valid->request_id); !s.ok()) return s;
  }
  if (valid->output.skip_tokens > valid->request.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("received_tokens: ", valid->output.skip_tokens,
                                                   " is over the request's max_tokens of ", valid->request.max_tokens));
  }
  return valid;
}

}  // namespace berth
