#include "scheduler/output/output_committer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/output/output_constraint.h"
#include "scheduler/output/output_group.h"

namespace berth {
namespace {

// Why no token is left to choose.
absl::Status ConstraintError(const Sequence& sequence) {
  const std::string where = absl::StrCat("the constraint leaves no token at output token ", sequence.num_generated());
  if (const absl::Status& error = sequence.constraint.error(); !error.ok()) {
    const bool internal = error.code() == absl::StatusCode::kInternal;
    return absl::Status(internal ? error.code() : absl::StatusCode::kInvalidArgument,
                        absl::StrCat(where, ": ", error.message()));
  }
  if (sequence.num_generated() < sequence.request.min_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": only the end may come, which min_tokens of ", sequence.request.min_tokens, " bans"));
  }
  return absl::InvalidArgumentError(absl::StrCat(where, " that the model, logit_bias and stop tokens leave possible"));
}

bool IsBeam(const Sequence& sequence) { return sequence.group != nullptr && sequence.group->search != nullptr; }

// The error of a beam search that ended with `num_ended` outputs and none for `sequence`.
absl::Status TooFewOutputs(int64_t num_ended, const Sequence& sequence) {
  if (num_ended == 0) return ConstraintError(sequence);
  return absl::InvalidArgumentError(absl::StrCat("the constraint leaves the beam search ", num_ended,
                                                 " outputs; num_outputs is ", sequence.request.num_outputs));
}

// Whether the constraint of the request is complete after an output.
bool IsComplete(const Request& request, absl::Span<const int32_t> output) {
  OutputConstraint constraint(request, /*num_generated=*/0);
  if (request.constraint == nullptr) return false;
  for (int32_t token : output) constraint.Accept(token);
  return constraint.complete();
}

}  // namespace

void OutputCommitter::Commit(const StepRow& row, const RowResult& result, Sequence* sequence, absl::Time now,
                             std::vector<TokenEvent>* events) {
  std::vector<TokenLogprob>& scores = sequence->prompt_logprobs.entries;
  scores.insert(scores.end(), result.scores.begin(), result.scores.end());
  sequence->num_scored += static_cast<int64_t>(row.scored.size());
  if (row.num_pooled > 0) {
    sequence->pooled = result.pooled;
    sequence->num_pooled = row.start + static_cast<int64_t>(row.tokens.size());
    if (sequence->num_pooled == sequence->prompt_length) return FinishEmbedding(sequence, now, events);
  }
  if (!row.sample) {
    to_.sharing->Publish(sequence, /*at_end=*/false);
  } else if (IsBeam(*sequence)) {
    CommitBeam(row, result, sequence, now, events);
  } else {
    CommitTokens(result, sequence, now, events);
  }
}

void OutputCommitter::FinishEmbedding(Sequence* sequence, absl::Time now, std::vector<TokenEvent>* events) {
  const double count = sequence->request.pooling == Pooling::kMean ? static_cast<double>(sequence->num_pooled) : 1;
  std::vector<float> embedding;
  embedding.reserve(sequence->pooled.size());
  for (const double sum : sequence->pooled) embedding.push_back(static_cast<float>(sum / count));
  if (std::any_of(embedding.begin(), embedding.end(), [](float x) { return !std::isfinite(x); })) {
    sequence->lease.Withdraw(sequence->tokens);  // what it computed is not for others
    const absl::Status error = absl::InternalError("the model gave non-finite hidden states");
    return EndRequest(FinishReason::kError, error, now, sequence, events);
  }
  sequence->times.first_token = now;
  TokenEvent& event = events->emplace_back();
  event.embedding = std::move(embedding);
  Finish(FinishReason::kStop, absl::OkStatus(), now, sequence, &event);
}

void OutputCommitter::CommitTokens(const RowResult& result, Sequence* sequence, absl::Time now,
                                   std::vector<TokenEvent>* events) {
  // The row computed the newest token t and its drafts d0, d1, d2. The model's choice in the place of di is
  // verified_tokens[i]. Its choice after the last draft is result.token:
  //
  //   computed:          t    d0    d1    d2
  //   the model says:      v0    v1    v2    token
  //
  // Here v0 == d0 and v1 == d1, but v2 != d2: the output gets d0, d1 and v2, and the cache drops d2.
  const std::vector<int32_t>& drafts = sequence->drafts;
  const int64_t num_drafts = static_cast<int64_t>(drafts.size());
  const int64_t num_before = sequence->num_tokens();
  int64_t right = 0;  // drafts that the model chose too, up to one that ends the output
  int32_t token = RowResult::kNoToken;
  while (true) {
    token = right < num_drafts ? result.verified_tokens[right] : result.token;
    const bool stops = token < 0 || sequence->StopsAt(token);
    if (!stops) sequence->constraint.Accept(token);
    if (stops || right == num_drafts || token != drafts[right] || sequence->constraint.complete()) break;
    Append(token, result, sequence, now, &events->emplace_back());
    ++right;
  }
  if (right < num_drafts) sequence->lease.Crop(num_before + right);
  sequence->lease.SnapshotStates(/*keep=*/0);
  to_.counts->accepted_draft_tokens += right;
  sequence->drafts.clear();
  if (token == RowResult::kNoAllowedToken) return EndByConstraint(now, sequence, events);
  if (absl::Status error = CheckToken(token, *sequence); !error.ok()) {
    sequence->lease.Withdraw(sequence->tokens);  // what it computed is not for others
    EndRequest(FinishReason::kError, error, now, sequence, events);
    return;
  }
  to_.sharing->Publish(sequence, /*at_end=*/false);
  Append(token, result, sequence, now, &events->emplace_back());
}

