#include "client/load/workload.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace berth::cli {
namespace {

// The tokens of History::kFront that change: after a few that stay, as the clock of a system prompt.
constexpr int64_t kFrontBegin = 16;
constexpr int64_t kFrontTokens = 8;

std::mt19937_64 Random(uint64_t seed, uint64_t stream) {
  std::seed_seq sequence{seed, seed >> 32, stream, stream >> 32};
  return std::mt19937_64(sequence);
}

void SetTokens(const std::vector<int32_t>& tokens, WorkItem* item) {
  item->prompt_tokens = static_cast<int64_t>(tokens.size());
  item->request.mutable_token_ids()->mutable_ids()->Assign(tokens.begin(), tokens.end());
}

}  // namespace

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

std::vector<absl::Duration> Workload::Arrivals() const {
  std::vector<absl::Duration> arrivals;
  for (const TraceEntry& entry : options_.trace) arrivals.push_back(entry.arrival);
  return arrivals;
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

void Workload::AddTokens(int64_t num_tokens, std::mt19937_64* random, std::vector<int32_t>* tokens) const {
  const int64_t num_choices = vocab_size_ - static_cast<int64_t>(end_tokens_.size());
  std::uniform_int_distribution<int64_t> choice(0, num_choices - 1);
  for (int64_t i = 0; i < num_tokens; ++i) {
    int64_t id = choice(*random);
    for (int32_t end_token : end_tokens_) {
      if (id >= end_token) ++id;  // skips it; ascending, so each is passed at most once
    }
    tokens->push_back(static_cast<int32_t>(id));
  }
}

void Workload::AddShared(const SharedTokens& shared, std::vector<int32_t>* tokens) const {
  // Another stream of numbers than the conversations'.
  std::mt19937_64 random = Random(~options_.seed, shared.id);
  AddTokens(shared.num_tokens, &random, tokens);
}

std::vector<SharedTokens> Workload::SharedOf(int64_t index, std::mt19937_64* random) const {
  if (!options_.trace.empty()) return options_.trace[index].shared;
  if (options_.prefix_tokens == 0) return {};
  const uint64_t prefix = std::uniform_int_distribution<int64_t>(0, options_.num_prefixes - 1)(*random);
  return {{.id = prefix, .num_tokens = options_.prefix_tokens}};
}

int64_t Workload::ReferenceOf(int64_t index) const {
  return options_.num_distinct > 0 ? index % options_.num_distinct : index;
}

WorkItem Workload::Item(int64_t output_tokens, std::mt19937_64* random) const {
  WorkItem item;
  item.output_tokens = output_tokens;
  item.request.mutable_sampling()->set_temperature(static_cast<float>(options_.temperature));
  if (options_.temperature > 0) item.request.mutable_sampling()->set_seed((*random)());
  item.request.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(output_tokens));
  item.request.mutable_stopping()->set_ignore_eos(true);
  return item;
}

WorkItem Workload::Make(int64_t index) const { return *Start(index).Next({}); }

Conversation::Conversation(const Workload* workload, int64_t index)
    : workload_(workload), index_(index), random_(Random(workload->options_.seed, workload->ReferenceOf(index))) {}

std::optional<WorkItem> Conversation::Next(absl::Span<const int32_t> answer) {
  const Workload::Options& options = workload_->options_;
  if (turn_ == 0) return First();
  if (turn_ >= options.num_turns) return std::nullopt;
  if (!std::exchange(side_was_last_, false)) answer_.assign(answer.begin(), answer.end());
  if (std::exchange(side_is_next_, false)) {
    side_was_last_ = true;
    return SideItem();
  }
  if (!Continue(answer_)) return std::nullopt;
  ++turn_;
  side_is_next_ = options.history == History::kSide;
  WorkItem item = workload_->Item(output_tokens_, &random_);
  SetTokens(history_, &item);
  return item;
}

WorkItem Conversation::First() {
  const Workload::Options& options = workload_->options_;
  turn_ = 1;
  side_is_next_ = options.history == History::kSide;
  const TraceEntry* const entry = options.trace.empty() ? nullptr : &options.trace[index_];
  const std::vector<SharedTokens> shared = workload_->SharedOf(index_, &random_);
  int64_t prompt_tokens =
      entry != nullptr ? entry->prompt_tokens : options.prefix_tokens + options.prompt_tokens.Sample(random_);
  int64_t output_tokens = entry != nullptr ? entry->output_tokens : options.output_tokens.Sample(random_);
  if (!options.prompts.empty()) prompt_tokens = -1;
  const bool shortened = workload_->Shorten(&prompt_tokens, &output_tokens);
  for (const SharedTokens& piece : shared) workload_->AddShared(piece, &history_);
  history_.resize(std::min<int64_t>(std::max<int64_t>(prompt_tokens, 0), history_.size()));
  workload_->AddTokens(prompt_tokens - static_cast<int64_t>(history_.size()), &random_, &history_);

  WorkItem item = workload_->Item(output_tokens, &random_);
  item.reference = workload_->ReferenceOf(index_);
  item.shortened = shortened;
  if (options.prompts.empty()) {
    SetTokens(history_, &item);
  } else {
    item.request.set_prompt(options.prompts[static_cast<size_t>(item.reference) % options.prompts.size()]);
  }
  return item;
}

bool Conversation::Continue(absl::Span<const int32_t> answer) {
  const Workload::Options& options = workload_->options_;
  if (options.history == History::kStrip) answer.remove_prefix(answer.size() / 2);
  history_.insert(history_.end(), answer.begin(), answer.end());
  workload_->AddTokens(options.turn_tokens.Sample(random_), &random_, &history_);
  if (options.history == History::kFront) {
    std::vector<int32_t> changed;
    workload_->AddTokens(kFrontTokens, &random_, &changed);
    const int64_t begin = std::min<int64_t>(kFrontBegin, history_.size());
    const int64_t count = std::min<int64_t>(kFrontTokens, history_.size() - begin);
    std::copy_n(changed.begin(), count, history_.begin() + begin);
  }
  output_tokens_ = options.output_tokens.Sample(random_);
  int64_t prompt_tokens = static_cast<int64_t>(history_.size());
  return !workload_->Shorten(&prompt_tokens, &output_tokens_);
}

WorkItem Conversation::SideItem() {
  const Workload::Options& options = workload_->options_;
  int64_t prompt_tokens = options.turn_tokens.Sample(random_);
  int64_t output_tokens = options.output_tokens.Sample(random_);
  const bool shortened = workload_->Shorten(&prompt_tokens, &output_tokens);
  std::vector<int32_t> tokens;
  workload_->AddTokens(prompt_tokens, &random_, &tokens);
  WorkItem item = workload_->Item(output_tokens, &random_);
  SetTokens(tokens, &item);
  item.shortened = shortened;
  return item;
}

}  // namespace berth::cli
