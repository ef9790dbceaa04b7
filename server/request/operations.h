// What operators do beyond one request: drop cached prefixes, and erase a tenant. Both wait for requests, the engine
// and the disk, so they are done on a thread of their own, one after the other. Thread-safe.
#ifndef BERTH_SERVER_REQUEST_OPERATIONS_H_
#define BERTH_SERVER_REQUEST_OPERATIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/work_queue.h"
#include "berth/v1/control.pb.h"
#include "scheduler/engine.h"
#include "server/admission/admission.h"
#include "server/delivery/request_registry.h"
#include "server/request/grammar_compiler.h"
#include "server/storage/sessions.h"

namespace berth {

class Operations {
 public:
  // All pointers are set, and must outlive this.
  struct Options {
    Engine* engine = nullptr;
    RequestRegistry* registry = nullptr;
    Admission* admission = nullptr;  // every request has a ticket of it
    Sessions* sessions = nullptr;
    GrammarCompiler* grammars = nullptr;
    absl::Duration timeout = absl::Seconds(30);
  };

  explicit Operations(Options options) : options_(options) {}

  // Each calls `done` once, on the thread of this. UNAVAILABLE: a file could not be deleted, or something takes longer
  // than the timeout.
  using FlushCallback = std::function<void(const absl::StatusOr<v1::FlushCacheResponse>&)>;
  // Without a tenant: those of all.
  void FlushCache(std::optional<std::string> tenant, FlushCallback done);
  using EraseCallback = std::function<void(const absl::StatusOr<v1::EraseTenantResponse>&)>;
  void EraseTenant(std::string tenant, EraseCallback done);

 private:
  absl::StatusOr<FreedBytes> DropPrefixes(std::optional<std::string> tenant) const;
  absl::StatusOr<v1::FlushCacheResponse> Flush(const std::optional<std::string>& tenant) const;
  // Ends the tenant's requests and returns their number. REQUIRES: the tenant is closed.
  absl::StatusOr<int64_t> EndRequests(const std::string& tenant) const;
  absl::StatusOr<Sessions::Erased> EraseSessions(const std::string& tenant) const;
  absl::StatusOr<v1::EraseTenantResponse> Erase(const std::string& tenant) const;

  const Options options_;
  WorkQueue queue_;
};

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_OPERATIONS_H_
