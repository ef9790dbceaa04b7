// Copies between the arena and host memory on a thread of its own, beside a step. A step's end waits for the piece at
// hand only (ArenaStorage::piece_bytes). The rest is left to the next step. Engine thread only, apart from the copier's
// own thread.
#ifndef BERTH_SCHEDULER_TIERS_COPIER_H_
#define BERTH_SCHEDULER_TIERS_COPIER_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "cache/snapshot.h"
#include "cache/storage.h"

namespace berth {

class Copier {
 public:
  // How many bytes were copied, from the front of each direction's spans, and how long that took.
  struct Done {
    int64_t in_bytes = 0;
    int64_t out_bytes = 0;
    absl::Duration time;
  };

  // `storage` must outlive the copier. With `beside_steps` false there is no thread, and Start copies everything. That
  // is for tests whose schedule must not depend on time.
  Copier(ArenaStorage* storage, bool beside_steps, absl::Time (*clock)());
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // The spans that Start copies, into the arena and out of it. REQUIRES: not between Start and Finish.
  std::vector<SnapshotSpan>& in() { return in_; }
  std::vector<SnapshotSpan>& out() { return out_; }

  // Begins to copy: first in, then out. Until Finish, only the copier may access what the spans name.
  void Start() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the copying after the piece at hand, but not before the first one, and forgets the spans. Returns zeros
  // without Start.
  Done Finish() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Loop() ABSL_LOCKS_EXCLUDED(mutex_);
  void Copy();
  // Adds the bytes that it copied to `done_bytes`.
  template <typename CopyPiece>
  void CopySpans(const std::vector<SnapshotSpan>& spans, CopyPiece copy_piece, int64_t* done_bytes);

  ArenaStorage* const storage_;
  absl::Time (*const clock_)();
  // The copier's thread owns these between Start and Finish, otherwise the engine thread does.
  std::vector<SnapshotSpan> in_;
  std::vector<SnapshotSpan> out_;
  Done done_;

  std::atomic<bool> stop_{false};  // after the piece at hand
  Mutex mutex_;
  CondVar changed_;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: sees everything above built
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_TIERS_COPIER_H_
