#include "scheduler/output/output_group.h"

#include <utility>

namespace berth {

void OutputGroup::Create(Sequence* first) {
  auto group = std::make_shared<OutputGroup>();
  Request& request = first->request;
  group->members = {first};
  group->num_planned = request.num_sequences();
  if (request.beams.num_beams > 0) {
    request.sampling.temperature = 0;
    request.sampling.num_logprobs = static_cast<int32_t>(BeamSearch::NumCandidates(request));
    group->search = std::make_unique<BeamSearch>(request);
    group->offered_.resize(group->num_planned);
    group->rows_.resize(group->num_planned);
    group->leases_.resize(group->num_planned);
    group->constraints_.resize(group->num_planned);
  }
  first->group = std::move(group);
}

int64_t OutputGroup::longest() const {
  int64_t longest = 0;
  for (const Sequence* member : members) longest = std::max(longest, member->num_tokens());
  return longest;
}

std::vector<std::unique_ptr<Sequence>> OutputGroup::MakeOthers() {
  std::vector<std::unique_ptr<Sequence>> others;
  if (complete) return others;
  complete = true;
  const Sequence& first = *members[0];
  for (int64_t i = 1; i < num_planned; ++i) {
    Request request = first.request;
    request.prompt = first.tokens;
    request.prompt_logprobs = -1;  // the first has them
    request.sampling.logit_bias.resize(first.num_own_biases);
    if (search == nullptr) request.sampling.seed += static_cast<uint64_t>(i);
    auto other = std::make_unique<Sequence>(std::move(request));
    other->tokens.reserve(other->prompt_length + other->request.max_tokens);
    other->times = first.times;
    other->num_counted = first.prompt_length;
    other->turn = first.turn;
    other->num_cached = first.num_cached;
    other->group = first.group;
    other->output = static_cast<int32_t>(i);
    other->parked = true;
    members.push_back(other.get());
    others.push_back(std::move(other));
  }
  return others;
}

void OutputGroup::Fork(int64_t rope_switch_length) {
  Sequence& first = *members[0];
  const auto is_long = [&](const Sequence& member) {
    return rope_switch_length > 0 && member.num_tokens() > rope_switch_length;
  };
  // An encoder's blocks stay, whatever the decoder holds.
  first.lease.Crop(first.prompt_length - 1);
  for (Sequence* member : members) {
    if (member == &first) continue;
    member->lease = first.lease.Fork();
    member->encoded = first.encoded;
    member->hit = first.hit;
    member->parked = false;
    if (is_long(*member) == is_long(first)) continue;
    member->lease.StopSharing();
    member->lease.Crop(0);
  }
  forked = true;
}

void OutputGroup::Park() {
  for (Sequence* member : members) member->parked = member != members[0];
  num_offered_ = 0;
  forked = false;
}

bool OutputGroup::Offer(const StepRow& row, const RowResult& result, const Sequence& member) {
  Offered& offered = offered_[member.output];
  offered.top.assign(result.top.begin(), result.top.end());
  offered.banned.assign(row.banned.begin(), row.banned.end());
  offered.forced.assign(row.forced.begin(), row.forced.end());
  if (++num_offered_ < num_planned) return false;
  for (int64_t b = 0; b < num_planned; ++b) {
    rows_[b].top = offered_[b].top;
    rows_[b].banned = offered_[b].banned;
    rows_[b].forced = offered_[b].forced;
  }
  num_offered_ = 0;
  search->Step(rows_);
  if (!search->over()) FollowBeams();
  return true;
}

void OutputGroup::FollowBeams() {
  const std::vector<BeamSearch::Beam>& beams = search->running();
  // Each lease goes to one child, to the parent's own place if it may; the other children get forks of it. So does each
  // constraint.
  std::vector<int> heir(beams.size(), -1);
  for (const bool in_place : {true, false}) {
    for (int b = 0; b < static_cast<int>(beams.size()); ++b) {
      const int parent = beams[b].parent;
      if (in_place != (parent == b)) continue;
      if (heir[parent] < 0) {
        leases_[b] = std::move(members[parent]->lease);
        constraints_[b] = std::move(members[parent]->constraint);
        heir[parent] = b;
      } else {
        leases_[b] = leases_[heir[parent]].Fork();
        constraints_[b] = constraints_[heir[parent]].Clone();
      }
    }
  }
  for (size_t b = 0; b < beams.size(); ++b) {
    Sequence& member = *members[b];
    member.lease = std::move(leases_[b]);
    member.constraint = std::move(constraints_[b]);
    const int32_t token = beams[b].tokens.back();
    if (member.StopsAt(token)) {
      member.constraint.Close();  // what follows an ended beam never counts
    } else {
      member.constraint.Accept(token);
    }
    member.tokens.resize(member.prompt_length);
    member.tokens.insert(member.tokens.end(), beams[b].tokens.begin(), beams[b].tokens.end());
  }
}

}  // namespace berth
