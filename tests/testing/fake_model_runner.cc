#include "tests/testing/fake_model_runner.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/strings/str_cat.h"
#include "models/token_constraint.h"
#include "scheduler/output/beam_search.h"
#include "tests/testing/mix.h"
#include "tests/testing/tiny_cache.h"

namespace berth {
namespace {

uint64_t Extend(uint64_t hash, int32_t token) { return Mix(hash ^ static_cast<uint32_t>(token)); }

// Null: any token may come.
bool Allows(const uint32_t* mask, int64_t token) {
  return mask == nullptr || (mask[token / 32] >> (token % 32) & 1) != 0;
}

// A greedy output has few different tokens, so that drafts are right now and then. kNoAllowedToken: none is left.
int32_t Choose(uint64_t hash, const SamplingParams& sampling, int64_t vocab_size, absl::Span<const int32_t> banned,
               absl::Span<const int32_t> forced, const uint32_t* mask) {
  if (!forced.empty()) {
    const int32_t token = forced[Mix(hash ^ sampling.seed) % forced.size()];
    return Allows(mask, token) ? token : RowResult::kNoAllowedToken;
  }
  const uint64_t likely =
      static_cast<uint64_t>(sampling.temperature == 0 ? std::min<int64_t>(3, vocab_size) : vocab_size);
  int64_t token = static_cast<int64_t>(Mix(hash ^ sampling.seed) % likely);
  for (int64_t i = 0; i < vocab_size; ++i, token = (token + 1) % vocab_size) {
    if (std::find(banned.begin(), banned.end(), token) == banned.end() && Allows(mask, token)) {
      return static_cast<int32_t>(token);
    }
  }
  return RowResult::kNoAllowedToken;
}

// Has nothing to do with Choose.
float LogprobAfter(uint64_t hash, int32_t token) {
  return -static_cast<float>(Mix(hash + static_cast<uint64_t>(token)) % 100000) / 10000;
}

// The likeliest of the tokens that may come after what `hash` is of.
std::vector<TokenLogprob> LikeliestAfter(uint64_t hash, int64_t count, int64_t vocab_size, const uint32_t* mask) {
  std::vector<TokenLogprob> top;
  for (int32_t token = 0; token < vocab_size; ++token) {
    if (Allows(mask, token)) top.push_back({token, LogprobAfter(hash, token)});
  }
  const auto likelier = [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  };
  count = std::min(count, static_cast<int64_t>(top.size()));
  std::partial_sort(top.begin(), top.begin() + count, top.end(), likelier);
  top.resize(count);
  return top;
}

// What a row's scored token has: its own logprob, and those of the likeliest.
void AddScores(uint64_t hash, int32_t token, int64_t count, int64_t vocab_size, std::vector<TokenLogprob>* scores) {
  scores->push_back({token, LogprobAfter(hash, token)});
  const std::vector<TokenLogprob> likeliest = LikeliestAfter(hash, count - 1, vocab_size, /*mask=*/nullptr);
  scores->insert(scores->end(), likeliest.begin(), likeliest.end());
}

// Adds the hidden state of the token that `hash` ends with.
void AddState(uint64_t hash, std::vector<double>* sum) {
  sum->resize(FakeModelRunner::kHiddenSize);
  for (double& number : *sum) {
    hash = Mix(hash + 1);
    number += static_cast<double>(hash % 1000003) / 1000 - 500;
  }
}

// A constraint leaves no end by force.
bool HasForcedLast(const Request& request) { return !request.forced_last.empty() && request.constraint == nullptr; }

uint64_t HashOfPrompt(const Request& request) {
  uint64_t hash = 0;
  for (int32_t token : request.encoder_tokens) hash = Extend(hash, token);
  for (int32_t token : request.prompt) hash = Extend(hash, token);
  return hash;
}

// The mask of the token that follows an output of the request; empty: any may. *complete: nothing but the end may.
std::vector<uint32_t> MaskAfter(const Request& request, absl::Span<const int32_t> output, int64_t vocab_size,
                                bool* complete) {
  *complete = false;
  if (!request.forced_first.empty()) {
    if (output.empty()) return {};
    output.remove_prefix(1);
  }
  if (request.constraint == nullptr) return {};
  std::vector<uint32_t> mask(MaskWords(vocab_size));
  const std::unique_ptr<TokenConstraint> constraint = request.constraint->Clone();
  bool good = true;
  for (int32_t token : output) good = good && constraint->Accept(token).ok();
  *complete = good && constraint->IsComplete();
  if (!good || !constraint->FillMasks({}, absl::MakeSpan(mask)).ok()) std::fill(mask.begin(), mask.end(), 0);
  return mask;
}

const uint32_t* DataOf(const std::vector<uint32_t>& mask) { return mask.empty() ? nullptr : mask.data(); }

std::vector<FakeModelRunner::Answer> BeamsOf(const Request& request, int64_t vocab_size) {
  const uint64_t prompt = HashOfPrompt(request);
  BeamSearch search(request);
  bool complete = false;
  for (int64_t length = 0; !search.over(); ++length) {
    std::vector<std::vector<TokenLogprob>> tops;
    std::vector<BeamSearch::Row> rows;
    for (const BeamSearch::Beam& beam : search.running()) {
      uint64_t hash = prompt;
      for (int32_t token : beam.tokens) hash = Extend(hash, token);
      const std::vector<uint32_t> mask = MaskAfter(request, beam.tokens, vocab_size, &complete);
      tops.push_back(LikeliestAfter(hash, BeamSearch::NumCandidates(request), vocab_size, DataOf(mask)));
      rows.emplace_back();
    }
    for (size_t b = 0; b < rows.size(); ++b) {
      rows[b].top = tops[b];
      if (length < request.min_tokens) rows[b].banned = request.stop_token_ids;
      if (length == 0) rows[b].forced = request.forced_first;
      if (length + 1 == request.max_tokens && HasForcedLast(request)) rows[b].forced = request.forced_last;
      // An ended beam that is kept for want of others leads nowhere.
      const std::vector<int32_t>& tokens = search.running()[b].tokens;
      const bool ended = !tokens.empty() &&
                         std::count(request.stop_token_ids.begin(), request.stop_token_ids.end(), tokens.back()) > 0;
      if (request.constraint != nullptr && ended) rows[b].top = {};
    }
    search.Step(rows);
  }
  std::vector<FakeModelRunner::Answer> answers;
  for (int64_t i = 0; i < request.num_outputs; ++i) {
    const std::vector<int32_t>& tokens = search.ended()[i].tokens;
    const bool stops =
        !tokens.empty() && std::count(request.stop_token_ids.begin(), request.stop_token_ids.end(), tokens.back()) > 0;
    MaskAfter(request, tokens, vocab_size, &complete);
    FinishReason finish = stops || complete ? FinishReason::kStop : FinishReason::kLength;
    if (request.constraint != nullptr && !search.ended()[i].ended) finish = FinishReason::kError;
    answers.push_back({tokens, finish});
  }
  return answers;
}

}  // namespace

FakeModelRunner::FakeModelRunner(Cache* cache, int64_t vocab_size) : cache_(cache) {
  info_.name = "fake";
  info_.model_type = "fake";
  info_.vocab_size = vocab_size;
  info_.hidden_size = kHiddenSize;
  info_.device = "cpu";
}

FakeModelRunner::Answer FakeModelRunner::AnswerTo(const Request& request, int64_t vocab_size) {
  uint64_t hash = HashOfPrompt(request);
  Answer answer;
  if (request.pooling != Pooling::kNone) answer.finish = FinishReason::kStop;
  while (answer.finish == FinishReason::kNone) {
    absl::Span<const int32_t> banned;
    if (static_cast<int64_t>(answer.tokens.size()) < request.min_tokens) banned = request.stop_token_ids;
    absl::Span<const int32_t> forced;
    if (answer.tokens.empty()) forced = request.forced_first;
    const bool last = static_cast<int64_t>(answer.tokens.size()) + 1 == request.max_tokens;
    if (last && HasForcedLast(request)) forced = request.forced_last;
    bool complete = false;
    const std::vector<uint32_t> mask = MaskAfter(request, answer.tokens, vocab_size, &complete);
    const int32_t token = Choose(hash, request.sampling, vocab_size, banned, forced, DataOf(mask));
    if (token < 0) {
      answer.finish = FinishReason::kError;
      break;
    }
    answer.tokens.push_back(token);
    hash = Extend(hash, token);
    if (std::count(request.stop_token_ids.begin(), request.stop_token_ids.end(), token) > 0) {
      answer.finish = FinishReason::kStop;
    } else if (MaskAfter(request, answer.tokens, vocab_size, &complete); complete) {
      const bool early = static_cast<int64_t>(answer.tokens.size()) < request.min_tokens;
      answer.finish = early ? FinishReason::kError : FinishReason::kStop;
    } else if (static_cast<int64_t>(answer.tokens.size()) == request.max_tokens) {
      answer.finish = FinishReason::kLength;
    }
  }
  return answer;
}

std::vector<FakeModelRunner::Answer> FakeModelRunner::AnswersTo(const Request& request, int64_t vocab_size) {
  Request one = request;
  std::sort(one.stop_token_ids.begin(), one.stop_token_ids.end());
  if (request.beams.num_beams > 0) return BeamsOf(one, vocab_size);
  std::vector<Answer> answers;
  for (int64_t i = 0; i < request.num_outputs; ++i) {
    one.sampling.seed = request.sampling.seed + static_cast<uint64_t>(i);
    answers.push_back(AnswerTo(one, vocab_size));
  }
  return answers;
}

std::vector<TokenLogprob> FakeModelRunner::ScoresOf(const Request& request, int64_t vocab_size) {
  std::vector<TokenLogprob> scores;
  if (request.prompt_logprobs < 0) return scores;
  uint64_t hash = 0;
  for (int32_t token : request.encoder_tokens) hash = Extend(hash, token);
  for (size_t i = 0; i + 1 < request.prompt.size(); ++i) {
    hash = Extend(hash, request.prompt[i]);
    AddScores(hash, request.prompt[i + 1], request.prompt_logprobs + 1, vocab_size, &scores);
  }
  return scores;
}

std::vector<float> FakeModelRunner::EmbeddingOf(const Request& request) {
  if (request.pooling == Pooling::kNone) return {};
  std::vector<double> sum;
  uint64_t hash = 0;
  for (int32_t token : request.prompt) {
    hash = Extend(hash, token);
    if (request.pooling == Pooling::kLast) sum.clear();
    AddState(hash, &sum);
  }
  const double count = request.pooling == Pooling::kMean ? static_cast<double>(request.prompt.size()) : 1;
  std::vector<float> embedding;
  for (const double number : sum) embedding.push_back(static_cast<float>(number / count));
  return embedding;
}

absl::Status FakeModelRunner::Run(const StepPlan& plan, StepResult* result) {
  if (on_run) {
    if (absl::Status status = on_run(plan); !status.ok()) return status;
  }
  if (absl::Status status = CheckPlan(plan); !status.ok()) {
    if (mismatch_.empty()) mismatch_ = std::string(status.message());
    return status;
  }
  result->rows.resize(plan.rows.size());
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    RowResult& out = result->rows[i];
    out = {};
    hashes_.assign(1, 0);
    std::string difference = Encode(row, &hashes_[0]);
    for (const absl::Span<const int32_t> tokens : {row.history, row.drafts}) {
      for (int32_t token : tokens) hashes_.push_back(Extend(hashes_.back(), token));
    }
    if (difference.empty()) difference = CheckVisible(row);
    Write(row);
    if (!difference.empty() && mismatch_.empty()) mismatch_ = difference;
    for (size_t i = 0; i < row.scored.size(); ++i) {
      const uint64_t hash = hashes_[row.start + row.first_scored + static_cast<int64_t>(i) + 1];
      AddScores(hash, row.scored[i], row.num_scores, info_.vocab_size, &out.scores);
    }
    out.pooled.assign(row.pooled.begin(), row.pooled.end());
    for (int64_t back = row.num_pooled; back > 0; --back) AddState(hashes_[hashes_.size() - back], &out.pooled);
    if (on_pooled_row && row.num_pooled > 0) on_pooled_row(row, &out);
    if (!row.sample) continue;
    const auto mask_of = [&](int64_t place) {
      return row.masks == nullptr ? nullptr : row.masks->Wait() + place * row.masks->num_words();
    };
    const auto choose = [&](uint64_t hash, int64_t place) {
      return difference.empty() ? Choose(hash, *row.sampling, info_.vocab_size, row.banned, row.forced, mask_of(place))
                                : RowResult::kBadLogits;
    };
    out.token = choose(hashes_.back(), row.num_drafts());
    for (int64_t draft = row.num_drafts(); draft > 0; --draft) {
      out.verified_tokens.push_back(choose(hashes_[hashes_.size() - 1 - draft], row.num_drafts() - draft));
    }
    if (row.sampling->num_logprobs >= 0 && out.token >= 0) out.logprob = LogprobAfter(hashes_.back(), out.token);
    if (row.sampling->num_logprobs > 0 && out.token >= 0) {
      const bool shows_all = !row.rank_allowed && !row.sampling->logprobs_after_mask;
      out.top = LikeliestAfter(hashes_.back(), row.sampling->num_logprobs, info_.vocab_size,
                               shows_all ? nullptr : mask_of(row.num_drafts()));
    }
    if (on_row) on_row(row, &out);
  }
  return absl::OkStatus();
}

