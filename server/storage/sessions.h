// What a server does with sessions: requests that outlive their calls and the process. SessionStore keeps them in
// files; NoSessions is the one of a server without --session_dir.
#ifndef BERTH_SERVER_STORAGE_SESSIONS_H_
#define BERTH_SERVER_STORAGE_SESSIONS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "berth/v1/session_file.pb.h"
#include "berth/v1/sessions.pb.h"
#include "scheduler/tiers/saver.h"
#include "server/storage/session_file.h"

namespace berth {

// Files of saved sessions. All 0 without --session_dir.
struct SessionLoad {
  int64_t used_bytes = 0;
  int64_t limit_bytes = 0;
  int64_t num_saves = 0;  // since start
  int64_t num_failed_saves = 0;
};

// Thread-safe. Outlives the engine, whose SaveSink it is. Errors are those of sessions.proto, and name no path of the
// server. A callback is called once, before its call returns or on another thread.
class Sessions : public SaveSink {
 public:
  using SaveCallback = std::function<void(absl::StatusOr<v1::Session>)>;
  using LoadCallback = std::function<void(absl::StatusOr<SessionFileContent>)>;
  using DeleteCallback = std::function<void(absl::Status)>;
  struct Erased {
    int64_t num_sessions = 0;
    int64_t bytes = 0;
  };
  using EraseCallback = std::function<void(absl::StatusOr<Erased>)>;

  // Ties the session to the request that will be submitted with this key. FAILED_PRECONDITION: the session is running,
  // or its file has another version. A damaged file is replaced.
  virtual absl::Status Begin(RequestKey key, v1::SessionFile header) = 0;
  // Undoes Begin: the engine did not take the request. Calls that wait for a Save get FAILED_PRECONDITION. Does nothing
  // without a Begin.
  virtual void Withdraw(RequestKey key) = 0;
  // The request's output has ended, and its client may know it: another request may begin with the session's id, though
  // the last save is still to come. Does nothing without a Begin.
  virtual void OnEnded(RequestKey key) = 0;

  // `ask` gets the key of a running session, and must make the engine save it.
  virtual void Save(const std::string& id, const std::string& tenant, const std::function<void(RequestKey)>& ask,
                    SaveCallback done) = 0;
  // Whether a call waits for a save of the request's session. One that came before the engine knew the request was in
  // vain, and has to be asked for again.
  virtual bool IsAwaited(RequestKey key) const = 0;
  virtual void Load(const std::string& id, const std::string& tenant, LoadCallback done) = 0;
  virtual void Delete(const std::string& id, const std::string& tenant, DeleteCallback done) = 0;
  virtual absl::StatusOr<std::vector<v1::Session>> List(const std::string& tenant) const = 0;
  // Deletes all of the tenant's sessions. FAILED_PRECONDITION: one of them is running; the others are gone.
  virtual void Erase(const std::string& tenant, EraseCallback done) = 0;
  // Deletes sessions that are too old. Call it now and then; it looks once a minute.
  virtual void Tick() = 0;

  virtual SessionLoad stats() const = 0;
};

// Refuses every session with FAILED_PRECONDITION. Erase succeeds: there is nothing to erase.
class NoSessions final : public Sessions {
 public:
  bool ready() const override { return true; }
  void Take(SavedRequest) override {}
  absl::Status Begin(RequestKey, v1::SessionFile) override { return Refused(); }
  void Withdraw(RequestKey) override {}
  void OnEnded(RequestKey) override {}
  void Save(const std::string&, const std::string&, const std::function<void(RequestKey)>&,
            SaveCallback done) override {
    done(Refused());
  }
  bool IsAwaited(RequestKey) const override { return false; }
  void Load(const std::string&, const std::string&, LoadCallback done) override { done(Refused()); }
  void Delete(const std::string&, const std::string&, DeleteCallback done) override { done(Refused()); }
  absl::StatusOr<std::vector<v1::Session>> List(const std::string&) const override { return Refused(); }
  void Erase(const std::string&, EraseCallback done) override { done(Erased()); }
  void Tick() override {}
  SessionLoad stats() const override { return {}; }

 private:
  static absl::Status Refused() {
    return absl::FailedPreconditionError(
        "session_id: this server was started without --session_dir, so it has no sessions");
  }
};

}  // namespace berth

#endif  // BERTH_SERVER_STORAGE_SESSIONS_H_