int64_t OutputCommitter::MaxForced(const Sequence& sequence) {
  const Request& request = sequence.request;
  const bool wants_logprobs = request.sampling.num_logprobs >= 0;
  // The model's own logprob of a token takes a step.
  // And its rules may ban what the constraint forces, which only a step finds.
  const bool may_force = (!wants_logprobs || request.sampling.logprobs_after_mask) && request.rules.empty();
  if (!may_force || sequence.finished() || IsBeam(sequence) || !sequence.constraint.applies()) return 0;
  return request.max_tokens - sequence.num_generated();
}

void OutputCommitter::CommitForced(int64_t num_before, Sequence* sequence, absl::Time now,
                                   std::vector<TokenEvent>* events) {
  if (sequence->finished() || IsBeam(*sequence)) return;
  if (MaxForced(*sequence) > 0) AppendForced(sequence, now, events);
  if (!sequence->finished()) Rewind(num_before, sequence);
}

void OutputCommitter::AppendForced(Sequence* sequence, absl::Time now, std::vector<TokenEvent>* events) {
  const Request& request = sequence->request;
  RowResult result;
  for (int32_t token : sequence->constraint.forced()) {
    const bool stops = sequence->StopsAt(token);
    if (stops && sequence->num_generated() < request.min_tokens) return;  // the next step finds that nothing is left
    if (!stops) sequence->constraint.Accept(token);
    result.top.clear();
    if (request.sampling.num_logprobs > 0) result.top.push_back({.token = token, .logprob = 0});
    Append(token, result, sequence, now, &events->emplace_back());
    ++to_.counts->forced_tokens;
    if (sequence->finished()) return;
  }
}

absl::Status OutputCommitter::CheckToken(int32_t token, const Sequence& sequence) const {
  if (token >= 0) return absl::OkStatus();
  const absl::string_view what =
      token == RowResult::kBadLogits ? "the model gave non-finite logits" : "the model chose no token";
  return absl::InternalError(absl::StrCat(what, " at position ", sequence.num_tokens()));
}

void OutputCommitter::Append(int32_t token, const RowResult& result, Sequence* sequence, absl::Time now,
                             TokenEvent* event) {
  sequence->tokens.push_back(token);
  ++to_.counts->generation_tokens;
  event->key = sequence->request.key;
  event->output = sequence->output;
  event->token = token;
  event->logprob = result.logprob;
  event->top = result.top;
  if (sequence->request.saved && sequence->request.sampling.num_logprobs >= 0) {
    sequence->logprobs.push_back({.logprob = result.logprob, .top = result.top});
  }
  if (sequence->times.first_token == absl::InfinitePast()) {
    sequence->times.first_token = now;
    event->prompt_logprobs = std::move(sequence->prompt_logprobs);
  }
  event->times = sequence->times;
  event->num_cached = sequence->num_cached;
  if (sequence->StopsAt(token)) {
    event->stop_token = token;
    Finish(FinishReason::kStop, absl::OkStatus(), now, sequence, event);
  } else if (sequence->constraint.complete()) {
    const bool early = sequence->num_generated() < sequence->request.min_tokens;
    event->alone = early;
    Finish(early ? FinishReason::kError : FinishReason::kStop, early ? ConstraintError(*sequence) : absl::OkStatus(),
           now, sequence, event);
  } else if (sequence->num_generated() >= sequence->request.max_tokens) {
    Finish(FinishReason::kLength, absl::OkStatus(), now, sequence, event);
  } else {
    to_.saver->OnToken(sequence);
  }
}

