#include "server/storage/disk_tier.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/steady_clock.h"
#include "server/storage/prefix_file.h"

namespace berth {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kSuffix = ".prefix";
constexpr absl::string_view kTemporarySuffix = ".prefix.tmp";

absl::Status BadFolder(const std::string& folder, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("--disk_tier: ", folder, ": ", why));
}

// ReadFile sets the time of a file.
absl::Time LastUse(const std::string& path) {
  struct stat stat = {};
  if (::stat(path.c_str(), &stat) != 0) return absl::InfinitePast();
  return absl::TimeFromTimespec(stat.st_mtim);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(Options options) {
  auto tier = absl::WrapUnique(new DiskTier(std::move(options)));
  if (absl::Status s = tier->Lock(); !s.ok()) return s;
  if (absl::Status s = tier->Scan(); !s.ok()) return s;
  return tier;
}

absl::Status DiskTier::Lock() {
  if (absl::Status s = MakePrivateFolder(options_.folder); !s.ok()) return BadFolder(options_.folder, s.message());
  lock_ = std::make_unique<berth::File>(options_.folder + "/lock", O_RDWR | O_CREAT);
  if (lock_->fd() < 0) return BadFolder(options_.folder, std::strerror(errno));
  if (flock(lock_->fd(), LOCK_EX | LOCK_NB) == 0) return absl::OkStatus();
  return BadFolder(options_.folder, errno == EWOULDBLOCK ? "another server uses it" : std::strerror(errno));
}

absl::Status DiskTier::Scan() {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(options_.folder, error)) {
    const std::string path = entry.path().string();
    const std::string name = entry.path().filename().string();
    uint64_t id = 0;
    const bool temporary = absl::EndsWith(name, kTemporarySuffix);
    const absl::string_view number = absl::StripSuffix(name, temporary ? kTemporarySuffix : kSuffix);
    if (number.size() != 16 || number.size() == name.size() || !absl::SimpleHexAtoi(number, &id)) continue;
    last_id_ = std::max(last_id_, id);
    absl::StatusOr<PrefixFile> file = absl::DataLossError("of a write that a crash cut short");
    if (!temporary) file = ReadPrefixFile(path, options_.plan, /*snapshot=*/nullptr);
    const bool ours = file.ok() && file->identity == options_.identity;
    if (ours) {
      found_.files.push_back({.id = id,
                              .salt = std::move(file->salt),
                              .tokens = std::move(file->tokens),
                              .size_bytes = file->size_bytes,
                              .used = LastUse(path)});
      continue;
    }
    ++(absl::IsDataLoss(file.status()) ? found_.num_torn : found_.num_foreign);
    unlink(path.c_str());
  }
  if (error) return BadFolder(options_.folder, error.message());
  std::sort(found_.files.begin(), found_.files.end(),
            [](const PrefixDisk::File& a, const PrefixDisk::File& b) { return a.used < b.used; });
  if (found_.num_torn + found_.num_foreign > 0) {
    spdlog::warn("disk tier: removed {} torn files and {} of another model, cache or version from {}", found_.num_torn,
                 found_.num_foreign, options_.folder);
  }
  return absl::OkStatus();
}

std::string DiskTier::PathOf(uint64_t id) const {
  return absl::StrCat(options_.folder, "/", absl::Hex(id, absl::kZeroPad16), kSuffix);
}

int64_t DiskTier::FileBytes(absl::string_view salt, int64_t num_tokens, int64_t snapshot_bytes) const {
  return PrefixFileBytes(options_.identity, salt, num_tokens, snapshot_bytes);
}

uint64_t DiskTier::Write(absl::string_view salt, absl::Span<const int32_t> tokens,
                         std::shared_ptr<const CacheSnapshot> snapshot) {
  const uint64_t id = ++last_id_;
  queue_.Add([this, id, salt = std::string(salt), tokens = std::vector<int32_t>(tokens.begin(), tokens.end()),
              snapshot = std::move(snapshot)] {
    const absl::Time start = SteadyNow();
    absl::Status status = WriteFile(id, salt, tokens, *snapshot);
    // Every write to a full disk fails; the first line says it.
    if (!status.ok() && !std::exchange(failing_, true)) {
      spdlog::warn("disk tier: {}", std::string(status.message()));
    }
    if (status.ok()) failing_ = false;
    MutexLock lock(&mutex_);
    results_.push_back({.id = id, .written = true, .status = std::move(status), .time = SteadyNow() - start});
  });
  return id;
}

absl::Status DiskTier::WriteFile(uint64_t id, absl::string_view salt, absl::Span<const int32_t> tokens,
                                 const CacheSnapshot& snapshot) {
  const std::string path = PathOf(id);
  const std::string temporary = absl::StrCat(absl::StripSuffix(path, kSuffix), kTemporarySuffix);
  absl::Status status = WritePrefixFile(temporary, options_.identity, salt, tokens, snapshot);
  if (status.ok()) status = RenameOnDisk(temporary, path);
  if (!status.ok()) unlink(path.c_str());
  return status;
}

void DiskTier::Read(uint64_t id) {
  // Before the writes that wait: a request waits for it, and no file that is read is still to be written.
  queue_.AddFirst([this, id] {
    const absl::Time start = SteadyNow();
    absl::StatusOr<std::shared_ptr<CacheSnapshot>> snapshot = ReadFile(id);
    Result result = {.id = id, .status = snapshot.status(), .time = SteadyNow() - start};
    if (snapshot.ok()) {
      result.snapshot = *std::move(snapshot);
    } else {
      const bool removed = RemoveFile(id).ok();
      spdlog::warn("disk tier: {}; {}", std::string(result.status.message()),
                   removed ? "removed" : "cannot be removed");
    }
    MutexLock lock(&mutex_);
    results_.push_back(std::move(result));
  });
}

absl::StatusOr<std::shared_ptr<CacheSnapshot>> DiskTier::ReadFile(uint64_t id) {
  const std::string path = PathOf(id);
  auto snapshot = std::make_shared<CacheSnapshot>();
  const absl::StatusOr<PrefixFile> file = ReadPrefixFile(path, options_.plan, snapshot.get());
  if (!file.ok()) return file.status();
  if (file->identity != options_.identity) return absl::DataLossError(absl::StrCat(path, " belongs to another model"));
  utimensat(AT_FDCWD, path.c_str(), /*times=*/nullptr, /*flags=*/0);  // the next start knows that it was used
  return snapshot;
}

void DiskTier::Remove(uint64_t id) {
  queue_.Add([this, id] {
    if (const absl::Status s = RemoveFile(id); !s.ok()) spdlog::warn("disk tier: {}", std::string(s.message()));
  });
}

absl::Status DiskTier::RemoveFile(uint64_t id) {
  const std::string path = PathOf(id);
  if (unlink(path.c_str()) == 0 || errno == ENOENT) {
    unremoved_.erase(id);
    return absl::OkStatus();
  }
  unremoved_.insert(id);
  return absl::UnavailableError(DiskError("remove", path).message());
}

void DiskTier::Sync(std::function<void(const absl::Status&)> done) {
  queue_.Add([this, done = std::move(done)] {
    absl::Status status;
    for (const uint64_t id : std::vector<uint64_t>(unremoved_.begin(), unremoved_.end())) status.Update(RemoveFile(id));
    status.Update(SyncFolder(options_.folder));
    done(status);
  });
}

std::vector<PrefixDisk::Result> DiskTier::TakeResults() {
  MutexLock lock(&mutex_);
  return std::exchange(results_, {});
}

}  // namespace berth
