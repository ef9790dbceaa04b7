#include "server/storage/session_store.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "scheduler/steady_clock.h"
#include "server/storage/disk_file.h"
#include "server/storage/session_id.h"

namespace berth {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kSuffix = ".session";
constexpr absl::string_view kTemporarySuffix = ".session.tmp";
// Caches that may wait for the disk; while more do, the engine saves no other.
constexpr int64_t kMaxPendingBytes = 1 << 30;
// One request on a full disk fails to save hundreds of times a second.
constexpr absl::Duration kWarningInterval = absl::Seconds(10);

absl::Status IsRunning(const std::string& id) {
  return absl::FailedPreconditionError(absl::StrCat("session_id: \"", id, "\" is running"));
}

absl::Status BadFolder(const std::string& folder, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("--session_dir: ", folder, ": ", why));
}

}  // namespace

absl::Status SessionsAreOff() {
  return absl::FailedPreconditionError(
      "session_id: this server was started without --session_dir, so it has no sessions");
}

absl::StatusOr<std::unique_ptr<SessionStore>> SessionStore::Open(Options options) {
  auto store = absl::WrapUnique(new SessionStore(std::move(options)));
  if (absl::Status s = store->Lock(); !s.ok()) return s;
  if (absl::Status s = store->Scan(); !s.ok()) return s;
  return store;
}

