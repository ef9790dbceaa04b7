// Does all work of constraints that may take as long as the vocabulary, on threads of its own. Engine thread only,
// apart from these threads.
//
//   masks          while the model runs; the sampler waits for each row's right before it samples (models/row_masks.h)
//   forced tokens  after each step: the search may take up to four masks; the engine waits for all rows
//   drafts         before a step that checks some: each may take such a search; the engine waits for all rows
//
// What is left for the engine thread, Accept and IsComplete, does not grow with the vocabulary.
#ifndef BERTH_SCHEDULER_OUTPUT_MASK_WORKERS_H_
#define BERTH_SCHEDULER_OUTPUT_MASK_WORKERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "models/row_masks.h"
#include "scheduler/output/output_constraint.h"

namespace berth {

class MaskWorkers {
 public:
  // With `num_threads` 0, Start does everything. That is for tests whose schedule must not depend on time.
  MaskWorkers(int64_t num_threads, int64_t vocab_size);
  ~MaskWorkers();
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  // Adds the masks of a row with these drafts, for Start to compute. They are valid until the next Add after Finish.
  // Allocates only while a step has more constrained rows than any before. REQUIRES: not between Start and Finish.
  // `constraint` and `drafts` stay as they are until Finish.
  const RowMasks* Add(OutputConstraint* constraint, absl::Span<const int32_t> drafts);

  // Adds a search for the row's forced tokens, by OutputConstraint::FindForced.
  void AddForced(OutputConstraint* constraint, int64_t limit);
  // Adds a check of the row's drafts, by OutputConstraint::KeepAllowed.
  void AddCheck(OutputConstraint* constraint, std::vector<int32_t>* drafts);

  // Begins to do what was added. Until Finish the constraints belong to the threads.
  void Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until all is done. Does nothing without Start.
  void Finish() ABSL_LOCKS_EXCLUDED(mutex_);
  // Start and Finish.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_) {
    Start();
    Finish();
  }

 private:
  struct Job {
    enum class Kind { kMasks, kForced, kCheck };
    Kind kind = Kind::kMasks;
    OutputConstraint* constraint = nullptr;
    absl::Span<const int32_t> drafts;          // kMasks
    absl::Span<uint32_t> words;                // kMasks
    int64_t limit = 0;                         // kForced
    std::vector<int32_t>* to_check = nullptr;  // kCheck
    RowMasks masks;                            // of the other kinds: none, but they tell when it is done

    void Run();
  };
  Job& NewJob(Job::Kind kind, OutputConstraint* constraint);
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);

  const int64_t vocab_size_;
  // The engine thread changes these before Start; the workers read them until Finish.
  std::vector<std::unique_ptr<Job>> jobs_;
  size_t num_jobs_ = 0;
  bool running_ = false;  // between Start and Finish

  Mutex mutex_;
  CondVar work_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;     // the job to take next
  size_t started_ ABSL_GUARDED_BY(mutex_) = 0;  // jobs that may be taken
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: see everything above built
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_OUTPUT_MASK_WORKERS_H_