void OutputCommitter::CommitBeam(const StepRow& row, const RowResult& result, Sequence* sequence, absl::Time now,
                                 std::vector<TokenEvent>* events) {
  // A search needs the likeliest tokens, whatever the row chose. A beam whose constraint leaves none has no candidates.
  const bool dead = result.token == RowResult::kNoAllowedToken;
  const int32_t token = result.top.empty() ? std::min(result.token, RowResult::kNoToken) : result.token;
  if (absl::Status error = CheckToken(token, *sequence); !error.ok() && !dead) {
    sequence->lease.Withdraw(sequence->tokens);
    EndRequest(FinishReason::kError, error, now, sequence, events);
    return;
  }
  to_.sharing->Publish(sequence, /*at_end=*/false);
  OutputGroup& group = *sequence->group;
  if (!group.Offer(row, result, *sequence)) return;
  to_.counts->generation_tokens += group.num_sequences();
  for (Sequence* member : group.members) {
    if (member->times.first_token == absl::InfinitePast()) member->times.first_token = now;
  }
  if (group.search->over()) {
    FinishBeams(sequence, now, events);
  } else {
    for (Sequence* member : group.members) Rewind(member->num_tokens() - 1, member);
  }
}

void OutputCommitter::FinishBeams(Sequence* sequence, absl::Time now, std::vector<TokenEvent>* events) {
  const std::vector<Sequence*> members = sequence->group->members;
  const int64_t num_outputs = sequence->request.num_outputs;
  for (int64_t i = 0; i < static_cast<int64_t>(members.size()); ++i) {
    Sequence* const member = members[i];
    const BeamSearch::Beam& beam = sequence->group->search->ended()[i];
    TokenEvent event{.key = member->request.key, .output = member->output};
    event.times = member->times;
    event.num_cached = member->num_cached;
    for (size_t t = 0; t < beam.tokens.size(); ++t) {
      event.token = beam.tokens[t];
      event.logprob = beam.logprobs[t];
      if (i < num_outputs && t + 1 < beam.tokens.size()) events->push_back(event);
    }
    const bool stops = member->StopsAt(event.token);
    if (stops) event.stop_token = event.token;
    if (!beam.ended && member->request.constraint != nullptr) {
      Finish(FinishReason::kError, TooFewOutputs(i, *member), now, member, &event);
    } else {
      const bool complete = stops || IsComplete(member->request, beam.tokens);
      Finish(complete ? FinishReason::kStop : FinishReason::kLength, absl::OkStatus(), now, member, &event);
    }
    event.outputs_left = static_cast<int32_t>(num_outputs - 1 - i);
    if (i < num_outputs) events->push_back(event);
  }
}

void OutputCommitter::Rewind(int64_t num_before, Sequence* sequence) {
  // Whether the sequence came past this many tokens.
  const auto passed = [&](int64_t length) { return num_before <= length && sequence->num_tokens() > length; };
  if (options_.rope_switch_length > 0 && passed(options_.rope_switch_length)) {
    sequence->lease.StopSharing();
    sequence->lease.Crop(0);
  }
  const int64_t every = options_.crop_every;
  if (every > 0 && passed(sequence->prompt_length + sequence->num_generated() / every * every - 1)) {
    // Depths of all sizes, within a block and beyond.
    const int64_t depth = 1 + sequence->num_generated() * 7 % 23;
    sequence->lease.Crop(std::max<int64_t>(0, sequence->num_computed() - depth));
  }
}

void OutputCommitter::End(FinishReason reason, const absl::Status& error, absl::Time now, Sequence* sequence,
                          std::vector<TokenEvent>* events) {
  TokenEvent event;
  Finish(reason, error, now, sequence, &event);
  if (sequence->request.beams.num_beams > 0) event.output = 0;  // there may be more beams than outputs
  const bool alone = sequence->output_cancelled != FinishReason::kNone;
  if (event.outputs_left == 0 || alone) events->push_back(std::move(event));
}

void OutputCommitter::EndByConstraint(absl::Time now, Sequence* sequence, std::vector<TokenEvent>* events) {
  TokenEvent& event = events->emplace_back();
  event.alone = true;
  Finish(FinishReason::kError, ConstraintError(*sequence), now, sequence, &event);
}

void OutputCommitter::EndRequest(FinishReason reason, const absl::Status& error, absl::Time now, Sequence* sequence,
                                 std::vector<TokenEvent>* events) {
  const std::vector<Sequence*> all = sequence->group == nullptr ? std::vector{sequence} : sequence->group->members;
  for (Sequence* member : all) End(reason, error, now, member, events);
}

void OutputCommitter::Finish(FinishReason reason, const absl::Status& error, absl::Time now, Sequence* sequence,
                             TokenEvent* event) {
  const bool complete = reason == FinishReason::kStop || reason == FinishReason::kLength;
  if (complete) to_.sharing->Publish(sequence, /*at_end=*/true);
  to_.swap->OnEnd(*sequence, complete, now);
  to_.saver->OnEnd(reason, sequence);
  sequence->times.finished = now;
  sequence->EndPause(now);
  event->num_cached = sequence->num_cached;
  event->key = sequence->request.key;
  event->finish = reason;
  event->error = error;
  event->times = sequence->times;
  event->output = sequence->output;
  if (sequence->group == nullptr) return;
  std::vector<Sequence*>& members = sequence->group->members;
  std::erase(members, sequence);
  event->outputs_left = static_cast<int32_t>(members.size());
}

}  // namespace berth
