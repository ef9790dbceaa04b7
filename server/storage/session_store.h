// The sessions of --session_dir: one file for each, and the running requests that write them. The store's own thread
// does all reading and writing, so that neither the engine's thread nor gRPC's threads wait for the disk.
//
//   any thread                        engine's thread           the store's thread (queue_)
//
//   Begin     adds live_[key]         Take -> pending_[key] --> WritePending --> the file, and entries_[place]
//   Withdraw  removes it                    a newer save           |
//   Save      of a running session          replaces it            +--> after the last save, removes live_[key]
//             has the engine save it,                              +--> calls what was in live_[key].waiting
//             waits in live_[key].waiting
//   Load, Delete, Erase, Tick --------------------------------> Read, Remove, EraseNow, RemoveTooOld: the files of
//                                                               sessions that do not run
//
// A file is written under a temporary name, synced and renamed, and then the folder is synced. A crash therefore leaves
// the old file or the new one. A file that cannot be used stays as it is until its session is deleted or saved again.
//
// Each tenant has ids of its own (server/storage/session_id.h), so a session of another tenant is as one that does not
// exist. A tenant may have a quota: sessions grow too old, and the oldest make room for a new one. A file of the former
// layout gets its new name when its session is saved. A file whose header cannot be read has no tenant; the log names
// it.
//
// Thread-safe. Its destructor writes what was handed over. Only one process may use the folder at a time.
//
// If the disk is slow, a save that is handed over replaces the one of its session that is not yet being written. So at
// most one save of each session waits. While max_pending_bytes wait, the engine hands over last saves only.
//
// Invariants: used_bytes() is the size of the sessions' files, and at most the limit unless the files found at the
// start exceed it. A running session is in live_, from Begin until the engine's last hand-over is on the disk.
#ifndef BERTH_SERVER_STORAGE_SESSION_STORE_H_
#define BERTH_SERVER_STORAGE_SESSION_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "base/work_queue.h"
#include "berth/v1/session_file.pb.h"
#include "berth/v1/sessions.pb.h"
#include "scheduler/tiers/saver.h"
#include "server/storage/disk_file.h"
#include "server/storage/session_file.h"
#include "server/storage/session_id.h"
#include "server/storage/sessions.h"

namespace berth {

// What the sessions of one tenant may take.
struct SessionQuota {
  int64_t bytes = 0;                              // of their files; 0: no limit of its own
  absl::Duration age = absl::InfiniteDuration();  // since the last save
};

class SessionStore final : public Sessions {
 public:
  struct Options {
    std::string folder;  // created if missing
    int64_t limit_bytes = 0;
    // The tenant's quota; read for each save, and to find sessions that are too old.
    std::function<SessionQuota(const std::string& tenant)> quota = [](const std::string&) { return SessionQuota(); };
    int64_t max_pending_bytes = 1 << 30;          // of the saves that wait for the disk: see ready()
    std::function<absl::Time()> now = absl::Now;  // the wall clock, as that of files
    std::string model;                            // the model's fingerprint, which sessions must have
    // Called on the store's thread when a save of a request with deliver_saved_only has ended. The error names no path.
    std::function<void(const SaveEvent&)> on_save = [](const SaveEvent&) {};
  };

  // Reads the headers of the folder's sessions. FAILED_PRECONDITION naming the folder and what is wrong with it, such
  // as that another server uses it.
  static absl::StatusOr<std::unique_ptr<SessionStore>> Open(Options options);

  // The engine's thread.
  bool ready() const override;
  void Take(SavedRequest saved) override ABSL_LOCKS_EXCLUDED(pending_mutex_);

  // The header gets the model's fingerprint.
  absl::Status Begin(RequestKey key, v1::SessionFile header) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Withdraw(RequestKey key) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnEnded(RequestKey key) override ABSL_LOCKS_EXCLUDED(mutex_);