absl::Status SessionStore::Lock() {
  std::error_code error;
  fs::create_directories(options_.folder, error);
  if (error) return BadFolder(options_.folder, error.message());
  lock_ = std::make_unique<File>(options_.folder + "/lock", O_RDWR | O_CREAT);
  if (lock_->fd() < 0) return BadFolder(options_.folder, std::strerror(errno));
  if (flock(lock_->fd(), LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  return BadFolder(options_.folder, errno == EWOULDBLOCK ? "another server uses it" : std::strerror(errno));
}

absl::Status SessionStore::Scan() {
  std::error_code error;
  std::vector<fs::path> paths;
  for (const fs::directory_entry& file : fs::directory_iterator(options_.folder, error)) {
    if (file.is_regular_file()) paths.push_back(file.path());  // opening a FIFO would wait for its writer
  }
  if (!error && access(options_.folder.c_str(), W_OK) != 0) error = std::error_code(errno, std::generic_category());
  if (error) return BadFolder(options_.folder, error.message());
  MutexLock lock(&mutex_);
  for (const fs::path& path : paths) {
    const std::string name = path.filename().string();
    if (absl::EndsWith(name, kTemporarySuffix)) fs::remove(path, error);  // a crash interrupted its write
    const std::string id(absl::StripSuffix(name, kSuffix));
    if (!absl::EndsWith(name, kSuffix) || !CheckSessionId("", id).ok()) continue;
    const absl::StatusOr<SessionFileContent> content = ReadSessionFile(path.string(), /*with_snapshot=*/false);
    Entry& entry = entries_[id];
    const auto size = fs::file_size(path, error);
    entry.size_bytes = error ? 0 : static_cast<int64_t>(size);
    used_bytes_ += entry.size_bytes;
    entry.unreadable = content.status();
    entry.damaged = absl::IsDataLoss(content.status());
    if (!content.ok()) {
      spdlog::warn("sessions: {}", std::string(content.status().message()));
      continue;
    }
    entry.tenant = content->file.request().cache_salt();
    entry.output_tokens = content->file.output_size();
    entry.ended = content->file.finish() != v1::FINISH_REASON_UNSPECIFIED;
  }
  return absl::OkStatus();
}

std::string SessionStore::PathOf(const std::string& id) const {
  return absl::StrCat(options_.folder, "/", id, kSuffix);
}

bool SessionStore::ready() const { return pending_bytes_.load(std::memory_order_relaxed) < kMaxPendingBytes; }

void SessionStore::Take(SavedRequest saved) {
  if (saved.progress.has_value()) pending_bytes_ += saved.progress->snapshot.size_bytes;
  // A std::function must be able to copy what it holds.
  queue_.Add([this, shared = std::make_shared<SavedRequest>(std::move(saved))] { Write(*shared); });
}

absl::Status SessionStore::Begin(RequestKey key, v1::SessionFile header) {
  const std::string id = header.request().session_id();
  const std::string tenant = header.request().cache_salt();
  MutexLock lock(&mutex_);
  if (IsLive(id)) return IsRunning(id);
  if (const absl::Status s = Check(id, tenant); !s.ok() && !absl::IsNotFound(s) && !absl::IsDataLoss(s)) {
    return s;
  }
  live_[key] = {.id = id, .header = std::move(header)};
  return absl::OkStatus();
}

void SessionStore::Withdraw(RequestKey key) {
  std::vector<SaveCallback> waiting;
  {
    MutexLock lock(&mutex_);
    const auto found = live_.find(key);
    if (found == live_.end()) return;
    waiting = std::move(found->second.waiting);
    live_.erase(found);
  }
  for (const SaveCallback& done : waiting) {
    done(absl::FailedPreconditionError("session_id: its request ended before it began"));
  }
}

absl::Status SessionStore::Check(const std::string& id, const std::string& tenant) const {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return absl::NotFoundError(absl::StrCat("session_id: there is no session \"", id, "\""));
  if (!found->second.unreadable.ok()) return found->second.unreadable;
  if (found->second.tenant != tenant) {
    return absl::PermissionDeniedError(absl::StrCat("session_id: \"", id, "\" belongs to another tenant"));
  }
  return absl::OkStatus();
}

bool SessionStore::IsLive(const std::string& id) const {
  return std::any_of(live_.begin(), live_.end(), [&](const auto& live) { return live.second.id == id; });
}

v1::Session SessionStore::Describe(const std::string& id) const {
  v1::Session session;
  session.set_session_id(id);
  session.set_running(IsLive(id));
  if (const auto found = entries_.find(id); found != entries_.end()) {
    session.set_size_bytes(found->second.size_bytes);
    session.set_output_tokens(found->second.output_tokens);
    session.set_ended(found->second.ended);
    session.set_damaged(found->second.damaged);
  }
  return session;
}

void SessionStore::Save(const std::string& id, const std::string& tenant, const std::function<void(RequestKey)>& ask,
                        SaveCallback done) {
  absl::StatusOr<v1::Session> answer;
  RequestKey key = 0;
  {
    MutexLock lock(&mutex_);
    const auto live = std::find_if(live_.begin(), live_.end(), [&](const auto& l) { return l.second.id == id; });
    if (live == live_.end()) {
      const absl::Status status = Check(id, tenant);
      answer = status.ok() ? absl::StatusOr<v1::Session>(Describe(id)) : status;
    } else if (live->second.header.request().cache_salt() != tenant) {
      answer = absl::PermissionDeniedError(absl::StrCat("session_id: \"", id, "\" belongs to another tenant"));
    } else {
      key = live->first;
      live->second.waiting.push_back(std::move(done));
    }
  }
  if (key != 0) {
    ask(key);
  } else {
    done(std::move(answer));
  }
}

void SessionStore::Load(const std::string& id, const std::string& tenant, LoadCallback done) {
  queue_.Add([this, id, tenant, done = std::move(done)] { done(Read(id, tenant)); });
}

void SessionStore::Delete(const std::string& id, const std::string& tenant, DeleteCallback done) {
  queue_.Add([this, id, tenant, done = std::move(done)] { done(Remove(id, tenant)); });
}

std::vector<v1::Session> SessionStore::List(const std::string& tenant) const {
  std::vector<v1::Session> sessions;
  MutexLock lock(&mutex_);
  for (const auto& [id, entry] : entries_) {
    const bool nobodys = entry.damaged && !entry.unreadable.ok();
    if (nobodys || (entry.unreadable.ok() && entry.tenant == tenant)) sessions.push_back(Describe(id));
  }
  return sessions;
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

void SessionStore::Write(const SavedRequest& saved) {
  std::string id;
  v1::SessionFile file;
  {
    MutexLock lock(&mutex_);
    const auto live = live_.find(saved.key);
    if (live == live_.end()) return;
    id = live->second.id;
    if (saved.progress.has_value()) file = live->second.header;
  }
  absl::Status status;
  if (saved.progress.has_value()) {
    SetProgress(*saved.progress, &file);
    status = WriteFile(id, file, saved.progress->snapshot);
    pending_bytes_ -= saved.progress->snapshot.size_bytes;
    if (!status.ok()) WarnOf(id, status);
  }
  std::vector<SaveCallback> waiting;
  v1::Session session;
  bool reported = false;
  {
    MutexLock lock(&mutex_);
    if (saved.progress.has_value()) ++(status.ok() ? num_saves_ : num_failed_saves_);
    const auto live = live_.find(saved.key);
    waiting.swap(live->second.waiting);
    reported = live->second.header.request().deliver_saved_only();
    if (saved.last) live_.erase(live);
    session = Describe(id);
  }
  if (reported) ReportSave(saved, status);
  if (!saved.progress.has_value()) {
    status = absl::AbortedError(absl::StrCat("session_id: \"", id, "\" ended before it could be saved"));
  }
  for (const SaveCallback& done : waiting) done(status.ok() ? absl::StatusOr<v1::Session>(session) : status);
}

void SessionStore::ReportSave(const SavedRequest& saved, const absl::Status& status) const {
  SaveEvent event;
  event.key = saved.key;
  event.last = saved.last;
  if (status.ok() && saved.progress.has_value()) event.num_tokens = static_cast<int64_t>(saved.progress->tokens.size());
  const std::string folder = options_.folder + "/";
  event.error = absl::Status(status.code(), absl::StrReplaceAll(status.message(), {{folder, ""}}));
  options_.on_save(event);
}

absl::Status SessionStore::WriteFile(const std::string& id, const v1::SessionFile& file,
                                     const CacheSnapshot& snapshot) {
  const int64_t size = SessionFileBytes(file, snapshot);
  {
    MutexLock lock(&mutex_);
    // The old file stays until the new one is whole.
    if (size > options_.limit_bytes - used_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat("a session of ", size, " bytes exceeds --session_dir_limit=",
                                                       options_.limit_bytes, ", of which ", used_bytes_, " are used"));
    }
  }
  const std::string temporary = absl::StrCat(options_.folder, "/", id, kTemporarySuffix);
  if (absl::Status s = WriteSessionFile(temporary, file, snapshot); !s.ok()) return s;
  if (std::rename(temporary.c_str(), PathOf(id).c_str()) != 0) {
    const std::string cause = std::strerror(errno);
    unlink(temporary.c_str());
    return absl::UnavailableError(absl::StrCat("cannot rename ", temporary, ": ", cause));
  }
  {
    MutexLock lock(&mutex_);
    Entry& entry = entries_[id];
    used_bytes_ += size - entry.size_bytes;
    entry = {.tenant = file.request().cache_salt(),
             .size_bytes = size,
             .output_tokens = file.output_size(),
             .ended = file.finish() != v1::FINISH_REASON_UNSPECIFIED};
  }
  return SyncFolder(options_.folder);
}

absl::StatusOr<SessionFileContent> SessionStore::Read(const std::string& id, const std::string& tenant) {
  {
    MutexLock lock(&mutex_);
    if (IsLive(id)) return IsRunning(id);
    if (absl::Status s = Check(id, tenant); !s.ok()) return s;
  }
  absl::StatusOr<SessionFileContent> content = ReadSessionFile(PathOf(id), /*with_snapshot=*/true);
  if (absl::IsDataLoss(content.status())) {
    MutexLock lock(&mutex_);
    if (const auto found = entries_.find(id); found != entries_.end()) found->second.damaged = true;
  }
  if (!content.ok()) return content.status();
  if (content->file.request().cache_salt() != tenant || content->file.request().session_id() != id) {
    return absl::PermissionDeniedError(
        absl::StrCat("session_id: \"", id, "\": the file belongs to another session or tenant"));
  }
  if (content->file.model() != options_.model) {
    return absl::FailedPreconditionError(absl::StrCat("session_id: \"", id,
                                                      "\" was saved by another model: ", content->file.model(),
                                                      "; this server's model is ", options_.model));
  }
  return content;
}

absl::Status SessionStore::Remove(const std::string& id, const std::string& tenant) {
  MutexLock lock(&mutex_);
  if (IsLive(id)) return IsRunning(id);
  if (absl::Status s = Check(id, tenant); !s.ok() && !absl::IsDataLoss(s)) return s;
  if (unlink(PathOf(id).c_str()) != 0 && errno != ENOENT) {
    return absl::UnavailableError(absl::StrCat("cannot delete ", PathOf(id), ": ", std::strerror(errno)));
  }
  used_bytes_ -= entries_[id].size_bytes;
  entries_.erase(id);
  return SyncFolder(options_.folder);
}

}  // namespace berth
