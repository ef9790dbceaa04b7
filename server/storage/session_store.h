// The sessions of --session_dir: a file each, and the requests under way that write them. A thread of its own does all
// reading and writing: neither the engine's thread nor gRPC's ever wait for the disk.
//
// A file is written under a temporary name, synced, renamed, and the folder synced: a crash leaves the old file or the
// new one. A file that is refused, whatever for, stays as it is until its session is deleted or saved anew.
//
// Thread-safe. Outlives the engine, whose SaveSink it is; its destructor writes what was handed over. The folder has
// one user at a time.
//
// Invariants: used_bytes() is what the sessions' files take, and at most the limit but for files found at the start; a
// session under way is in live_, from Begin until the engine's last hand-over is on the disk.
#ifndef BERTH_SERVER_STORAGE_SESSION_STORE_H_
#define BERTH_SERVER_STORAGE_SESSION_STORE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "berth/v1/session_file.pb.h"
#include "berth/v1/sessions.pb.h"
#include "scheduler/mutex.h"
#include "scheduler/saver.h"
#include "server/api/validation.h"
#include "server/metrics/load_metrics.h"
#include "server/storage/work_queue.h"

namespace berth {

class SessionStore final : public SaveSink {
 public:
  struct Options {
    std::string folder;  // made where it does not exist
    int64_t limit_bytes = 0;
    std::string model;  // the fingerprint that sessions must carry
  };
  using SaveCallback = std::function<void(absl::StatusOr<v1::Session>)>;
  using LoadCallback = std::function<void(absl::StatusOr<ValidatedRequest>)>;
  using DeleteCallback = std::function<void(absl::Status)>;

  // Reads the headers of the sessions that are there. FAILED_PRECONDITION naming the folder and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<SessionStore>> Open(Options options);

  // The engine's thread.
  bool ready() const override;
  void Take(SavedRequest saved) override ABSL_LOCKS_EXCLUDED(mutex_);

  // A request that is to be submitted with this key belongs to the session from now on. FAILED_PRECONDITION: the
  // session is under way, or its file is of another version; PERMISSION_DENIED: it is another tenant's. A file that is
  // damaged is taken the place of.
  absl::Status Begin(RequestKey key, v1::SessionFile header) ABSL_LOCKS_EXCLUDED(mutex_);
  // The engine refused it.
  void Withdraw(RequestKey key) ABSL_LOCKS_EXCLUDED(mutex_);

  // The codes of sessions.proto. Callbacks come once, from this call or from the store's thread. `ask` is called with
  // the key of a session under way, and must have the engine save it.
  void Save(const std::string& id, const std::string& tenant, const std::function<void(RequestKey)>& ask,
            SaveCallback done) ABSL_LOCKS_EXCLUDED(mutex_);
  void Load(const std::string& id, const std::string& tenant, LoadCallback done) ABSL_LOCKS_EXCLUDED(mutex_);
  void Delete(const std::string& id, const std::string& tenant, DeleteCallback done) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<v1::Session> List(const std::string& tenant) const ABSL_LOCKS_EXCLUDED(mutex_);

  SessionLoad stats() const ABSL_LOCKS_EXCLUDED(mutex_);
  const std::string& model() const { return options_.model; }

 private:
  // A file.
  struct Entry {
    std::string tenant;
    int64_t size_bytes = 0;
    int64_t output_tokens = 0;
    bool ended = false;
    absl::Status unreadable;  // why nobody can say whose it is
    bool damaged = false;     // it cannot be resumed
  };
  // A session under way.
  struct Live {
    std::string id;
    v1::SessionFile header;
    std::vector<SaveCallback> waiting;
  };

  explicit SessionStore(Options options) : options_(std::move(options)) {}

  absl::Status Scan();
  std::string PathOf(const std::string& id) const;
  // The methods below are the store's thread's.
  void Write(const SavedRequest& saved) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status WriteFile(const std::string& id, const v1::SessionFile& file, const CacheImage& image)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<ValidatedRequest> Read(const std::string& id, const std::string& tenant) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Remove(const std::string& id, const std::string& tenant) ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether the tenant has such a session: PERMISSION_DENIED, DATA_LOSS, NOT_FOUND.
  absl::Status Check(const std::string& id, const std::string& tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsLive(const std::string& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::Session Describe(const std::string& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  std::atomic<int64_t> pending_bytes_{0};  // of caches handed over and not yet written

  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by id
  std::unordered_map<RequestKey, Live> live_ ABSL_GUARDED_BY(mutex_);
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_saves_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_failed_saves_ ABSL_GUARDED_BY(mutex_) = 0;

  WorkQueue queue_;
};

// 1 to 128 of A-Z a-z 0-9 . _ -, the first no dot: it is a file's name. INVALID_ARGUMENT naming the field.
absl::Status CheckSessionId(absl::string_view field, absl::string_view id);
// What is answered where there is no store.
absl::Status SessionsAreOff();

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_SESSION_STORE_H_
