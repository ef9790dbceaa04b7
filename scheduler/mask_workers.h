// Computes the masks of a step's constrained rows on threads of its own, while the model runs. The sampler waits for
// each row's masks right before it samples (models/row_masks.h). Engine thread only, apart from its own threads.
//
// The other parts of a constraint (Accept, IsComplete, the forced tokens) run between steps on the engine thread. Their
// time does not grow with the vocabulary, with one exception: where bytes are forced, finding their tokens may take up
// to four masks.
#ifndef BERTH_SCHEDULER_MASK_WORKERS_H_
#define BERTH_SCHEDULER_MASK_WORKERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "models/row_masks.h"
#include "scheduler/mutex.h"
#include "scheduler/output_constraint.h"

namespace berth {

class MaskWorkers {
 public:
  // With `num_threads` 0, Start computes everything. That is for tests whose schedule must not depend on time.
  MaskWorkers(int64_t num_threads, int64_t vocab_size);
  ~MaskWorkers();
  MaskWorkers(const MaskWorkers&) = delete;
  MaskWorkers& operator=(const MaskWorkers&) = delete;

  // Adds the masks of a row with these drafts, for Start to compute. They are valid until the next Add after Finish.
  // Allocates only while a step has more constrained rows than any before. REQUIRES: not between Start and Finish.
  // `constraint` and `drafts` stay as they are until Finish.
  const RowMasks* Add(OutputConstraint* constraint, absl::Span<const int32_t> drafts);

  // Begins to compute what was added. Until Finish the constraints belong to the threads.
  void Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until all is computed. Does nothing without Start.
  void Finish() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Job {
    OutputConstraint* constraint = nullptr;
    absl::Span<const int32_t> drafts;
    absl::Span<uint32_t> words;
    RowMasks masks;

    void Run() {
      constraint->FillMasks(drafts, words);
      masks.SetDone();
    }
  };
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

#endif  // BERTH_SCHEDULER_MASK_WORKERS_H_
