#include "server/vllm/kv_events.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/signal_stack.h"

namespace berth {
namespace {

namespace common = ::smg::grpc::common;

// Splits blocks and removals into batches of limited size.
class BatchWriter {
 public:
  BatchWriter(int64_t max_blocks, double timestamp) : max_blocks_(max_blocks), timestamp_(timestamp) {}

  // Returns a new event, and how many of `wanted` blocks it may name.
  std::pair<common::KvCacheEvent*, size_t> Add(size_t wanted) {
    if (batches_.empty() || num_blocks_ >= max_blocks_) {
      batches_.emplace_back().set_timestamp(timestamp_);
      num_blocks_ = 0;
    }
    const size_t count = std::min(wanted, static_cast<size_t>(max_blocks_ - num_blocks_));
    num_blocks_ += static_cast<int64_t>(count);
    return {batches_.back().add_events(), count};
  }
  std::vector<common::KvEventBatch>& batches() { return batches_; }

 private:
  const int64_t max_blocks_;
  const double timestamp_;
  int64_t num_blocks_ = 0;
  std::vector<common::KvEventBatch> batches_;
};

}  // namespace

void KvSubscription::Push(KvBatch batch, bool snapshot) {
  {
    MutexLock lock(&mutex_);
    if (ended_) return;
    const size_t bytes = snapshot ? 0 : batch->ByteSizeLong();
    bytes_ += bytes;
    waiting_.push_back({std::move(batch), bytes});
    if (bytes_ > max_bytes_) {
      status_ = absl::DataLossError(absl::StrCat("the subscriber does not read: ", bytes_,
                                                 " bytes wait; subscribe again, with start_sequence_number 0"));
      ended_ = true;
      waiting_.clear();
    }
    if (std::exchange(taking_, true)) return;
  }
  ready_();
}

void KvSubscription::End(absl::Status status) {
  {
    MutexLock lock(&mutex_);
    if (std::exchange(ended_, true)) return;
    status_ = std::move(status);
    waiting_.clear();
    if (std::exchange(taking_, true)) return;
  }
  ready_();
}

KvSubscription::Next KvSubscription::Take(KvBatch* batch) {
  MutexLock lock(&mutex_);
  if (ended_) return Next::kEnd;
  if (waiting_.empty()) {
    taking_ = false;
    return Next::kNothing;
  }
  *batch = std::move(waiting_.front().batch);
  bytes_ -= waiting_.front().bytes;
  waiting_.pop_front();
  return Next::kBatch;
}

absl::Status KvSubscription::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

KvEvents::KvEvents(Options options)
    : options_(std::move(options)), inbox_(std::make_shared<Inbox>(options_.log_words)), thread_([this] { Loop(); }) {}

KvEvents::~KvEvents() {
  Stop();
  thread_.join();
}

void KvEvents::Subscribe(std::string tenant, uint64_t start, std::shared_ptr<KvSubscription> subscription) {
  absl::Status refusal;
  {
    MutexLock lock(&inbox_->mutex);
    if (inbox_->stopped) {
      refusal = absl::UnavailableError("the server is shutting down");
    } else if (inbox_->num_subscribers >= options_.max_subscribers) {
      refusal = absl::ResourceExhaustedError(
          absl::StrCat("there are ", inbox_->num_subscribers, " subscribers, and no more may be"));
    }
    // Refused ones leave too.
    ++inbox_->num_subscribers;
    if (refusal.ok()) {
      inbox_->arrivals.push_back(
          {.tenant = std::move(tenant), .start = start, .subscription = std::move(subscription)});
    }
  }
  if (!refusal.ok()) return subscription->End(std::move(refusal));
  inbox_->log->Wake();
}

void KvEvents::Unsubscribe(std::shared_ptr<KvSubscription> subscription) {
  {
    MutexLock lock(&inbox_->mutex);
    --inbox_->num_subscribers;
    inbox_->departures.push_back(std::move(subscription));
  }
  inbox_->log->Wake();
}

void KvEvents::Stop() {
  {
    MutexLock lock(&inbox_->mutex);
    inbox_->stopped = true;
  }
  inbox_->log->Wake();
}

void KvEvents::Loop() {
  const SignalStack signal_stack;
  while (true) {
    const uint32_t seen = inbox_->log->num_wakes();
    if (!Round()) return;
    inbox_->log->Wait(seen);
  }
}

// The log is read before the inbox. So a tree that the inbox has is never older than records that follow it; records
// that are older than the tree name nodes that it does not have.
bool KvEvents::Round() {
  const bool whole = inbox_->log->Take(&words_);
  std::vector<Arrival> arrivals;
  std::vector<std::shared_ptr<KvSubscription>> departures;
  std::vector<Tree> trees;
  bool stopped = false;
  {
    MutexLock lock(&inbox_->mutex);
    arrivals.swap(inbox_->arrivals);
    departures.swap(inbox_->departures);
    trees.swap(inbox_->trees);
    stopped = inbox_->stopped;
  }
  TakeTrees(std::move(trees));
  for (absl::Span<const int32_t> left = words_; !left.empty();) {
    const PrefixLog::Record record = PrefixLog::Read(&left);
    for (auto& [tenant, stream] : streams_) stream.mirror.Apply(record);
  }
  for (auto& [tenant, stream] : streams_) {
    if (!whole) Watch(tenant, &stream);
    if (stream.is_current) SendChanges(&stream);
  }
  for (Arrival& arrival : arrivals) Arrive(std::move(arrival));
  for (const auto& subscription : departures) Depart(subscription);
  DropLeft();
  if (stopped) EndAll();
  return !stopped;
}

void KvEvents::Watch(const std::string& tenant, Stream* stream) {
  stream->watch = ++num_watches_;
  stream->is_current = false;
  options_.engine->WatchPrefixes(
      tenant, inbox_->log, [inbox = inbox_, tenant, watch = stream->watch](std::vector<int32_t> words) {
        {
          MutexLock lock(&inbox->mutex);
          inbox->trees.push_back({.tenant = tenant, .watch = watch, .words = std::move(words)});
        }
        inbox->log->Wake();
      });
}

void KvEvents::TakeTrees(std::vector<Tree> trees) {
  for (const Tree& tree : trees) {
    const auto found = streams_.find(tree.tenant);
    if (found == streams_.end() || found->second.watch != tree.watch) continue;
    Stream& stream = found->second;
    stream.mirror.Reset(tree.words);
    stream.is_current = true;
    SendChanges(&stream);
    for (const Arrival& arrival : std::exchange(stream.waiting, {})) Attach(arrival, &stream);
  }
}

void KvEvents::FillStored(const PrefixMirror::Chain& chain, size_t from, size_t to, common::KvBlocksStored* out) const {
  const uint64_t parent = from == 0 ? chain.parent_hash : chain.hashes[from - 1];
  if (parent != 0) out->set_parent_block_hash(static_cast<int64_t>(parent));
  for (size_t g = 0; g < options_.plan.groups.size(); ++g) {
    if (options_.plan.groups[g].kind != CacheKind::kStatic) continue;
    out->set_group_idx(static_cast<uint32_t>(g));
    out->set_kv_cache_spec_kind("full_attention");
    break;
  }
  const size_t block = static_cast<size_t>(options_.plan.block_tokens);
  for (size_t i = from; i < to; ++i) {
    common::KvBlock* const added = out->add_blocks();
    added->set_block_hash(static_cast<int64_t>(chain.hashes[i]));
    added->set_block_size(static_cast<int32_t>(block));
    const auto begin = chain.tokens.begin() + static_cast<int64_t>(i * block);
    added->mutable_token_ids()->Add(begin, begin + static_cast<int64_t>(block));
  }
}

void KvEvents::SendChanges(Stream* stream) {
  const PrefixMirror::Changes changes = stream->mirror.TakeChanges();
  BatchWriter writer(options_.batch_blocks, absl::ToDoubleSeconds(options_.now() - absl::UnixEpoch()));
  for (size_t at = 0; at < changes.removed.size();) {
    const auto [event, count] = writer.Add(changes.removed.size() - at);
    event->set_event_id(++stream->num_events);
    for (const size_t end = at + count; at < end; ++at) {
      event->mutable_removed()->add_block_hashes(static_cast<int64_t>(changes.removed[at]));
    }
  }
  for (const PrefixMirror::Chain& chain : changes.stored) {
    for (size_t at = 0; at < chain.hashes.size();) {
      const auto [event, count] = writer.Add(chain.hashes.size() - at);
      event->set_event_id(++stream->num_events);
      FillStored(chain, at, at + count, event->mutable_stored());
      at += count;
    }
  }
  for (common::KvEventBatch& made : writer.batches()) {
    made.set_sequence_number(++stream->sequence);
    const auto batch = std::make_shared<const common::KvEventBatch>(std::move(made));
    for (const auto& subscriber : stream->subscribers) subscriber->Push(batch);
    stream->history.push_back(batch);
    stream->history_bytes += batch->ByteSizeLong();
  }
  while (stream->history_bytes > options_.history_bytes) {
    stream->history_bytes -= stream->history.front()->ByteSizeLong();
    stream->history.pop_front();
  }
}

void KvEvents::Arrive(Arrival arrival) {
  auto found = streams_.find(arrival.tenant);
  if (found == streams_.end()) {
    found = streams_.try_emplace(arrival.tenant, options_).first;
    // Above every number of an earlier process, so that none of those passes for one of these.
    found->second.sequence = static_cast<uint64_t>(std::max<int64_t>(1, absl::ToUnixMicros(options_.now())));
    Watch(arrival.tenant, &found->second);
  }
  Stream& stream = found->second;
  if (stream.is_current) {
    Attach(arrival, &stream);
  } else {
    stream.waiting.push_back(std::move(arrival));
  }
}

void KvEvents::Attach(const Arrival& arrival, Stream* stream) {
  KvSubscription* const subscription = arrival.subscription.get();
  stream->subscribers.push_back(arrival.subscription);
  if (arrival.start == 0) return SendSnapshot(stream, subscription);
  const uint64_t kept = std::max(stream->sequence - stream->history.size() + 1, stream->first_resume);  // the first one
  if (arrival.start + 1 < kept || arrival.start < stream->first_resume || arrival.start > stream->sequence + 1) {
    return subscription->End(
        absl::OutOfRangeError(absl::StrCat("start_sequence_number: ", arrival.start, " is outside of what is kept, [",
                                           kept, ", ", stream->sequence + 1, "]; subscribe with 0 for a snapshot")));
  }
  for (const KvBatch& batch : stream->history) {
    if (batch->sequence_number() >= arrival.start) subscription->Push(batch);
  }
}

void KvEvents::SendSnapshot(Stream* stream, KvSubscription* subscription) const {
  BatchWriter writer(options_.batch_blocks, absl::ToDoubleSeconds(options_.now() - absl::UnixEpoch()));
  writer.Add(0).first->mutable_cleared();
  for (const PrefixMirror::Chain& chain : stream->mirror.GetAll()) {
    for (size_t at = 0; at < chain.hashes.size();) {
      const auto [event, count] = writer.Add(chain.hashes.size() - at);
      FillStored(chain, at, at + count, event->mutable_stored());
      at += count;
    }
  }
  const size_t count = writer.batches().size();
  if (count > 1) stream->first_resume = stream->sequence + 1;
  for (size_t i = 0; i < count; ++i) {
    common::KvEventBatch& made = writer.batches()[i];
    made.set_sequence_number(stream->sequence - count + 1 + i);
    made.mutable_snapshot()->set_index(static_cast<uint32_t>(i));
    made.mutable_snapshot()->set_count(static_cast<uint32_t>(count));
    made.mutable_snapshot()->set_blocks(static_cast<uint64_t>(stream->mirror.num_usable()));
    subscription->Push(std::make_shared<const common::KvEventBatch>(std::move(made)), /*snapshot=*/true);
  }
}

void KvEvents::Depart(const std::shared_ptr<KvSubscription>& subscription) {
  for (auto& [tenant, stream] : streams_) {
    const auto is_it = [&](const Arrival& arrival) { return arrival.subscription == subscription; };
    if (std::erase(stream.subscribers, subscription) + std::erase_if(stream.waiting, is_it) == 0) continue;
    stream.left = options_.now();
  }
}

// Looks whenever something happens: while nothing does, a tenant that is followed costs nothing.
void KvEvents::DropLeft() {
  for (auto at = streams_.begin(); at != streams_.end();) {
    const Stream& stream = at->second;
    if (stream.subscribers.empty() && stream.waiting.empty() && options_.now() - stream.left >= options_.linger) {
      options_.engine->UnwatchPrefixes(at->first);
      at = streams_.erase(at);
    } else {
      ++at;
    }
  }
}

void KvEvents::EndAll() {
  const absl::Status status = absl::UnavailableError("the server is shutting down");
  for (auto& [tenant, stream] : streams_) {
    for (const auto& subscriber : stream.subscribers) subscriber->End(status);
    for (const Arrival& arrival : stream.waiting) arrival.subscription->End(status);
  }
}

}  // namespace berth
