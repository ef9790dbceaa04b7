#include "server/storage/session_store.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/steady_clock.h"
#include "server/storage/disk_file.h"
#include "server/storage/session_id.h"

namespace berth {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kTemporary = ".tmp";
constexpr absl::string_view kTemporarySuffix = ".session.tmp";
// One request on a full disk fails to save hundreds of times a second.
constexpr absl::Duration kWarningInterval = absl::Seconds(10);
// How often to look for sessions that are too old. A request finds none of those anyway.
constexpr absl::Duration kLookInterval = absl::Minutes(1);

SessionPlace PlaceOf(const std::string& tenant, const std::string& id) {
  return {.tenant_hash = TenantHash(tenant), .id = id};
}

// The memory that the save takes.
int64_t BytesOf(const SavedRequest& saved) {
  if (!saved.progress.has_value()) return 0;
  const Progress& progress = *saved.progress;
  int64_t bytes = progress.snapshot.size_bytes + static_cast<int64_t>(progress.tokens.size() * sizeof(int32_t));
  for (const OutputLogprobs& entry : progress.logprobs) {
    bytes += static_cast<int64_t>(sizeof(entry) + entry.top.size() * sizeof(entry.top[0]));
  }
  return bytes;
}

absl::Status BadFolder(const std::string& folder, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("--session_dir: ", folder, ": ", why));
}

}  // namespace

absl::Status SessionStore::IsRunning(const std::string& id) {
  return absl::FailedPreconditionError(absl::StrCat("session_id: \"", id, "\" is running"));
}

absl::StatusOr<std::unique_ptr<SessionStore>> SessionStore::Open(Options options) {
  auto store = absl::WrapUnique(new SessionStore(std::move(options)));
  if (absl::Status s = store->Lock(); !s.ok()) return s;
  if (absl::Status s = store->Scan(); !s.ok()) return s;
  return store;
}