absl::Status FakeModelRunner::CheckPlan(const StepPlan& plan) const {
  int64_t num_tokens = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    const int64_t n = row.num_tokens();
    const int64_t num_known = static_cast<int64_t>(row.tokens.size());
    const int64_t num_encoder = static_cast<int64_t>(row.encoder_tokens.size());
    num_tokens += n + num_encoder;
    const int64_t wanted = row.start == 0 ? row.lease->num_cross_tokens() : 0;
    if (num_encoder != 0 && (num_encoder != wanted || !cache_->plan().has_cross())) {
      return absl::InternalError(
          absl::StrCat("row ", i, " from ", row.start, " has ", num_encoder, " encoder tokens, not ", wanted));
    }
    const bool first_rows = static_cast<int64_t>(i) < plan.num_decode_rows;
    if (num_known == 0 || row.lease == nullptr || row.lease->num_tokens() != row.start + n ||
        static_cast<int64_t>(row.history.size()) != row.start + num_known ||
        row.tokens.data() != row.history.data() + row.start) {
      return absl::InternalError(absl::StrCat("row ", i, " of ", n, " tokens from ", row.start, ": its lease has ",
                                              row.lease->num_tokens(), ", its history ", row.history.size()));
    }
    const int64_t num_scored = static_cast<int64_t>(row.scored.size());
    if (num_scored > 0 && (row.first_scored < 0 || row.first_scored + num_scored > num_known ||
                           row.start + row.first_scored + num_scored >= row.prompt_length)) {
      return absl::InternalError(absl::StrCat("row ", i, " of ", n, " tokens from ", row.start, " scores ", num_scored,
                                              " from ", row.first_scored));
    }
    if (row.num_pooled < 0 || row.num_pooled > num_known || (row.num_pooled > 0 && row.sample)) {
      return absl::InternalError(
          absl::StrCat("row ", i, " of ", n, " tokens from ", row.start, " pools ", row.num_pooled));
    }
    if (n > num_known && (!row.sample || row.start + num_known != row.sequence_length)) {
      return absl::InternalError(absl::StrCat("row ", i, " has drafts that do not follow the sequence's last token"));
    }
    if (first_rows != (n == 1 && row.start >= row.prompt_length && row.sample)) {
      return absl::InternalError(absl::StrCat("row ", i, " is not a decode row, or not in the place of one"));
    }
  }
  if (num_tokens != plan.num_tokens) {
    return absl::InternalError(absl::StrCat("num_tokens is ", plan.num_tokens, ", the rows have ", num_tokens));
  }
  return absl::OkStatus();
}

