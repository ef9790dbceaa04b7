// Copies between the arena and host memory that run beside a step, on a thread of their own, so that no running row
// waits for more than a piece (kPieceBytes). What the step's end finds undone is left to the next step.
//
// Thread-compatible; engine thread only, but for its own thread.
#ifndef BERTH_SCHEDULER_COPIER_H_
#define BERTH_SCHEDULER_COPIER_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "cache/image.h"
#include "cache/storage.h"
#include "scheduler/mutex.h"

namespace berth {

class Copier {
 public:
  // Some ten microseconds' worth.
  static constexpr int64_t kPieceBytes = 256 << 10;

  // What was copied, of each direction's spans the first so many bytes, and how long that took.
  struct Done {
    int64_t in_bytes = 0;
    int64_t out_bytes = 0;
    absl::Duration time;
  };

  // `storage` must outlive the copier. `beside_steps` false: there is no thread, and Start does all there is to do, for
  // tests whose schedule must not depend on time.
  Copier(ArenaStorage* storage, bool beside_steps, absl::Time (*clock)());
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // What Start will copy, into the arena and out of it. REQUIRES: not between Start and Finish.
  std::vector<ImageSpan>& in() { return in_; }
  std::vector<ImageSpan>& out() { return out_; }

  // Begins to copy, what goes in first. Until Finish nobody else may read or write what the spans name.
  void Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the copying after the piece at hand, or the first, and forgets the spans. Nothing but zeros without Start.
  Done Finish() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  void Copy();
  // Adds to `done_bytes` what it copied.
  template <typename CopyPiece>
  void CopySpans(const std::vector<ImageSpan>& spans, CopyPiece copy_piece, int64_t* done_bytes);

  ArenaStorage* const storage_;
  absl::Time (*const clock_)();
  // The engine thread's, but between Start and Finish the copier's.
  std::vector<ImageSpan> in_;
  std::vector<ImageSpan> out_;
  Done done_;

  std::atomic<bool> stop_{false};  // after the piece at hand
  Mutex mutex_;
  CondVar changed_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: sees everything above built
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_COPIER_H_