absl::Status SessionStore::Lock() {
  if (absl::Status s = MakePrivateFolder(options_.folder); !s.ok()) return BadFolder(options_.folder, s.message());
  lock_ = std::make_unique<File>(options_.folder + "/lock", O_RDWR | O_CREAT);
  if (lock_->fd() < 0) return BadFolder(options_.folder, std::strerror(errno));
  if (flock(lock_->fd(), LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  return BadFolder(options_.folder, errno == EWOULDBLOCK ? "another server uses it" : std::strerror(errno));
}

absl::Status SessionStore::Scan() {
  std::error_code error;
  std::vector<std::pair<std::string, SessionPlace>> names;
  for (const fs::directory_entry& file : fs::directory_iterator(options_.folder, error)) {
    if (!file.is_regular_file()) continue;  // opening a FIFO would wait for its writer
    const std::string name = file.path().filename().string();
    std::error_code ignored;
    if (absl::EndsWith(name, kTemporarySuffix)) fs::remove(file.path(), ignored);  // a crash interrupted its write
    if (std::optional<SessionPlace> place = ReadSessionFileName(name)) names.emplace_back(name, *std::move(place));
  }
  if (!error && access(options_.folder.c_str(), W_OK) != 0) error = std::error_code(errno, std::generic_category());
  if (error) return BadFolder(options_.folder, error.message());
  // Files of the former layout come last: a crash may have left both files of a session, and the other is newer.
  std::stable_partition(names.begin(), names.end(), [](const auto& name) { return !name.second.tenant_hash.empty(); });
  MutexLock lock(&mutex_);
  for (auto& [name, place] : names) AddFile(name, std::move(place));
  return absl::OkStatus();
}

void SessionStore::AddFile(const std::string& name, SessionPlace place) {
  const std::string path = PathOf(name);
  struct stat stat = {};
  if (::stat(path.c_str(), &stat) != 0) return;
  used_bytes_ += stat.st_size;
  absl::StatusOr<SessionFileContent> content = ReadSessionFile(path, /*with_snapshot=*/false);
  const bool former = place.tenant_hash.empty();
  if (content.ok()) {
    const v1::GenerateRequest& request = content->file.request();
    const std::string hash = TenantHash(request.cache_salt());
    if (request.session_id() != place.id || (!former && hash != place.tenant_hash)) {
      content = absl::DataLossError(absl::StrCat(path, " is torn: its header names another session"));
    } else {
      place.tenant_hash = hash;
    }
  }
  if (!content.ok()) {
    spdlog::warn("sessions: {}{}", std::string(content.status().message()),
                 former ? "; its tenant is unknown, so no client can delete it" : "");
    if (former) return;
  }
  const auto [entry, added] = entries_.try_emplace(std::move(place));
  if (!added) {
    used_bytes_ -= stat.st_size;
    unlink(path.c_str());
    return;
  }
  entry->second = {.file = name,
                   .saved = absl::TimeFromTimespec(stat.st_mtim),
                   .size_bytes = stat.st_size,
                   .unreadable = content.status(),
                   .damaged = absl::IsDataLoss(content.status())};
  if (!content.ok()) return;
  entry->second.tenant = content->file.request().cache_salt();
  entry->second.output_tokens = content->file.output_size();
  entry->second.ended = content->file.finish() != v1::FINISH_REASON_UNSPECIFIED;
}

std::string SessionStore::PathOf(const std::string& file) const { return absl::StrCat(options_.folder, "/", file); }

bool SessionStore::ready() const { return pending_bytes_.load(std::memory_order_relaxed) < options_.max_pending_bytes; }

void SessionStore::Take(SavedRequest saved) {
  const RequestKey key = saved.key;
  const int64_t size_bytes = BytesOf(saved);
  SavedRequest replaced;  // freed without the lock
  {
    MutexLock lock(&pending_mutex_);
    const auto [found, is_new] = pending_.try_emplace(key);
    Pending& pending = found->second;
    if (!is_new && !saved.progress.has_value()) {
      pending.saved.last |= saved.last;  // what was handed over before stands
      return;
    }
    replaced = std::exchange(pending.saved, std::move(saved));
    pending.number = num_taken_.fetch_add(1) + 1;
    pending_bytes_ += size_bytes - BytesOf(replaced);
    if (!is_new) return;
  }
  queue_.Add([this, key] { WritePending(key); });
}

absl::Status SessionStore::Begin(RequestKey key, v1::SessionFile header) {
  SessionPlace place = PlaceOf(header.request().cache_salt(), header.request().session_id());
  MutexLock lock(&mutex_);
  if (const auto live = live_keys_.find(place); live != live_keys_.end() && !live_[live->second].ended) {
    return IsRunning(place.id);
  }
  if (const absl::Status s = Check(place); !s.ok() && !absl::IsNotFound(s) && !absl::IsDataLoss(s)) {
    return WithoutPath(s);
  }
  header.set_model(options_.model);
  live_keys_[place] = key;
  live_[key] = {.place = std::move(place), .header = std::move(header)};
  return absl::OkStatus();
}

void SessionStore::Withdraw(RequestKey key) {
  std::vector<Waiter> waiting;
  {
    MutexLock lock(&mutex_);
    const auto found = live_.find(key);
    if (found == live_.end()) return;
    waiting = Release(found).waiting;
  }
  for (const Waiter& waiter : waiting) {
    waiter.done(absl::FailedPreconditionError("session_id: its request ended before it began"));
  }
}

void SessionStore::OnEnded(RequestKey key) {
  MutexLock lock(&mutex_);
  if (const auto live = live_.find(key); live != live_.end()) live->second.ended = true;
}

SessionStore::Live SessionStore::Release(std::unordered_map<RequestKey, Live>::iterator live) {
  Live released = std::move(live_.extract(live).mapped());
  const auto newest = live_keys_.find(released.place);
  if (newest == live_keys_.end() || live_.contains(newest->second)) return released;
  live_keys_.erase(newest);
  // Others that ended before this one began may have their last saves before them.
  for (const auto& [key, other] : live_) {
    if (!(other.place == released.place)) continue;
    RequestKey& last = live_keys_[other.place];
    last = std::max(last, key);
  }
  return released;
}

absl::Status SessionStore::Check(const SessionPlace& place) const {
  const auto found = entries_.find(place);
  if (found == entries_.end() || IsTooOld(found->second)) {
    return absl::NotFoundError(absl::StrCat("session_id: there is no session \"", place.id, "\""));
  }
  return found->second.unreadable;
}

bool SessionStore::IsTooOld(const Entry& entry) const {
  return entry.unreadable.ok() && options_.now() - entry.saved > options_.quota(entry.tenant).age;
}

bool SessionStore::IsLive(const SessionPlace& place) const { return live_keys_.contains(place); }

v1::Session SessionStore::Describe(const SessionPlace& place) const {
  v1::Session session;
  session.set_session_id(place.id);
  session.set_running(IsLive(place));
  if (const auto found = entries_.find(place); found != entries_.end()) {
    session.set_size_bytes(found->second.size_bytes);
    session.set_output_tokens(found->second.output_tokens);
    session.set_ended(found->second.ended);
    session.set_damaged(found->second.damaged);
  }
  return session;
}

void SessionStore::Save(const std::string& id, const std::string& tenant, const std::function<void(RequestKey)>& ask,
                        SaveCallback done) {
  const SessionPlace place = PlaceOf(tenant, id);
  absl::StatusOr<v1::Session> answer;
  RequestKey key = 0;
  {
    MutexLock lock(&mutex_);
    const auto live = live_keys_.find(place);
    if (live == live_keys_.end()) {
      const absl::Status status = Check(place);
      answer = status.ok() ? absl::StatusOr<v1::Session>(Describe(place)) : WithoutPath(status);
    } else {
      key = live->second;
      live_[key].waiting.push_back({num_taken_.load(), std::move(done)});
    }
  }
  if (key != 0) {
    ask(key);
  } else {
    done(std::move(answer));
  }
}

bool SessionStore::IsAwaited(RequestKey key) const {
  MutexLock lock(&mutex_);
  const auto live = live_.find(key);
  return live != live_.end() && !live->second.waiting.empty();
}

void SessionStore::Load(const std::string& id, const std::string& tenant, LoadCallback done) {
  queue_.Add(
      [this, place = PlaceOf(tenant, id), tenant, done = std::move(done)] { done(WithoutPath(Read(place, tenant))); });
}

void SessionStore::Delete(const std::string& id, const std::string& tenant, DeleteCallback done) {
  queue_.Add([this, place = PlaceOf(tenant, id), done = std::move(done)] { done(WithoutPath(Remove(place))); });
}

absl::StatusOr<std::vector<v1::Session>> SessionStore::List(const std::string& tenant) const {
  const std::string hash = TenantHash(tenant);
  std::vector<v1::Session> sessions;
  MutexLock lock(&mutex_);
  for (auto at = entries_.lower_bound({.tenant_hash = hash}); at != entries_.end(); ++at) {
    const auto& [place, entry] = *at;
    if (place.tenant_hash != hash) break;
    if (!IsTooOld(entry) && (entry.unreadable.ok() || entry.damaged)) sessions.push_back(Describe(place));
  }
  return sessions;
}

void SessionStore::Erase(const std::string& tenant, EraseCallback done) {
  queue_.Add([this, hash = TenantHash(tenant), done = std::move(done)] { done(WithoutPath(EraseNow(hash))); });
}

void SessionStore::Tick() {
  const absl::Time now = options_.now();
  {
    MutexLock lock(&mutex_);
    if (now < next_look_) return;
    next_look_ = now + kLookInterval;
  }
  queue_.Add([this] { RemoveTooOld(); });
}

SessionLoad SessionStore::stats() const {
  MutexLock lock(&mutex_);
  return {.used_bytes = used_bytes_,
          .limit_bytes = options_.limit_bytes,
          .num_saves = num_saves_,
          .num_failed_saves = num_failed_saves_};
}

void SessionStore::WarnOf(const std::string& id, const absl::Status& status) {
  const absl::Time now = SteadyNow();
  if (now - last_warning_ < kWarningInterval) {
    ++unwarned_;
    return;
  }
  spdlog::warn("sessions: \"{}\" was not saved: {}{}", id, std::string(status.message()),
               unwarned_ > 0 ? absl::StrCat("; ", unwarned_, " earlier saves failed too") : "");
  last_warning_ = now;
  unwarned_ = 0;
}

void SessionStore::WritePending(RequestKey key) {
  Pending pending;
  {
    MutexLock lock(&pending_mutex_);
    pending = std::move(pending_.extract(key).mapped());
  }
  Write(pending);
  pending_bytes_ -= BytesOf(pending.saved);
}

std::vector<SessionStore::Waiter> SessionStore::TakeAnswered(const Pending& pending, std::vector<Waiter>* waiting) {
  const auto later = std::stable_partition(waiting->begin(), waiting->end(), [&](const Waiter& waiter) {
    return pending.saved.last || waiter.num_taken < pending.number;
  });
  std::vector<Waiter> answered(std::make_move_iterator(waiting->begin()), std::make_move_iterator(later));
  waiting->erase(waiting->begin(), later);
  return answered;
}

void SessionStore::Write(const Pending& pending) {
  const SavedRequest& saved = pending.saved;
  SessionPlace place;
  v1::SessionFile file;
  {
    MutexLock lock(&mutex_);
    const auto live = live_.find(saved.key);
    if (live == live_.end()) return;
    place = live->second.place;
    if (saved.progress.has_value()) file = live->second.header;
  }
  absl::Status status;
  if (saved.progress.has_value()) {
    SetProgress(*saved.progress, &file);
    status = WriteFile(place, file, saved.progress->snapshot);
    if (!status.ok()) WarnOf(place.id, status);
  }
  std::vector<Waiter> answered;
  v1::Session session;
  bool reported = false;
  {
    MutexLock lock(&mutex_);
    if (saved.progress.has_value()) ++(status.ok() ? num_saves_ : num_failed_saves_);
    const auto live = live_.find(saved.key);
    answered = TakeAnswered(pending, &live->second.waiting);
    reported = live->second.header.request().deliver_saved_only();
    if (saved.last) Release(live);
    session = Describe(place);
  }
  if (reported) ReportSave(saved, status);
  if (!saved.progress.has_value()) {
    status = absl::AbortedError(absl::StrCat("session_id: \"", place.id, "\" ended before it could be saved"));
  }
  for (const Waiter& waiter : answered) {
    // Each gets a status of its own: none shares its memory with this thread.
    if (status.ok()) {
      waiter.done(session);
    } else {
      waiter.done(WithoutPath(status));
    }
  }
}

void SessionStore::ReportSave(const SavedRequest& saved, const absl::Status& status) const {
  SaveEvent event;
  event.key = saved.key;
  event.last = saved.last;
  if (status.ok() && saved.progress.has_value()) event.num_tokens = static_cast<int64_t>(saved.progress->tokens.size());
  event.error = WithoutPath(status);
  options_.on_save(event);
}

absl::Status SessionStore::DropForQuota(const SessionPlace& place) {
  const absl::Status status = Unlink(place).status();
  if (status.ok()) spdlog::info("sessions: deleted \"{}\", the oldest of a tenant over its session_bytes", place.id);
  return status;
}

absl::StatusOr<std::vector<SessionPlace>> SessionStore::MakeRoom(const SessionPlace& place, const std::string& tenant,
                                                                 int64_t size_bytes) {
  absl::Status dropped;
  do {
    absl::StatusOr<std::vector<SessionPlace>> going;
    size_t num_before = 0;
    {
      MutexLock lock(&mutex_);
      going = FindRoom(place, tenant, size_bytes, &num_before);
    }
    if (!going.ok()) return going.status();
    dropped = absl::OkStatus();
    for (size_t i = 0; i < num_before && dropped.ok(); ++i) dropped = DropForQuota((*going)[i]);
    if (dropped.ok()) return std::vector<SessionPlace>(going->begin() + num_before, going->end());
  } while (absl::IsFailedPrecondition(dropped));  // that one has begun to run meanwhile
  return dropped;
}

absl::Status SessionStore::WriteFile(const SessionPlace& place, const v1::SessionFile& file,
                                     const CacheSnapshot& snapshot) {
  const int64_t size = SessionFileBytes(file, snapshot);
  const absl::StatusOr<std::vector<SessionPlace>> going = MakeRoom(place, file.request().cache_salt(), size);
  if (!going.ok()) return going.status();
  const std::string name = SessionFileName(place);
  const std::string temporary = PathOf(absl::StrCat(name, kTemporary));
  if (absl::Status s = WriteSessionFile(temporary, file, snapshot); !s.ok()) return s;
  if (std::rename(temporary.c_str(), PathOf(name).c_str()) != 0) {
    const absl::Cleanup remove = [&] { unlink(temporary.c_str()); };
    return absl::UnavailableError(absl::StrCat("cannot rename ", temporary, ": ", std::strerror(errno)));
  }
  std::string former;
  {
    MutexLock lock(&mutex_);
    Entry& entry = entries_[place];
    used_bytes_ += size - entry.size_bytes;
    if (entry.file != name) former = entry.file;
    entry = {.file = name,
             .tenant = file.request().cache_salt(),
             .saved = options_.now(),
             .size_bytes = size,
             .output_tokens = file.output_size(),
             .ended = file.finish() != v1::FINISH_REASON_UNSPECIFIED};
  }
  absl::Status synced = SyncFolder(options_.folder);
  if (synced.ok() && !former.empty()) unlink(PathOf(former).c_str());
  // The new file is there, whatever becomes of the others.
  for (const SessionPlace& other : *going) {
    if (absl::Status s = DropForQuota(other); !s.ok()) spdlog::warn("sessions: {}", std::string(s.message()));
  }
  if (synced.ok() && !going->empty()) synced = SyncFolder(options_.folder);
  return synced;
}

absl::StatusOr<SessionFileContent> SessionStore::Read(const SessionPlace& place, const std::string& tenant) {
  std::string path;
  {
    MutexLock lock(&mutex_);
    if (IsLive(place)) return IsRunning(place.id);
    if (absl::Status s = Check(place); !s.ok()) return s;
    path = PathOf(entries_[place].file);
  }
  absl::StatusOr<SessionFileContent> content = ReadSessionFile(path, /*with_snapshot=*/true);
  if (content.ok()) {
    const v1::GenerateRequest& request = content->file.request();
    if (request.cache_salt() != tenant || request.session_id() != place.id) {
      content = absl::DataLossError(absl::StrCat(path, " is torn: its header names another session"));
    }
  }
  if (absl::IsDataLoss(content.status())) {
    MutexLock lock(&mutex_);
    if (const auto found = entries_.find(place); found != entries_.end()) found->second.damaged = true;
  }
  if (!content.ok()) return content.status();
  if (content->file.model() != options_.model) {
    return absl::FailedPreconditionError(absl::StrCat(
        "session_id: \"", place.id, "\" was saved by another model, or with flags that change its output: ",
        content->file.model(), "; this server's model is ", options_.model));
  }
  return content;
}

}  // namespace berth
