#include "server/request/operations.h"

#include <chrono>
#include <future>
#include <memory>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/steady_clock.h"

namespace berth {
namespace {

// How often to end requests again that were not registered yet when others of their tenant were ended.
constexpr absl::Duration kRetryInterval = absl::Milliseconds(100);

// Waits for what `start` gives to its callback, which may come later than `timeout`.
template <typename Result, typename Start>
absl::StatusOr<Result> WaitFor(absl::Duration timeout, absl::string_view what, const Start& start) {
  const auto promise = std::make_shared<std::promise<absl::StatusOr<Result>>>();
  std::future<absl::StatusOr<Result>> future = promise->get_future();
  start([promise](absl::StatusOr<Result> result) { promise->set_value(std::move(result)); });
  if (future.wait_for(absl::ToChronoNanoseconds(timeout)) == std::future_status::ready) return future.get();
  return absl::UnavailableError(
      absl::StrCat(what, " takes over ", absl::FormatDuration(timeout), "; call it again later"));
}

}  // namespace

void Operations::FlushCache(std::optional<std::string> tenant, FlushCallback done) {
  queue_.Add([this, tenant = std::move(tenant), done = std::move(done)] { done(Flush(tenant)); });
}

void Operations::EraseTenant(std::string tenant, EraseCallback done) {
  queue_.Add([this, tenant = std::move(tenant), done = std::move(done)] { done(Erase(tenant)); });
}

absl::StatusOr<FreedBytes> Operations::DropPrefixes(std::optional<std::string> tenant) const {
  return WaitFor<FreedBytes>(options_.timeout, "dropping the cached prefixes", [&](auto result) {
    options_.engine->DropPrefixes(std::move(tenant), [result](const FreedBytes& freed, const absl::Status& status) {
      result(status.ok() ? absl::StatusOr<FreedBytes>(freed) : status);
    });
  });
}

absl::StatusOr<v1::FlushCacheResponse> Operations::Flush(const std::optional<std::string>& tenant) const {
  v1::FlushCacheResponse response;
  if (!tenant) response.set_grammar_bytes(options_.grammars->DropKept());
  const absl::StatusOr<FreedBytes> freed = DropPrefixes(tenant);
  if (!freed.ok()) return freed.status();
  response.set_arena_bytes(freed->arena);
  response.set_host_tier_bytes(freed->host_tier);
  response.set_disk_tier_bytes(freed->disk_tier);
  return response;
}

absl::StatusOr<int64_t> Operations::EndRequests(const std::string& tenant) const {
  std::set<std::string> ended;
  const absl::Time until = SteadyNow() + options_.timeout;
  do {
    if (SteadyNow() > until) {
      return absl::UnavailableError(absl::StrCat("the tenant's requests did not end within ",
                                                 absl::FormatDuration(options_.timeout),
                                                 "; nothing was deleted; call it again later"));
    }
    for (std::string& id : options_.registry->CancelTenant(tenant, EndCause::kAborted)) ended.insert(std::move(id));
  } while (!options_.admission->WaitUntilGone(tenant, kRetryInterval));
  return static_cast<int64_t>(ended.size());
}

absl::StatusOr<Sessions::Erased> Operations::EraseSessions(const std::string& tenant) const {
  return WaitFor<Sessions::Erased>(options_.timeout, "deleting the sessions",
                                   [&](auto result) { options_.sessions->Erase(tenant, result); });
}

// The order matters. A request that has ended may still be a sequence, until the engine's next step; the drop comes
// after that. Sequences that end hand their sessions over, so the sessions come last.
absl::StatusOr<v1::EraseTenantResponse> Operations::Erase(const std::string& tenant) const {
  options_.admission->Close(tenant);
  const absl::Cleanup reopen = [&] { options_.admission->Reopen(tenant); };
  const absl::StatusOr<int64_t> requests = EndRequests(tenant);
  if (!requests.ok()) return requests.status();
  const absl::StatusOr<FreedBytes> freed = DropPrefixes(tenant);
  // All of them: they do not say whose they are.
  options_.grammars->DropKept();
  const absl::StatusOr<Sessions::Erased> erased = EraseSessions(tenant);
  if (!freed.ok()) return freed.status();
  if (!erased.ok()) return erased.status();
  v1::EraseTenantResponse response;
  response.set_requests(*requests);
  response.set_sessions(erased->num_sessions);
  response.set_session_bytes(erased->bytes);
  response.set_arena_bytes(freed->arena);
  response.set_host_tier_bytes(freed->host_tier);
  response.set_disk_tier_bytes(freed->disk_tier);
  return response;
}

}  // namespace berth