  void Save(const std::string& id, const std::string& tenant, const std::function<void(RequestKey)>& ask,
            SaveCallback done) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsAwaited(RequestKey key) const override ABSL_LOCKS_EXCLUDED(mutex_);
  void Load(const std::string& id, const std::string& tenant, LoadCallback done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Delete(const std::string& id, const std::string& tenant, DeleteCallback done) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::vector<v1::Session>> List(const std::string& tenant) const override ABSL_LOCKS_EXCLUDED(mutex_);
  void Erase(const std::string& tenant, EraseCallback done) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Tick() override ABSL_LOCKS_EXCLUDED(mutex_);
  SessionLoad stats() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A file.
  struct Entry {
    std::string file;    // its name
    std::string tenant;  // if its header could be read
    absl::Time saved;
    int64_t size_bytes = 0;
    int64_t output_tokens = 0;
    bool ended = false;
    absl::Status unreadable;  // why its header is not known
    bool damaged = false;     // it cannot be resumed
  };
  // A call of Save that waits for the disk.
  struct Waiter {
    int64_t num_taken = 0;  // saves that had been handed over when it came: a later one answers it
    SaveCallback done;
  };
  // A running session, until its last save has ended.
  struct Live {
    SessionPlace place;
    v1::SessionFile header;
    bool ended = false;  // its output has
    std::vector<Waiter> waiting;
  };
  // What was handed over, as the store's save of this number.
  struct Pending {
    SavedRequest saved;
    int64_t number = 0;
  };

  explicit SessionStore(Options options) : options_(std::move(options)) {}

  static absl::Status IsRunning(const std::string& id);
  // Keeps other servers out of the folder.
  absl::Status Lock();
  absl::Status Scan() ABSL_LOCKS_EXCLUDED(mutex_);
  void AddFile(const std::string& name, SessionPlace place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string PathOf(const std::string& file) const;
  // The status as clients may see it: without the path of the store's folder.
  absl::Status WithoutPath(const absl::Status& status) const {
    const std::string& folder = options_.folder;
    return {status.code(), absl::StrReplaceAll(status.message(), {{folder + "/", ""}, {folder, "--session_dir"}})};
  }
  template <typename T>
  absl::StatusOr<T> WithoutPath(absl::StatusOr<T> result) const {
    return result.ok() ? std::move(result) : WithoutPath(result.status());
  }
  // Called on the store's thread only.
  // Logs that a save failed, now and then.
  void WarnOf(const std::string& id, const absl::Status& status);
  // Writes what was handed over last under the key.
  void WritePending(RequestKey key) ABSL_LOCKS_EXCLUDED(mutex_, pending_mutex_);
  void Write(const Pending& pending) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes out the callers whom this save answers.
  static std::vector<Waiter> TakeAnswered(const Pending& pending, std::vector<Waiter>* waiting);
  void ReportSave(const SavedRequest& saved, const absl::Status& status) const;
  absl::Status WriteFile(const SessionPlace& place, const v1::SessionFile& file, const CacheSnapshot& snapshot)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<SessionFileContent> Read(const SessionPlace& place, const std::string& tenant)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Remove(const SessionPlace& place) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Erased> EraseNow(const std::string& tenant_hash) ABSL_LOCKS_EXCLUDED(mutex_);
  void RemoveTooOld() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the tenant's oldest sessions that have to go, the oldest first, so that its quota has room for `size_bytes`
  // at `place`. The first *num_before of them must go before, so that the folder's limit has room too.
  // RESOURCE_EXHAUSTED: there is no room without them either.
  absl::StatusOr<std::vector<SessionPlace>> FindRoom(const SessionPlace& place, const std::string& tenant,
                                                     int64_t size_bytes, size_t* num_before) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Deletes what has to go before a file of `size_bytes` at `place`, and returns what has to go once that is written.
  // RESOURCE_EXHAUSTED: there is no room.
  absl::StatusOr<std::vector<SessionPlace>> MakeRoom(const SessionPlace& place, const std::string& tenant,
                                                     int64_t size_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status DropForQuota(const SessionPlace& place) ABSL_LOCKS_EXCLUDED(mutex_);
  // Deletes the file of a session that does not run, and returns its size. The session is gone from the list meanwhile.
  absl::StatusOr<int64_t> Unlink(const SessionPlace& place) ABSL_LOCKS_EXCLUDED(mutex_);

  using Entries = std::map<SessionPlace, Entry>;
  // Whether there is such a session: DATA_LOSS, NOT_FOUND.
  absl::Status Check(const SessionPlace& place) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsTooOld(const Entry& entry) const;
  bool IsLive(const SessionPlace& place) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes it from live_, and returns it.
  Live Release(std::unordered_map<RequestKey, Live>::iterator live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::Session Describe(const SessionPlace& place) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::unique_ptr<File> lock_;

  std::atomic<int64_t> pending_bytes_{0};  // of saves that were handed over and are not yet written
  Mutex pending_mutex_;  // the engine's thread takes it; no lock is taken and no file touched under it
  std::unordered_map<RequestKey, Pending> pending_ ABSL_GUARDED_BY(pending_mutex_);  // not yet being written
  std::atomic<int64_t> num_taken_{0};                                                // saves that were handed over

  // When WarnOf last logged, and how many saves have failed since.
  absl::Time last_warning_ = absl::InfinitePast();
  int64_t unwarned_ = 0;

  mutable Mutex mutex_;
  absl::Time next_look_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();  // of Tick
  Entries entries_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<RequestKey, Live> live_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionPlace, RequestKey> live_keys_ ABSL_GUARDED_BY(mutex_);  // of live_: the newest of each place
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_saves_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_failed_saves_ ABSL_GUARDED_BY(mutex_) = 0;

  WorkQueue queue_;
};

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_SESSION_STORE_H_
