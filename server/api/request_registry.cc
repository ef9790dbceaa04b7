#include "server/api/request_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace berth {

absl::Status RequestRegistry::Add(std::shared_ptr<RequestOutput> output) {
  const std::string& id = output->request_id();
  MutexLock lock(&mutex_);
  if (outputs_.contains(id)) {
    return absl::AlreadyExistsError(absl::StrCat("request_id: \"", id, "\" is already running"));
  }
  outputs_.emplace(id, std::move(output));
  return absl::OkStatus();
}

void RequestRegistry::Remove(const std::string& request_id) {
  MutexLock lock(&mutex_);
  outputs_.erase(request_id);
}

bool RequestRegistry::Cancel(const std::string& request_id, EndCause cause) {
  std::shared_ptr<RequestOutput> output;
  {
    MutexLock lock(&mutex_);
    const auto it = outputs_.find(request_id);
    if (it == outputs_.end()) return false;
    output = it->second;
  }
  output->Cancel(cause);
  return true;
}

void RequestRegistry::CancelAll(EndCause cause) {
  std::vector<std::shared_ptr<RequestOutput>> all;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, output] : outputs_) all.push_back(output);
  }
  for (const std::shared_ptr<RequestOutput>& output : all) output->Cancel(cause);
}

int64_t RequestRegistry::size() const {
  MutexLock lock(&mutex_);
  return static_cast<int64_t>(outputs_.size());
}

}  // namespace berth
