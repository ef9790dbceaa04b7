#include "scheduler/tiers/prefix_tier.h"

#include <algorithm>
#include <utility>

#include "absl/synchronization/notification.h"
#include "base/steady_clock.h"

// An entry, by its place:
//
//     EnqueueForOffload                                          files found at the start
//             |                                                             |
//             v                                                             v
//     +--------------+  OnOffloaded  +----------------+  DropSnapshot  +---------+
//     |    kArena    | ------------> |     kHost      | -------------> |  kDisk  |
//     | its units in |               | a snapshot;    | <------------- | a file  |
//     | the index    |               | perhaps a file | Fetch, OnRead  +---------+
//     +--------------+               +----------------+                     |
//             |                              |                              |
//             v lost                         v DropSnapshot, no file        v DropFile, or it cannot be read
//
// entries_ owns the entries, sorted by salt and tokens. The entry of kArena that is being copied is offloading_, and
// the first copied_bytes of its snapshot are there. Once all are, StartWriting writes a file beside the snapshot.
// DropAll and DropShorter erase entries at any place.
namespace berth {
namespace {

// Steps of one search through the entries; each is a longer beginning that no entry is.
constexpr int kMaxSteps = 64;
// How soon the engine looks again at a disk that is at work.
constexpr absl::Duration kPollInterval = absl::Milliseconds(5);
constexpr absl::Duration kPauseAfterFailedWrite = absl::Seconds(30);
constexpr absl::Duration kLookInterval = absl::Minutes(1);
constexpr int kMostLost = 16;  // queued prefixes that a step may find gone from the arena before it copies one
constexpr absl::Duration kLongestDiskWait = absl::Seconds(30);  // at the end, in all

int64_t CommonPrefix(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

// What the index may hold of such a prefix: what windows have left behind is there too.
int64_t ArenaBytes(const CachePlan& plan, int64_t num_tokens) {
  int64_t bytes = 0;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const int64_t states = static_cast<int>(g) == plan.kept_group() ? 1 : 0;
    bytes += plan.groups[g].unit_bytes *
             (plan.groups[g].grows() ? (num_tokens + plan.block_tokens - 1) / plan.block_tokens : states);
  }
  return bytes;
}

// The most prefixes that the arena can hold at once: each ends in a unit of its own there.
size_t MostHeld(const Cache& cache) {
  int64_t smallest = cache.plan().groups[0].unit_bytes;
  for (const CacheGroup& group : cache.plan().groups) smallest = std::min(smallest, group.unit_bytes);
  return static_cast<size_t>(cache.storage().size_bytes() / smallest);
}

}  // namespace

struct PrefixTier::Entry {
  std::string salt;
  std::vector<int32_t> tokens;
  int64_t snapshot_bytes = 0;
  int64_t arena_bytes = 0;
  std::shared_ptr<CacheSnapshot> snapshot;  // whole when `place` is kHost; in part while it is saved
  int64_t copied_bytes = 0;
  uint64_t file = 0;  // 0: none
  int64_t file_bytes = 0;
  bool writing = false;
  bool reading = false;
  int pins = 0;
  absl::Time used;
  Place place = kArena;
  std::list<Entry*>::iterator at;  // in the place's list