uint64_t FakeModelRunner::LeftBy(const StepRow& row, int64_t length) const {
  const bool as_output = cache_->plan().share_prompts_only && length > row.prompt_length;
  return as_output ? Mix(hashes_[length] + static_cast<uint64_t>(row.prompt_length)) : hashes_[length];
}

std::string FakeModelRunner::CheckVisible(const StepRow& row) const {
  if (row.start == 0) return "";
  for (size_t l = 0; l < cache_->plan().layers.size(); ++l) {
    const LayerCacheSlot& slot = cache_->plan().layers[l];
    if (slot.state_group >= 0 && ReadState(row, slot) != LeftBy(row, row.start)) {
      return absl::StrCat("layer ", l, " has another's state at position ", row.start);
    }
    if (slot.kv_group < 0) continue;
    const KvSpec& kv = cache_->plan().groups[slot.kv_group].kv;
    const int64_t first = kv.FirstVisible(row.start);
    const BlockTable blocks = row.lease->blocks(slot.kv_group);
    if ((blocks.sink_blocks + blocks.expired_blocks) * cache_->plan().block_tokens > first &&
        blocks.expired_blocks > 0) {
      return absl::StrCat("layer ", l, " has lost position ", first);
    }
    for (int64_t t = 0; t < row.start; ++t) {
      if (t >= kv.sink_tokens && t < first) continue;
      if (*Cell(row, slot, t, /*value=*/false) != row.history[t] ||
          *Cell(row, slot, t, /*value=*/true) != static_cast<int32_t>(LeftBy(row, t + 1))) {
        return absl::StrCat("layer ", l, " has another's token at position ", t, " of ", row.start);
      }
    }
  }
  return "";
}

