// What each tenant may use, and the credentials of its callers: the file of --tenants, and how to read it again while
// the server runs.
//
// The file is JSON; its fields are those of TenantsFile in proto/berth/v1/tenants_file.proto. A tenant is that of the
// caller's credential (server/auth/authenticator.h); without authentication, a request's cache_salt. To add a limit:
// add a field to Tenant there, and the check where the limit holds.
#ifndef BERTH_SERVER_ADMISSION_TENANTS_H_
#define BERTH_SERVER_ADMISSION_TENANTS_H_

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "berth/v1/tenants_file.pb.h"
#include "server/auth/credentials.h"
#include "server/auth/file_version.h"

namespace berth {

// One reading of the file. Constant; thread-safe.
class Tenants {
 public:
  // No tenant has a limit, and all weigh 1.
  Tenants() = default;

  // Reads the text of a file. INVALID_ARGUMENT naming tenant, field, value and limit: an unknown field, a value out of
  // range, a tenant without a name, or two with the same.
  static absl::StatusOr<Tenants> Parse(const std::string& json);

  // The tenant's own entry, else the default one.
  const v1::Tenant& Of(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? default_ : found->second;
  }
  bool HasEntry(const std::string& name) const { return by_name_.contains(name); }
  size_t size() const { return by_name_.size(); }
  const std::unordered_map<std::string, v1::Tenant>& entries() const { return by_name_; }
  const v1::Tenant& others() const { return default_; }
  const Credentials& credentials() const { return credentials_; }

 private:
  std::unordered_map<std::string, v1::Tenant> by_name_;
  v1::Tenant default_;
  Credentials credentials_;
};

// The values of absent fields that are not limits.
inline double WeightOf(const v1::Tenant& tenant) { return tenant.has_weight() ? tenant.weight() : 1; }
inline absl::Duration BurstOf(const v1::Tenant& tenant) {
  return absl::Seconds(tenant.has_burst_seconds() ? tenant.burst_seconds() : 10);
}

// The file, and its last reading that was in order. Thread-safe.
class TenantsFile {
 public:
  // Reads the file. INVALID_ARGUMENT names the file and what is wrong in it; NOT_FOUND: it cannot be read. With the
  // path "" there is no file, and no tenant has a limit.
  static absl::StatusOr<std::unique_ptr<TenantsFile>> Open(std::string path);

  // Reads the file again. After an error the former reading stays, and the error is logged and returned.
  absl::Status Reload() ABSL_LOCKS_EXCLUDED(mutex_);

  // Reloads the file if it is another one than at the last reading, or was written since. Call it every second or so.
  void ReloadIfChanged() ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `use` with the current reading, and with each later one on the thread of Reload. At most one can follow.
  void Follow(std::function<void(const Tenants&)> use) ABSL_LOCKS_EXCLUDED(mutex_);

  // Never null. Cheap: call it for each request.
  std::shared_ptr<const Tenants> current() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The reading before the current one; the current one if there is none. Never null.
  std::shared_ptr<const Tenants> previous() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  TenantsFile(std::string path, FileVersion version, Tenants tenants);

  const std::string path_;
  mutable Mutex mutex_;
  FileVersion version_ ABSL_GUARDED_BY(mutex_);  // at the last reading, in order or not
  std::shared_ptr<const Tenants> previous_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Tenants> current_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const Tenants&)> follower_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace berth

#endif  // BERTH_SERVER_ADMISSION_TENANTS_H_
