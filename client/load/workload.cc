#include "client/load/workload.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace berth::cli {

Workload::Workload(Options options, const v1::GetModelInfoResponse& model)
    : options_(std::move(options)),
      max_sequence_tokens_(model.limits().max_sequence_tokens()),
      vocab_size_(model.vocab_size()) {
  for (int32_t id : model.eos_token_ids()) {
    if (id >= 0 && id < vocab_size_) end_tokens_.push_back(id);
  }
  std::sort(end_tokens_.begin(), end_tokens_.end());
  end_tokens_.erase(std::unique(end_tokens_.begin(), end_tokens_.end()), end_tokens_.end());
}

absl::StatusOr<Workload> Workload::Create(Options options, const v1::GetModelInfoResponse& model) {
  Workload workload(std::move(options), model);
  if (workload.vocab_size_ <= static_cast<int64_t>(workload.end_tokens_.size())) {
    return absl::FailedPreconditionError(absl::StrCat("the server reports a vocabulary of ", model.vocab_size(),
                                                      " tokens, ", workload.end_tokens_.size(), " of them end tokens"));
  }
  return workload;
}

bool Workload::Shorten(int64_t* prompt_tokens, int64_t* output_tokens) const {
  if (max_sequence_tokens_ < 2) return false;
  const int64_t prompt = std::min(*prompt_tokens, max_sequence_tokens_ - 1);
  const int64_t output = std::min(*output_tokens, max_sequence_tokens_ - std::max<int64_t>(prompt, 1));
  if (prompt == *prompt_tokens && output == *output_tokens) return false;
  *prompt_tokens = prompt;
  *output_tokens = output;
  return true;
}

void Workload::FillTokens(int64_t num_tokens, std::mt19937_64& random, v1::TokenIds* tokens) const {
  const int64_t num_choices = vocab_size_ - static_cast<int64_t>(end_tokens_.size());
  std::uniform_int_distribution<int64_t> choice(0, num_choices - 1);
  tokens->mutable_ids()->Reserve(static_cast<int>(num_tokens));
  for (int64_t i = 0; i < num_tokens; ++i) {
    int64_t id = choice(random);
    for (int32_t end_token : end_tokens_) {
      if (id >= end_token) ++id;  // skips it; ascending, so each is passed at most once
    }
    tokens->add_ids(static_cast<int32_t>(id));
  }
}

WorkItem Workload::Make(int64_t index) const {
  WorkItem item;
  item.reference = options_.num_distinct > 0 ? index % options_.num_distinct : index;
  std::seed_seq seed{options_.seed, options_.seed >> 32, static_cast<uint64_t>(item.reference),
                     static_cast<uint64_t>(item.reference) >> 32};
  std::mt19937_64 random(seed);
  item.prompt_tokens = options_.prompt_tokens.Sample(random);
  item.output_tokens = options_.output_tokens.Sample(random);
  if (!options_.prompts.empty()) item.prompt_tokens = -1;
  item.shortened = Shorten(&item.prompt_tokens, &item.output_tokens);

  if (options_.prompts.empty()) {
    FillTokens(item.prompt_tokens, random, item.request.mutable_token_ids());
  } else {
    item.request.set_prompt(options_.prompts[static_cast<size_t>(item.reference) % options_.prompts.size()]);
  }
  item.request.mutable_sampling()->set_temperature(static_cast<float>(options_.temperature));
  if (options_.temperature > 0) item.request.mutable_sampling()->set_seed(random());
  item.request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(item.output_tokens));
  item.request.mutable_stopping()->set_ignore_eos(true);
  return item;
}

}  // namespace berth::cli
