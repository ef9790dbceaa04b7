// Takes what a step chose into the outputs of its sequences, and ends outputs. Makes every TokenEvent of a step, and
// all ends. Engine thread only.
//
// A sequence that it ends keeps its lease. Its owner destroys the sequence afterwards, which returns the lease.
#ifndef BERTH_SCHEDULER_OUTPUT_OUTPUT_COMMITTER_H_
#define BERTH_SCHEDULER_OUTPUT_OUTPUT_COMMITTER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "models/step.h"
#include "scheduler/load/scheduler_counts.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/sequence.h"
#include "scheduler/tiers/prefix_sharing.h"
#include "scheduler/tiers/saver.h"
#include "scheduler/tiers/swap_manager.h"

namespace berth {

class OutputCommitter {
 public:
  // The parts that the committer reports to. The pointers must outlive it.
  struct Observers {
    const PrefixSharing* sharing;
    SwapManager* swap;
    Saver* saver;
    SchedulerCounts* counts;
  };
  OutputCommitter(const SchedulerOptions& options, const Observers& observers) : options_(options), to_(observers) {}

  // Takes in the result of a row of the sequence: publishes what the row computed and appends what it chose. Ends the
  // sequence with its last token, or with its embedding. REQUIRES: the step is done, and the sequence has not ended.
  // CommitForced follows for a row that chose a token.
  void Commit(const StepRow& row, const RowResult& result, Sequence* sequence, absl::Time now,
              std::vector<TokenEvent>* events);
  // How many tokens the sequence takes, at most, where its constraint forces them; 0: the model has to choose.
  static int64_t MaxForced(const Sequence& sequence);
  // Appends the tokens that the sequence's constraint has found to be forced. `num_before`: tokens before the step.
  // Does nothing for a beam, or a sequence that has ended.
  void CommitForced(int64_t num_before, Sequence* sequence, absl::Time now, std::vector<TokenEvent>* events);

  // Ends the sequence, with its request or alone (Sequence::output_cancelled). When the request ends, only its last
  // sequence makes an event.
  void End(FinishReason reason, const absl::Status& error, absl::Time now, Sequence* sequence,
           std::vector<TokenEvent>* events);
  // Ends all sequences of the request of `sequence`.
  void EndRequest(FinishReason reason, const absl::Status& error, absl::Time now, Sequence* sequence,
                  std::vector<TokenEvent>* events);

 private:
  // Ends a sequence whose prompt is pooled, with its embedding.
  void FinishEmbedding(Sequence* sequence, absl::Time now, std::vector<TokenEvent>* events);
  // Takes in the tokens that the model chose in the place of drafts while it agreed with them, and one more.
  void CommitTokens(const RowResult& result, Sequence* sequence, absl::Time now, std::vector<TokenEvent>* events);
  void AppendForced(Sequence* sequence, absl::Time now, std::vector<TokenEvent>* events);
  // Takes in the row of a beam, and with the last row the search's step. Ends the search if that was its last step.
  void CommitBeam(const StepRow& row, const RowResult& result, Sequence* sequence, absl::Time now,
                  std::vector<TokenEvent>* events);
  // Ends the beams of a search that is over, with the tokens of the best.
  void FinishBeams(Sequence* sequence, absl::Time now, std::vector<TokenEvent>* events);
  // Appends a token that the constraint has accepted, or that ends the output. Finishes the sequence if that was its
  // last.
  void Append(int32_t token, const RowResult& result, Sequence* sequence, absl::Time now, TokenEvent* event);
  // Why a row's token cannot be appended; OK: it can.
  absl::Status CheckToken(int32_t token, const Sequence& sequence) const;
  // Drops the part of the sequence's cache that has to be computed again (rope_switch_length, crop_every), now that it
  // has more tokens than `num_before`.
  void Rewind(int64_t num_before, Sequence* sequence);
  // Ends the sequence alone, with an error of its constraint.
  void EndByConstraint(absl::Time now, Sequence* sequence, std::vector<TokenEvent>* events);
  // Writes the end of the sequence into `event`.
  void Finish(FinishReason reason, const absl::Status& error, absl::Time now, Sequence* sequence, TokenEvent* event);

  const SchedulerOptions options_;
  const Observers to_;
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_OUTPUT_OUTPUT_COMMITTER_H_
