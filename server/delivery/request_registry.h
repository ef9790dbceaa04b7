// The requests that are under way, by the ids their clients know: for Abort, for refusing duplicates, and for ending
// all of them at shutdown. Each tenant has ids of its own (IdSpaceOf in caller.h), so an id tells nothing about others'
// requests. Thread-safe.
#ifndef BERTH_SERVER_DELIVERY_REQUEST_REGISTRY_H_
#define BERTH_SERVER_DELIVERY_REQUEST_REGISTRY_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "scheduler/request.h"
#include "server/delivery/request_output.h"
#include "server/delivery/undelivered.h"
#include "server/delivery/unread_answers.h"

namespace berth {

class RequestRegistry {
 public:
  // Limit of all requests together.
  static constexpr int64_t kMaxUndeliveredBytes = int64_t{256} << 20;
  // Limit of ended requests alone: whole answers, and the rest of streams. An answer counts until its client has read
  // it.
  static constexpr int64_t kMaxUnreadBytes = kMaxUndeliveredBytes / 2;

  // Returns a key that no request has had.
  RequestKey NewKey() { return next_key_.fetch_add(1, std::memory_order_relaxed); }

  // ALREADY_EXISTS when a request of the same id space with that id is running.
  absl::Status Add(std::shared_ptr<RequestOutput> output) ABSL_LOCKS_EXCLUDED(mutex_);
  // The id may be used again.
  void Remove(const std::string& id_space, const std::string& request_id) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the request. False when no request has that id, or when it is not one of `tenant`, if one is given.
  bool Cancel(const std::string& id_space, const std::string& request_id, EndCause cause,
              const std::string* tenant = nullptr) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all requests of the tenant. Returns their ids.
  std::vector<std::string> CancelTenant(const std::string& tenant, EndCause cause) ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelAll(EndCause cause) ABSL_LOCKS_EXCLUDED(mutex_);

  // What the requests' clients have not taken yet.
  const std::shared_ptr<Undelivered>& undelivered() const { return undelivered_; }

  // What calls whose work is done have still to give, those of all services.
  UnreadAnswers* unread() { return &unread_; }

  int64_t size() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Outputs may outlive the registry.
  const std::shared_ptr<Undelivered> undelivered_ = std::make_shared<Undelivered>(kMaxUndeliveredBytes);
  UnreadAnswers unread_{kMaxUnreadBytes, undelivered_.get()};
  std::atomic<RequestKey> next_key_{1};

  mutable Mutex mutex_;
  // By id space and id.
  std::map<std::pair<std::string, std::string>, std::shared_ptr<RequestOutput>> outputs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace berth

#endif  // BERTH_SERVER_DELIVERY_REQUEST_REGISTRY_H_
