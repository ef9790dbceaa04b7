#include "server/delivery/request_registry.h"

#include "absl/strings/str_cat.h"

namespace berth {

absl::Status RequestRegistry::Add(std::shared_ptr<RequestOutput> output) {
  const std::string& id = output->request_id();
  std::pair<std::string, std::string> place(output->id_space(), id);
  MutexLock lock(&mutex_);
  if (outputs_.contains(place)) {
    return absl::AlreadyExistsError(absl::StrCat("request_id: \"", id, "\" is already running"));
  }
  outputs_.emplace(std::move(place), std::move(output));
  return absl::OkStatus();
}

void RequestRegistry::Remove(const std::string& id_space, const std::string& request_id) {
  MutexLock lock(&mutex_);
  outputs_.erase({id_space, request_id});
}

bool RequestRegistry::Cancel(const std::string& id_space, const std::string& request_id, EndCause cause,
                             const std::string* tenant) {
  std::shared_ptr<RequestOutput> output;
  {
    MutexLock lock(&mutex_);
    const auto it = outputs_.find({id_space, request_id});
    if (it == outputs_.end() || (tenant != nullptr && it->second->tenant() != *tenant)) return false;
    output = it->second;
  }
  output->Cancel(cause);
  return true;
}

std::vector<std::string> RequestRegistry::CancelTenant(const std::string& tenant, EndCause cause) {
  std::vector<std::shared_ptr<RequestOutput>> found;
  {
    MutexLock lock(&mutex_);
    for (const auto& [place, output] : outputs_) {
      if (output->tenant() == tenant) found.push_back(output);
    }
  }
  std::vector<std::string> ids;
  for (const std::shared_ptr<RequestOutput>& output : found) {
    output->Cancel(cause);
    ids.push_back(output->request_id());
  }
  return ids;
}

void RequestRegistry::CancelAll(EndCause cause) {
  std::vector<std::shared_ptr<RequestOutput>> all;
  {
    MutexLock lock(&mutex_);
    for (const auto& [place, output] : outputs_) all.push_back(output);
  }
  for (const std::shared_ptr<RequestOutput>& output : all) output->Cancel(cause);
}

int64_t RequestRegistry::size() const {
  MutexLock lock(&mutex_);
  return static_cast<int64_t>(outputs_.size());
}

}  // namespace berth
