// How sessions go: deleted by their clients, for the room of others, or because they are too old. All on the store's
// thread, and no file is touched under the lock.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/storage/disk_file.h"
#include "server/storage/session_store.h"

namespace berth {

absl::StatusOr<std::vector<SessionPlace>> SessionStore::FindRoom(const SessionPlace& place, const std::string& tenant,
                                                                 int64_t size_bytes, size_t* num_before) const {
  const int64_t quota = options_.quota(tenant).bytes;
  int64_t total = size_bytes;  // of the tenant, with the new file in place of the old one
  std::vector<Entries::const_iterator> others;
  for (auto at = entries_.lower_bound({.tenant_hash = place.tenant_hash}); quota > 0 && at != entries_.end(); ++at) {
    if (at->first.tenant_hash != place.tenant_hash) break;
    if (at->first == place) continue;
    total += at->second.size_bytes;
    others.push_back(at);
  }
  if (total > quota) {
    std::erase_if(others, [this](auto other) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return IsLive(other->first); });
    std::sort(others.begin(), others.end(), [](auto a, auto b) { return a->second.saved < b->second.saved; });
  }
  int64_t left = options_.limit_bytes - used_bytes_;  // the old file stays until the new one is whole
  std::vector<SessionPlace> going;
  *num_before = 0;
  for (auto entry = others.begin(); quota > 0 && total > quota && entry != others.end(); ++entry) {
    total -= (*entry)->second.size_bytes;
    going.push_back((*entry)->first);
    if (size_bytes <= left) continue;
    left += (*entry)->second.size_bytes;
    *num_before = going.size();
  }
  if (quota > 0 && total > quota) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a session of ", size_bytes, " bytes exceeds session_bytes=", quota,
                     " of its tenant, whose other running sessions have ", total - size_bytes));
  }
  if (size_bytes <= left) return going;
  return absl::ResourceExhaustedError(absl::StrCat("a session of ", size_bytes, " bytes exceeds --session_dir_limit=",
                                                   options_.limit_bytes, ": ", used_bytes_, " bytes are in use"));
}

absl::StatusOr<int64_t> SessionStore::Unlink(const SessionPlace& place) {
  Entries::node_type entry;
  {
    MutexLock lock(&mutex_);
    if (IsLive(place)) return IsRunning(place.id);
    entry = entries_.extract(place);
  }
  if (entry.empty()) return 0;
  const std::string path = PathOf(entry.mapped().file);
  const bool gone = unlink(path.c_str()) == 0 || errno == ENOENT;
  const std::string cause = std::strerror(errno);
  const int64_t bytes = entry.mapped().size_bytes;
  MutexLock lock(&mutex_);
  if (!gone) {
    entries_.insert(std::move(entry));
    return absl::UnavailableError(absl::StrCat("cannot delete ", path, ": ", cause));
  }
  used_bytes_ -= bytes;
  return bytes;
}

absl::Status SessionStore::Remove(const SessionPlace& place) {
  {
    MutexLock lock(&mutex_);
    if (IsLive(place)) return IsRunning(place.id);
    if (absl::Status s = Check(place); !s.ok() && !absl::IsDataLoss(s)) return s;
  }
  if (absl::Status s = Unlink(place).status(); !s.ok()) return s;
  return SyncFolder(options_.folder);
}

absl::StatusOr<SessionStore::Erased> SessionStore::EraseNow(const std::string& tenant_hash) {
  std::vector<SessionPlace> places;
  {
    MutexLock lock(&mutex_);
    for (auto at = entries_.lower_bound({.tenant_hash = tenant_hash}); at != entries_.end(); ++at) {
      if (at->first.tenant_hash != tenant_hash) break;
      places.push_back(at->first);
    }
  }
  Erased erased;
  absl::Status status;
  for (const SessionPlace& place : places) {
    const absl::StatusOr<int64_t> bytes = Unlink(place);
    status.Update(bytes.status());
    if (!bytes.ok()) continue;
    ++erased.num_sessions;
    erased.bytes += *bytes;
  }
  {
    MutexLock lock(&mutex_);
    for (const auto& [key, live] : live_) {
      if (live.place.tenant_hash == tenant_hash) status.Update(IsRunning(live.place.id));  // it may have no file yet
    }
  }
  status.Update(SyncFolder(options_.folder));
  if (!status.ok()) return status;
  return erased;
}

void SessionStore::RemoveTooOld() {
  std::vector<SessionPlace> places;
  {
    MutexLock lock(&mutex_);
    for (const auto& [place, entry] : entries_) {
      if (IsTooOld(entry) && !IsLive(place)) places.push_back(place);
    }
  }
  int64_t num_removed = 0;
  for (const SessionPlace& place : places) {
    const absl::StatusOr<int64_t> bytes = Unlink(place);
    if (!bytes.ok()) spdlog::warn("sessions: {}", std::string(bytes.status().message()));
    num_removed += bytes.ok() ? 1 : 0;
  }
  if (num_removed > 0) spdlog::info("sessions: deleted {} that were older than session_age_seconds", num_removed);
}

}  // namespace berth
