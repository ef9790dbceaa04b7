#include "scheduler/output/mask_workers.h"

#include "base/signal_stack.h"
#include "models/token_constraint.h"

namespace berth {

MaskWorkers::MaskWorkers(int64_t num_threads, int64_t vocab_size) : vocab_size_(vocab_size) {
  for (int64_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Loop(); });
}

MaskWorkers::~MaskWorkers() {
  Finish();
  {
    MutexLock lock(&mutex_);
    closed_ = true;
    work_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void MaskWorkers::Job::Run() {
  switch (kind) {
    case Kind::kMasks:
      constraint->FillMasks(drafts, words);
      break;
    case Kind::kForced:
      constraint->FindForced(limit);
      break;
    case Kind::kCheck:
      constraint->KeepAllowed(to_check);
      break;
  }
  masks.SetDone();
}

MaskWorkers::Job& MaskWorkers::NewJob(Job::Kind kind, OutputConstraint* constraint) {
  if (num_jobs_ == jobs_.size()) jobs_.push_back(std::make_unique<Job>());
  Job& job = *jobs_[num_jobs_++];
  job.kind = kind;
  job.constraint = constraint;
  return job;
}

const RowMasks* MaskWorkers::Add(OutputConstraint* constraint, absl::Span<const int32_t> drafts) {
  Job& job = NewJob(Job::Kind::kMasks, constraint);
  job.drafts = drafts;
  job.words = job.masks.Reset(static_cast<int64_t>(drafts.size()) + 1, MaskWords(vocab_size_));
  return &job.masks;
}

void MaskWorkers::AddForced(OutputConstraint* constraint, int64_t limit) {
  Job& job = NewJob(Job::Kind::kForced, constraint);
  job.limit = limit;
  job.masks.Reset(0, 0);
}

void MaskWorkers::AddCheck(OutputConstraint* constraint, std::vector<int32_t>* drafts) {
  Job& job = NewJob(Job::Kind::kCheck, constraint);
  job.to_check = drafts;
  job.masks.Reset(0, 0);
}

void MaskWorkers::Start() {
  if (num_jobs_ == 0) return;
  running_ = true;
  if (threads_.empty()) {
    for (size_t i = 0; i < num_jobs_; ++i) jobs_[i]->Run();
    return;
  }
  MutexLock lock(&mutex_);
  started_ = num_jobs_;
  work_.SignalAll();
}

void MaskWorkers::Finish() {
  for (size_t i = 0; running_ && i < num_jobs_; ++i) jobs_[i]->masks.Wait();
  running_ = false;
  num_jobs_ = 0;
  MutexLock lock(&mutex_);
  next_ = 0;
  started_ = 0;
}

void MaskWorkers::Loop() {
  const SignalStack signal_stack;
  while (true) {
    Job* job = nullptr;
    {
      MutexLock lock(&mutex_);
      while (next_ == started_ && !closed_) work_.Wait(&mutex_);
      if (closed_) return;
      job = jobs_[next_++].get();
    }
    job->Run();
  }
}

}  // namespace berth
