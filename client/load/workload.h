// The conversations of a load test: prompts, lengths and turns, the same for the same seed. Thread-compatible.
#ifndef BERTH_CLIENT_LOAD_WORKLOAD_H_
#define BERTH_CLIENT_LOAD_WORKLOAD_H_

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "berth/v1/control.pb.h"
#include "berth/v1/inference.pb.h"
#include "client/load/lengths.h"
#include "client/load/trace_file.h"

namespace berth::cli {

struct WorkItem {
  v1::GenerateRequest request;
  int64_t output_tokens = 0;   // asked for, exactly
  int64_t prompt_tokens = -1;  // -1: not known here (text)
  int64_t reference = 0;       // items with the same one are the same request
  bool shortened = false;      // to the server's limit
};

// How the prompt of a turn follows from the turns before it. Each adds new tokens at the end.
enum class History {
  kGrow,   // all prompts and outputs so far
  kFront,  // the same, but eight tokens near the beginning change each turn, as a clock in a system prompt does
  kStrip,  // without the first half of each earlier output, as templates drop earlier reasoning
  kSide,   // as kGrow, and between two turns there is an unrelated request
};

struct HistoryName {
  const char* name;
  History history;
};
inline constexpr HistoryName kHistoryNames[] = {
    {"grow", History::kGrow}, {"front", History::kFront}, {"strip", History::kStrip}, {"side", History::kSide}};

class Workload;

// Requests that follow one another: each is made when the one before has been answered.
class Conversation {
 public:
  // The next request; none: the conversation is over. `answer`: the output tokens of the request before; empty for the
  // first. A later turn that would exceed the server's longest sequence ends the conversation.
  std::optional<WorkItem> Next(absl::Span<const int32_t> answer);

 private:
  friend class Workload;
  Conversation(const Workload* workload, int64_t index);

  WorkItem First();
  // Adds the last turn's answer and the new tokens to the history. False: there is no room.
  bool Continue(absl::Span<const int32_t> answer);
  WorkItem SideItem();

  const Workload* workload_;
  int64_t index_;
  int64_t turn_ = 0;  // requests made, the unrelated ones not counted
  bool side_is_next_ = false;
  bool side_was_last_ = false;
  std::vector<int32_t> answer_;   // to the last turn, while an unrelated request is between
  std::vector<int32_t> history_;  // the last turn's prompt
  int64_t output_tokens_ = 0;     // of the next turn
  std::mt19937_64 random_;
};

class Workload {
 public:
  struct Options {
    LengthDistribution prompt_tokens = LengthDistribution::Fixed(128);
    LengthDistribution output_tokens = LengthDistribution::Fixed(64);
    std::vector<std::string> prompts = {};  // sent in turn instead of random token ids, when not empty
    double temperature = 0;                 // above 0, each item carries a sampling seed of its own
    int64_t num_distinct = 0;               // the items repeat after this many; 0: never
    uint64_t seed = 0;

    // Each prompt begins with one of num_prefixes beginnings of this many tokens. 0: with none.
    int64_t prefix_tokens = 0;
    int64_t num_prefixes = 1;
    // Requests of a conversation, those between its turns not counted.
    int64_t num_turns = 1;
    LengthDistribution turn_tokens = LengthDistribution::Fixed(64);  // new tokens of each later turn
    History history = History::kGrow;
    // Conversations to replay, each of one turn. They replace lengths and prefixes. Empty: none.
    std::vector<TraceEntry> trace = {};
  };

  // FAILED_PRECONDITION when `model` tells no vocabulary to draw from.
  static absl::StatusOr<Workload> Create(Options options, const v1::GetModelInfoResponse& model);

  // Conversation `index`, whatever was started before. The workload must outlive it. REQUIRES: index is below
  // num_conversations(), if that is not 0. Prompts are token ids drawn evenly from the vocabulary without the end
  // tokens; end tokens are ignored, so that the output has exactly its length. What exceeds the server's longest
  // sequence is shortened, the output first.
  Conversation Start(int64_t index) const { return Conversation(this, index); }
  // The first request of conversation `index`.
  WorkItem Make(int64_t index) const;

  // 0: no limit.
  int64_t num_conversations() const { return static_cast<int64_t>(options_.trace.size()); }
  bool has_turns() const { return options_.num_turns > 1; }
  // When the conversations of the trace arrive; empty without one.
  std::vector<absl::Duration> Arrivals() const;

 private:
  friend class Conversation;
  Workload(Options options, const v1::GetModelInfoResponse& model);

  // Shortens to max_sequence_tokens_. `*prompt_tokens` < 0: unknown, left alone.
  bool Shorten(int64_t* prompt_tokens, int64_t* output_tokens) const;
  // Appends random tokens.
  void AddTokens(int64_t num_tokens, std::mt19937_64* random, std::vector<int32_t>* tokens) const;
  // Appends the tokens of an id, the same each time.
  void AddShared(const SharedTokens& shared, std::vector<int32_t>* tokens) const;
  // The tokens that conversation `index` begins with and shares with others.
  std::vector<SharedTokens> SharedOf(int64_t index, std::mt19937_64* random) const;
  int64_t ReferenceOf(int64_t index) const;
  // A request for `output_tokens` tokens without its input.
  WorkItem Item(int64_t output_tokens, std::mt19937_64* random) const;

  Options options_;
  int64_t max_sequence_tokens_;      // 0: not known
  std::vector<int32_t> end_tokens_;  // inside the vocabulary, ascending
  int64_t vocab_size_;
};

}  // namespace berth::cli

#endif  // BERTH_CLIENT_LOAD_WORKLOAD_H_