void FakeModelRunner::Write(const StepRow& row) {
  for (const LayerCacheSlot& slot : cache_->plan().layers) {
    if (slot.state_group >= 0) {
      WriteState(LeftBy(row, row.start + row.num_tokens()), State(row.lease->state_unit(slot.state_group), slot));
      for (const StateMark& mark : row.lease->marks()) WriteState(LeftBy(row, mark.position), State(mark.offset, slot));
    }
    if (slot.kv_group < 0) continue;
    for (int64_t t = row.start; t < row.start + row.num_tokens(); ++t) {
      const int64_t draft = t - static_cast<int64_t>(row.history.size());
      *Cell(row, slot, t, /*value=*/false) = draft < 0 ? row.history[t] : row.drafts[draft];
      *Cell(row, slot, t, /*value=*/true) = static_cast<int32_t>(LeftBy(row, t + 1));
    }
  }
}

std::string FakeModelRunner::Encode(const StepRow& row, uint64_t* hash) {
  for (size_t l = 0; l < cache_->plan().layers.size(); ++l) {
    const LayerCacheSlot& slot = cache_->plan().layers[l];
    if (slot.cross_group < 0) continue;
    *hash = 0;
    for (int64_t t = 0; t < row.lease->num_cross_tokens(); ++t) {
      int32_t* const key = CrossCell(row, slot, t, /*value=*/false);
      int32_t* const value = CrossCell(row, slot, t, /*value=*/true);
      if (!row.encoder_tokens.empty()) *key = row.encoder_tokens[t];
      *hash = Extend(*hash, *key);
      if (!row.encoder_tokens.empty()) *value = static_cast<int32_t>(*hash);
      if (*value != static_cast<int32_t>(*hash)) return absl::StrCat("layer ", l, " has another's encoder token ", t);
    }
  }
  return "";
}

