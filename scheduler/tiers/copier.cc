#include "scheduler/tiers/copier.h"

#include <algorithm>
#include <utility>

#include "base/signal_stack.h"

namespace berth {

Copier::Copier(ArenaStorage* storage, bool beside_steps, absl::Time (*clock)()) : storage_(storage), clock_(clock) {
  if (beside_steps) thread_ = std::thread([this] { Loop(); });
}

Copier::~Copier() {
  Finish();
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

template <typename CopyPiece>
void Copier::CopySpans(const std::vector<SnapshotSpan>& spans, CopyPiece copy_piece, int64_t* done_bytes) {
  for (const SnapshotSpan& span : spans) {
    for (int64_t at = 0; at < span.size_bytes;) {
      // At least one piece in each step, so that every copy ends some day.
      if (stop_.load(std::memory_order_relaxed) && done_.in_bytes + done_.out_bytes > 0) return;
      const int64_t size = std::min(storage_->piece_bytes(), span.size_bytes - at);
      if (span.offset >= 0) copy_piece(span.offset + at, size, span.bytes + at);
      if (!storage_->status().ok()) return;  // nothing that comes from it is kept
      at += size;
      *done_bytes += size;
    }
  }
}

void Copier::Copy() {
  const absl::Time start = clock_();
  const auto write = [this](int64_t offset, int64_t size_bytes, const std::byte* bytes) {
    storage_->Write(offset, size_bytes, bytes);
  };
  const auto read = [this](int64_t offset, int64_t size_bytes, std::byte* bytes) {
    storage_->Read(offset, size_bytes, bytes);
  };
  CopySpans(in_, write, &done_.in_bytes);
  CopySpans(out_, read, &done_.out_bytes);
  done_.time = clock_() - start;
}

void Copier::Start() {
  if (in_.empty() && out_.empty()) return;
  if (!thread_.joinable()) return Copy();
  stop_ = false;
  storage_->Fence();
  MutexLock lock(&mutex_);
  started_ = true;
  changed_.SignalAll();
}

Copier::Done Copier::Finish() {
  if (thread_.joinable()) {
    stop_ = true;
    MutexLock lock(&mutex_);
    while (started_) changed_.Wait(&mutex_);
  }
  in_.clear();
  out_.clear();
  return std::exchange(done_, Done());
}

void Copier::Loop() {
  const SignalStack signal_stack;
  while (true) {
    {
      MutexLock lock(&mutex_);
      while (!started_ && !closed_) changed_.Wait(&mutex_);
      if (closed_) return;
    }
    Copy();
    MutexLock lock(&mutex_);
    started_ = false;
    changed_.SignalAll();
  }
}

}  // namespace berth