  bool busy() const { return writing || reading || pins > 0; }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

bool PrefixTier::Less::operator()(const std::unique_ptr<Entry>& a, const std::unique_ptr<Entry>& b) const {
  return (*this)(a, View{.salt = b->salt, .tokens = b->tokens});
}
bool PrefixTier::Less::operator()(const std::unique_ptr<Entry>& a, const View& b) const {
  if (a->salt != b.salt) return a->salt < b.salt;
  return std::lexicographical_compare(a->tokens.begin(), a->tokens.end(), b.tokens.begin(), b.tokens.end());
}
bool PrefixTier::Less::operator()(const View& a, const std::unique_ptr<Entry>& b) const {
  if (a.salt != b->salt) return a.salt < b->salt;
  return std::lexicographical_compare(a.tokens.begin(), a.tokens.end(), b->tokens.begin(), b->tokens.end());
}

PrefixTier::PrefixTier(const Options& options, Cache* cache, HostTier* host, StepCopies* copies, const CopyCost* cost)
    : options_(options),
      cache_(cache),
      host_(host),
      copies_(copies),
      cost_(cost),
      serves_beginnings_(std::all_of(cache->plan().groups.begin(), cache->plan().groups.end(),
                                     [](const CacheGroup& group) { return group.grows() && group.kv.Reach() == 0; })) {
  if (options_.disk == nullptr) return;
  PrefixDisk::Found found = options_.disk->TakeFound();
  counts_.torn_files = found.num_torn;
  counts_.foreign_files = found.num_foreign;
  for (PrefixDisk::File& file : found.files) {
    if (entries_.contains(View{.salt = file.salt, .tokens = file.tokens})) {
      options_.disk->Remove(file.id);
      continue;
    }
    Entry* const entry = Add(file.salt, file.tokens, kDisk, file.used);
    entry->file = file.id;
    entry->file_bytes = file.size_bytes;
    by_file_[file.id] = entry;
    counts_.disk_bytes += file.size_bytes;
  }
  while (counts_.disk_bytes > options_.disk_limit_bytes) {
    ++counts_.disk_evictions;
    DropFile(places_[kDisk].front());
  }
}

PrefixTier::~PrefixTier() = default;

PrefixTier::Entry* PrefixTier::Add(absl::string_view salt, absl::Span<const int32_t> tokens, Place place,
                                   absl::Time now) {
  auto entry = std::make_unique<Entry>();
  entry->salt = std::string(salt);
  entry->tokens.assign(tokens.begin(), tokens.end());
  entry->snapshot_bytes = PrefixLayout(cache_->plan(), entry->num_tokens()).size_bytes;
  entry->arena_bytes = ArenaBytes(cache_->plan(), entry->num_tokens());
  entry->used = now;
  entry->place = place;
  entry->at = places_[place].insert(places_[place].end(), entry.get());
  if (place == kArena) queued_bytes_ += entry->arena_bytes;
  return entries_.insert(std::move(entry)).first->get();
}

void PrefixTier::MoveTo(Place place, Entry* entry) {
  if (entry->place == kArena && place != kArena) queued_bytes_ -= entry->arena_bytes;
  std::list<Entry*>& list = places_[place];
  auto before = list.end();
  while (before != list.begin() && (*std::prev(before))->used > entry->used) --before;
  list.splice(before, places_[entry->place], entry->at);
  entry->place = place;
}

void PrefixTier::Touch(Entry* entry, absl::Time now) {
  entry->used = now;
  places_[entry->place].splice(places_[entry->place].end(), places_[entry->place], entry->at);
}

void PrefixTier::Erase(Entry* entry) {
  if (offloading_ == entry) offloading_ = nullptr;
  if (entry->snapshot != nullptr) host_->prefix_bytes -= entry->snapshot_bytes;
  if (entry->place == kArena) queued_bytes_ -= entry->arena_bytes;
  places_[entry->place].erase(entry->at);
  entries_.erase(entries_.find(View{.salt = entry->salt, .tokens = entry->tokens}));
}

void PrefixTier::DropSnapshot(Entry* entry) {
  if (entry->file == 0) return Erase(entry);
  host_->prefix_bytes -= entry->snapshot_bytes;
  entry->snapshot = nullptr;
  MoveTo(kDisk, entry);
}

void PrefixTier::DropFile(Entry* entry) {
  options_.disk->Remove(entry->file);
  by_file_.erase(std::exchange(entry->file, 0));
  counts_.disk_bytes -= entry->file_bytes;
  if (entry->place == kDisk) Erase(entry);
}

void PrefixTier::EnqueueForOffload(absl::string_view salt, absl::Span<const int32_t> tokens, absl::Time now) {
  if (!on()) return;
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  const int64_t bytes = PrefixLayout(cache_->plan(), num_tokens).size_bytes;
  const auto next = entries_.lower_bound(View{.salt = salt, .tokens = tokens});
  if (next != entries_.end() && (*next)->salt == salt) {
    const bool longer = CommonPrefix((*next)->tokens, tokens) == num_tokens;
    if (longer && (serves_beginnings_ || (*next)->num_tokens() == num_tokens)) return Touch(next->get(), now);
  }
  if (bytes > host_->limit_bytes || !cost_->IsWorthCopying(2 * bytes, num_tokens)) return;
  DropShorter(Add(salt, tokens, kArena, now), Shorter::kInArena);
  std::list<Entry*>& queue = places_[kArena];
  while (queue.size() > MostHeld(*cache_) && queue.front() != offloading_) Lose(queue.front());
}

void PrefixTier::DropShorter(Entry* entry, Shorter which) {
  if (!serves_beginnings_) return;
  absl::Span<const int32_t> rest = absl::MakeConstSpan(entry->tokens).first(entry->tokens.size() - 1);
  for (int i = 0; i < kMaxSteps && !rest.empty(); ++i) {
    const auto next = entries_.upper_bound(View{.salt = entry->salt, .tokens = rest});
    if (next == entries_.begin() || (*std::prev(next))->salt != entry->salt) return;
    Entry* const shorter = std::prev(next)->get();
    const int64_t common = CommonPrefix(shorter->tokens, rest);
    const bool begins = common == shorter->num_tokens();
    rest = rest.first(std::min(common, shorter->num_tokens() - 1));
    const bool keeps =
        which == Shorter::kInArena ? shorter->place != kArena : which == Shorter::kWithoutFile && shorter->file != 0;
    if (!begins || keeps || shorter->busy() || shorter == offloading_) continue;
    if (shorter->file != 0 && shorter->place == kHost) DropFile(shorter);
    shorter->file != 0 ? DropFile(shorter) : Erase(shorter);
  }
}

void PrefixTier::OffloadNow(absl::Time now, int64_t needed_bytes) {
  if (offloading_ == nullptr) offloading_ = NextToOffload(now, needed_bytes);
  if (offloading_ != nullptr) FinishOffload(now);
}

void PrefixTier::StartOffload(absl::Time now, int64_t needed_bytes) {
  const int64_t limit = copies_->left_bytes() / 2;
  if (limit <= 0) return;
  for (int i = 0; i < kMostLost; ++i) {
    if (offloading_ == nullptr) offloading_ = NextToOffload(now, needed_bytes);
    if (offloading_ == nullptr) return;
    const int64_t end =
        offloading_->copied_bytes + std::min(limit, offloading_->snapshot_bytes - offloading_->copied_bytes);
    if (copies_->StartPrefixOut(offloading_->salt, offloading_->tokens, offloading_->copied_bytes, end,
                                offloading_->snapshot.get())) {
      return;
    }
    Lose(offloading_);
  }
}

void PrefixTier::OnOffloaded(int64_t size_bytes, absl::Time now) {
  if (size_bytes == 0) return;
  Entry* const entry = offloading_;
  entry->copied_bytes += size_bytes;
  if (entry->copied_bytes < entry->snapshot_bytes) return;
  offloading_ = nullptr;
  MoveTo(kHost, entry);
  DropShorter(entry, Shorter::kWithoutFile);
  StartWriting(entry, now);
}

PrefixTier::Entry* PrefixTier::NextToOffload(absl::Time now, int64_t needed_bytes) {
  while (!places_[kArena].empty()) {
    Entry* const entry = places_[kArena].front();
    const bool tight = queued_bytes_ > (cache_->available_bytes() - needed_bytes) / 2;
    if (!tight && now - entry->used < options_.idle) return nullptr;
    if (MakeRoom(entry->snapshot_bytes)) {
      entry->snapshot = std::make_shared<CacheSnapshot>(PrefixLayout(cache_->plan(), entry->num_tokens()));
      entry->snapshot->bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(entry->snapshot_bytes));
      entry->copied_bytes = 0;
      host_->prefix_bytes += entry->snapshot_bytes;
      return entry;
    }
    if (num_disk_busy_ > 0) return nullptr;  // what is being written can go soon
    Lose(entry);
  }
  return nullptr;
}

void PrefixTier::FinishOffload(absl::Time now) {
  Entry* const entry = offloading_;
  const int64_t rest = entry->snapshot_bytes - entry->copied_bytes;
  if (copies_->CopyPrefixOut(entry->salt, entry->tokens, entry->copied_bytes, entry->snapshot_bytes,
                             entry->snapshot.get())) {
    return OnOffloaded(rest, now);
  }
  Lose(entry);
}

void PrefixTier::OffloadAll(absl::Time now, absl::FunctionRef<void(StepPhase)> enter) {
  if (options_.disk == nullptr) return;
  const absl::Time last_wait = SteadyNow() + kLongestDiskWait;
  if (offloading_ != nullptr) FinishOffload(now);
  while (!places_[kArena].empty()) {
    offloading_ = NextToOffload(absl::InfiniteFuture(), /*needed_bytes=*/0);
    enter(offloading_ != nullptr ? StepPhase::kCopy : StepPhase::kIdle);
    if (offloading_ != nullptr) {
      FinishOffload(now);
      continue;
    }
    // Host memory is full of what is being written.
    if (places_[kArena].empty()) return;
    const auto done = std::make_shared<absl::Notification>();
    options_.disk->Sync([done](const absl::Status&) { done->Notify(); });
    if (!done->WaitForNotificationWithTimeout(last_wait - SteadyNow())) return;
    Poll(now);
  }
}

absl::Time PrefixTier::NextIdleWork(absl::Time now) const {
  if (num_disk_busy_ > 0) return now + kPollInterval;
  if (offloading_ != nullptr) return now;
  const bool looks = options_.quota && !by_file_.empty();
  const absl::Time next = looks ? std::max(now, next_look_) : absl::InfiniteFuture();
  if (places_[kArena].empty()) return next;
  return std::min(next, std::max(now, places_[kArena].front()->used + options_.idle));
}

void PrefixTier::StartWriting(Entry* entry, absl::Time now) {
  if (options_.disk == nullptr || now < next_write_) return;
  const int64_t size = options_.disk->FileBytes(entry->salt, entry->num_tokens(), entry->snapshot_bytes);
  if (size > options_.disk_limit_bytes || !MakeRoomInQuota(entry->salt, size)) return;
  const auto idle_file = [](const Entry* other) { return other->file != 0 && !other->busy(); };
  for (const Place place : {kDisk, kHost}) {
    while (counts_.disk_bytes + size > options_.disk_limit_bytes) {
      const auto oldest = std::find_if(places_[place].begin(), places_[place].end(), idle_file);
      if (oldest == places_[place].end()) break;
      ++counts_.disk_evictions;
      DropFile(*oldest);
    }
  }
  if (counts_.disk_bytes + size > options_.disk_limit_bytes) return;
  entry->file = options_.disk->Write(entry->salt, entry->tokens, entry->snapshot);
  entry->file_bytes = size;
  entry->writing = true;
  by_file_[entry->file] = entry;
  counts_.disk_bytes += size;
  ++num_disk_busy_;
}

bool PrefixTier::MakeRoomInQuota(const std::string& salt, int64_t size_bytes) {
  const int64_t quota = options_.quota ? options_.quota(salt).bytes : 0;
  if (quota == 0) return true;
  int64_t total = size_bytes;
  int64_t least = size_bytes;
  std::vector<Entry*> may_go;
  for (auto at = entries_.lower_bound(View{.salt = salt}); at != entries_.end() && (*at)->salt == salt; ++at) {
    if ((*at)->file == 0) continue;
    total += (*at)->file_bytes;
    if ((*at)->busy()) least += (*at)->file_bytes;
    if (!(*at)->busy()) may_go.push_back(at->get());
  }
  if (least > quota) return false;
  std::sort(may_go.begin(), may_go.end(), [](const Entry* a, const Entry* b) { return a->used < b->used; });
  for (auto oldest = may_go.begin(); total > quota; ++oldest) {
    total -= (*oldest)->file_bytes;
    ++counts_.disk_evictions;
    DropFile(*oldest);
  }
  return true;
}

void PrefixTier::DropTooOld(absl::Time now) {
  for (auto at = entries_.begin(); at != entries_.end();) {
    const std::string salt = (*at)->salt;
    const auto end = entries_.lower_bound(View{.salt = salt + '\0'});  // the next tenant's first
    const absl::Duration age = options_.quota(salt).age;
    if (age == absl::InfiniteDuration()) at = end;
    while (at != end) {
      Entry* const entry = (at++)->get();
      if (entry->file == 0 || entry->busy() || now - entry->used <= age) continue;
      ++counts_.disk_evictions;
      DropFile(entry);
    }
  }
}

FreedBytes PrefixTier::DropAll(std::optional<absl::string_view> salt) {
  FreedBytes freed;
  for (auto at = entries_.lower_bound(View{.salt = salt.value_or("")}); at != entries_.end();) {
    Entry* const entry = at->get();
    if (salt && entry->salt != *salt) break;
    ++at;
    if (entry->snapshot != nullptr) freed.host_tier += entry->snapshot_bytes;
    if (entry->file != 0) {
      freed.disk_tier += entry->file_bytes;
      options_.disk->Remove(entry->file);
      counts_.disk_bytes -= entry->file_bytes;
      if (entry->busy()) by_file_[entry->file] = nullptr;
      if (!entry->busy()) by_file_.erase(entry->file);
    }
    if (entry->reading) host_->prefix_bytes -= entry->snapshot_bytes;  // as was set aside for it
    Erase(entry);
  }
  return freed;
}

void PrefixTier::CallWhenGone(std::function<void(const absl::Status&)> done) {
  if (options_.disk == nullptr) return done(absl::OkStatus());
  options_.disk->Sync(std::move(done));
}

void PrefixTier::Poll(absl::Time now) {
  if (options_.quota && now >= next_look_) {
    next_look_ = now + kLookInterval;
    DropTooOld(now);
  }
  if (num_disk_busy_ == 0) return;
  for (PrefixDisk::Result& result : options_.disk->TakeResults()) {
    Entry* const entry = by_file_.at(result.id);
    --num_disk_busy_;
    CountError(result.status, result.written);
    if (entry == nullptr) {
      by_file_.erase(result.id);
      continue;
    }
    if (!result.status.ok()) {
      by_file_.erase(std::exchange(entry->file, 0));
      counts_.disk_bytes -= entry->file_bytes;
    }
    if (result.written) {
      entry->writing = false;
      if (!result.status.ok()) next_write_ = now + kPauseAfterFailedWrite;
      if (result.status.ok()) DropShorter(entry, Shorter::kAll);
    } else {
      OnRead(entry, &result);
    }
  }
}

void PrefixTier::OnRead(Entry* entry, PrefixDisk::Result* result) {
  entry->reading = false;
  host_->prefix_bytes -= entry->snapshot_bytes;  // as was set aside for it
  if (!result->status.ok()) return Erase(entry);
  if (!CheckPrefixSnapshot(cache_->plan(), *result->snapshot).ok() ||
      result->snapshot->num_tokens != entry->num_tokens()) {
    ++counts_.foreign_files;
    return DropFile(entry);
  }
  reads_.Add(entry->snapshot_bytes, result->time);
  entry->snapshot = std::move(result->snapshot);
  host_->prefix_bytes += entry->snapshot_bytes;
  MoveTo(kHost, entry);
}

void PrefixTier::CountError(const absl::Status& status, bool written) {
  if (status.ok()) return;
  if (!written) {
    ++(absl::IsDataLoss(status) ? counts_.torn_files : counts_.failed_reads);
  } else {
    ++(absl::IsResourceExhausted(status) ? counts_.full_disk : counts_.failed_writes);
  }
}

PrefixTier::Hit PrefixTier::Find(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t multiple,
                                 absl::Time now) {
  Hit hit;
  Hit used;  // wherever it is
  const auto consider = [&](Entry* entry) {
    if (entry->salt != salt) return;
    const int64_t num_tokens = CommonPrefix(entry->tokens, tokens) / multiple * multiple;
    if (num_tokens <= hit.num_tokens || !SnapshotServes(cache_->plan(), entry->num_tokens(), num_tokens)) return;
    if (num_tokens > used.num_tokens) used = {.entry = entry, .num_tokens = num_tokens};
    if (entry->place != kArena) hit = {.entry = entry, .num_tokens = num_tokens};
  };
  // The entries are sorted by salt and tokens, and those next to where a beginning would stand have most in common with
  // it. They may not serve it, for example with states. The next try is then a shorter beginning: what is in common
  // with the entry before, and at least one token less than that entry.
  absl::Span<const int32_t> rest = tokens;
  for (int i = 0; i<kMaxSteps&& static_cast<int64_t>(rest.size())> hit.num_tokens; ++i) {
    const auto next = entries_.upper_bound(View{.salt = salt, .tokens = rest});
    if (next != entries_.end()) consider(next->get());
    if (next == entries_.begin()) break;
    Entry* const before = std::prev(next)->get();
    if (before->salt != salt) break;
    consider(before);
    rest = rest.first(std::min(CommonPrefix(before->tokens, rest), before->num_tokens() - 1));
  }
  if (used.entry != nullptr) Touch(used.entry, now);
  if (hit.entry != nullptr && hit.entry != used.entry) Touch(hit.entry, now);
  return hit;
}

bool PrefixTier::WorthFetching(const Hit& hit, int64_t num_tokens) const {
  const bool here = hit.entry->snapshot != nullptr;
  return cost_->IsWorthCopying(PrefixLayout(cache_->plan(), hit.num_tokens).size_bytes, num_tokens,
                               here ? absl::ZeroDuration() : reads_.TimeFor(hit.entry->snapshot_bytes));
}

PrefixTier::Fetched PrefixTier::Fetch(Entry* entry) {
  if (entry->place == kHost) return Fetched::kHere;
  if (entry->reading) return Fetched::kComing;
  if (!MakeRoom(entry->snapshot_bytes)) return Fetched::kNoRoom;
  host_->prefix_bytes += entry->snapshot_bytes;
  entry->reading = true;
  ++num_disk_busy_;
  ++counts_.num_disk_reads;
  options_.disk->Read(entry->file);
  return Fetched::kComing;
}

const CacheSnapshot& PrefixTier::Pin(Entry* entry) {
  ++entry->pins;
  return *entry->snapshot;
}

void PrefixTier::Unpin(Entry* entry) { --entry->pins; }

void PrefixTier::OnRestored(int64_t num_tokens) {
  ++counts_.num_hits;
  counts_.restored_tokens += num_tokens;
}

bool PrefixTier::MakeRoom(int64_t size_bytes) {
  for (auto at = places_[kHost].begin(); at != places_[kHost].end() && host_->free_bytes() < size_bytes;) {
    Entry* const entry = *at++;
    if (entry->busy()) continue;
    ++counts_.host_evictions;
    DropSnapshot(entry);
  }
  return host_->free_bytes() >= size_bytes;
}

}  // namespace berth
