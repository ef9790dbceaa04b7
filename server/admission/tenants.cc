#include "server/admission/tenants.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>
#include <spdlog/spdlog.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

using google::protobuf::FieldDescriptor;

// Limit of a name, as of cache_salt.
constexpr size_t kMaxNameCharacters = 128;
// Limits of the numbers, which keep what follows from them far from overflow.
constexpr int64_t kMaxCount = int64_t{1} << 50;
constexpr double kMinNumber = 0.001;
constexpr double kMaxNumber = 1e9;
constexpr double kMaxBurstSeconds = 86400;

template <typename... Parts>
absl::Status Bad(absl::string_view where, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", parts...));
}

size_t NumCharacters(absl::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

// Checks the numbers of an entry. All of them are above 0: a tenant that may do nothing has no use for an entry.
absl::Status CheckNumbers(const v1::Tenant& tenant, absl::string_view where) {
  const auto* reflection = tenant.GetReflection();
  for (int i = 0; i < tenant.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = tenant.GetDescriptor()->field(i);
    if (field->is_repeated() || !reflection->HasField(tenant, field)) continue;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      const int64_t value = reflection->GetInt64(tenant, field);
      if (value >= 1 && value <= kMaxCount) continue;
      return Bad(where, field->name(), " is ", value, ", outside [1, ", kMaxCount, "]; leave it out for no limit");
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_DOUBLE) continue;
    const double value = reflection->GetDouble(tenant, field);
    const double most = field->number() == v1::Tenant::kBurstSecondsFieldNumber ? kMaxBurstSeconds : kMaxNumber;
    if (value >= kMinNumber && value <= most) continue;
    return Bad(where, field->name(), " is ", value, ", outside [", kMinNumber, ", ", most, "]");
  }
  return absl::OkStatus();
}

absl::Status CheckTenant(const v1::Tenant& tenant, int index) {
  if (!tenant.has_name()) return Bad(absl::StrCat("tenants[", index, "]"), "name is missing");
  const std::string where = absl::StrCat("tenant \"", absl::Utf8SafeCEscape(tenant.name()), "\"");
  if (const size_t n = NumCharacters(tenant.name()); n > kMaxNameCharacters) {
    return Bad(where, "name has ", n, " characters, over the limit of ", kMaxNameCharacters);
  }
  return CheckNumbers(tenant, where);
}

absl::StatusOr<Tenants> Read(const std::string& path) {
  if (path.empty()) return Tenants();
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!(file.is_open() && text << file.rdbuf())) {
    return absl::NotFoundError(absl::StrCat("--tenants: cannot read ", path, ", or it is empty"));
  }
  absl::StatusOr<Tenants> tenants = Tenants::Parse(text.str());
  if (tenants.ok()) return tenants;
  return absl::InvalidArgumentError(absl::StrCat("--tenants: ", path, ": ", tenants.status().message()));
}

}  // namespace

absl::StatusOr<Tenants> Tenants::Parse(const std::string& json) {
  v1::TenantsFile file;
  const auto parsed = google::protobuf::util::JsonStringToMessage(json, &file);
  if (!parsed.ok()) return absl::InvalidArgumentError(std::string(parsed.message()));
  Tenants tenants;
  for (int i = 0; i < file.tenants_size(); ++i) {
    if (absl::Status s = CheckTenant(file.tenants(i), i); !s.ok()) return s;
    if (absl::Status s = tenants.credentials_.Add(file.tenants(i)); !s.ok()) return s;
    const std::string name = file.tenants(i).name();
    if (!tenants.by_name_.emplace(name, std::move(*file.mutable_tenants(i))).second) {
      return Bad(absl::StrCat("tenants[", i, "]"), "the name \"", absl::Utf8SafeCEscape(name), "\" occurs twice");
    }
  }
  if (file.default_().has_name()) return Bad("default", "it has a name; name tenants in `tenants`");
  if (file.default_().tokens_size() + file.default_().certificates_size() > 0) {
    return Bad("default", "it has credentials; give them to a tenant in `tenants`");
  }
  if (absl::Status s = CheckNumbers(file.default_(), "default"); !s.ok()) return s;
  tenants.default_ = std::move(*file.mutable_default_());
  return tenants;
}

TenantsFile::TenantsFile(std::string path, FileVersion version, Tenants tenants)
    : path_(std::move(path)),
      version_(version),
      previous_(std::make_shared<const Tenants>(std::move(tenants))),
      current_(previous_) {}

absl::StatusOr<std::unique_ptr<TenantsFile>> TenantsFile::Open(std::string path) {
  // Before it is read: what is written meanwhile is then a change.
  const FileVersion version = FileVersion::Of(path);
  absl::StatusOr<Tenants> tenants = Read(path);
  if (!tenants.ok()) return tenants.status();
  return absl::WrapUnique(new TenantsFile(std::move(path), version, *std::move(tenants)));
}

absl::Status TenantsFile::Reload() {
  const FileVersion version = FileVersion::Of(path_);
  absl::StatusOr<Tenants> tenants = Read(path_);
  if (!tenants.ok()) {
    spdlog::error("{}; the former tenants and credentials stay", std::string(tenants.status().message()));
    MutexLock lock(&mutex_);
    version_ = version;
    return tenants.status();
  }
  if (!path_.empty()) spdlog::info("--tenants: read {} again: {} tenants", path_, tenants->size());
  auto next = std::make_shared<const Tenants>(*std::move(tenants));
  MutexLock lock(&mutex_);
  version_ = version;
  previous_ = std::exchange(current_, std::move(next));
  if (follower_) follower_(*current_);
  return absl::OkStatus();
}

void TenantsFile::ReloadIfChanged() {
  if (path_.empty()) return;
  const FileVersion version = FileVersion::Of(path_);
  {
    MutexLock lock(&mutex_);
    if (version == version_) return;
  }
  // It logs its errors itself.
  [[maybe_unused]] const absl::Status reloaded = Reload();
}

void TenantsFile::Follow(std::function<void(const Tenants&)> use) {
  MutexLock lock(&mutex_);
  follower_ = std::move(use);
  follower_(*current_);
}

std::shared_ptr<const Tenants> TenantsFile::current() const {
  MutexLock lock(&mutex_);
  return current_;
}

std::shared_ptr<const Tenants> TenantsFile::previous() const {
  MutexLock lock(&mutex_);
  return previous_;
}

}  // namespace berth