int32_t* FakeModelRunner::CrossCell(const StepRow& row, const LayerCacheSlot& slot, int64_t position,
                                    bool value) const {
  const KvSpec& kv = cache_->plan().groups[slot.cross_group].kv;
  const int64_t block_tokens = cache_->plan().block_tokens;
  const int64_t unit = row.lease->blocks(slot.cross_group).offsets[position / block_tokens];
  const int64_t cell = (value ? slot.cross_value_offset : slot.cross_key_offset) +
                       position % block_tokens * (value ? kv.value_dim : kv.key_dim) * 4;
  return reinterpret_cast<int32_t*>(cache_->storage().base() + unit + cell);
}

int32_t* FakeModelRunner::Cell(const StepRow& row, const LayerCacheSlot& slot, int64_t position, bool value) const {
  const KvSpec& kv = cache_->plan().groups[slot.kv_group].kv;
  const int64_t block_tokens = cache_->plan().block_tokens;
  const BlockTable blocks = row.lease->blocks(slot.kv_group);
  const int64_t unit = blocks.At(position / block_tokens);
  const int64_t cell =
      (value ? slot.value_offset : slot.key_offset) + position % block_tokens * (value ? kv.value_dim : kv.key_dim) * 4;
  return reinterpret_cast<int32_t*>(cache_->storage().base() + unit + cell);
}

std::byte* FakeModelRunner::State(int64_t unit, const LayerCacheSlot& slot) const {
  return cache_->storage().base() + unit + slot.state_offsets[0];
}

uint64_t FakeModelRunner::ReadState(const StepRow& row, const LayerCacheSlot& slot) const {
  const std::byte* const state = State(row.lease->state_unit(slot.state_group), slot);
  if (cache_->plan().checkpoint_group() >= 0) return GetDigest(state);
  return *reinterpret_cast<const uint64_t*>(state);
}

void FakeModelRunner::WriteState(uint64_t digest, std::byte* state) const {
  if (cache_->plan().checkpoint_group() >= 0) return SetDigest(digest, state);
  *reinterpret_cast<uint64_t*>(state) = digest;
}

}  // namespace berth
