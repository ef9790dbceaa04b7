#include "server/admission/audit.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/process/client_address.h"
#include "server/process/escape.h"

namespace berth {
namespace {

std::shared_ptr<spdlog::logger> LoggerOf(const Audit::Options& options) {
  if (options.logger != nullptr) return options.logger;
  std::shared_ptr<spdlog::logger> audit = spdlog::get("audit");
  return audit != nullptr ? audit : spdlog::default_logger();
}

// Calls that share a line.
std::string KeyOf(const Audit::Call& call) {
  return absl::StrCat(ClientAddress(call.peer), " ", call.method, " ", call.credential);
}

// Much more than a name or a message has.
constexpr size_t kMostBytes = 512;

std::string Value(absl::string_view text) {
  return text.size() <= kMostBytes ? Quoted(text) : Quoted(absl::StrCat(text.substr(0, kMostBytes), "..."));
}

std::string Line(absl::string_view what, const Audit::Call& call, const absl::Status& outcome) {
  std::string line = absl::StrCat(what, ": method=", Value(call.method), " peer=", Value(call.peer),
                                  " credential=", Value(call.credential), " tenant=", Value(call.tenant),
                                  " outcome=", absl::StatusCodeToString(outcome.code()));
  if (!outcome.ok()) absl::StrAppend(&line, " reason=", Value(outcome.message()));
  return line;
}

}  // namespace

Audit::Audit(Options options)
    : logger_(LoggerOf(options)),
      on_unauthenticated_(std::move(options.on_unauthenticated)),
      refusals_(std::move(options.refusals)) {}

// So what has no credential hides no call of one that is known.
void Audit::OnRefused(const Call& call, const absl::Status& why) {
  if (absl::IsUnauthenticated(why)) on_unauthenticated_();
  const std::optional<std::string> end =
      refusals_.Admit(call.credential.empty() ? ClientAddress(call.peer) : KeyOf(call));
  if (end.has_value()) logger_->info(Line("refused credential", call, why) + *end);
}

void Audit::OnOperatorCall(const Call& call, const absl::Status& outcome) {
  std::string end;
  if (absl::IsPermissionDenied(outcome) || absl::IsInvalidArgument(outcome)) {
    std::optional<std::string> admitted = refusals_.Admit(KeyOf(call));
    if (!admitted.has_value()) return;
    end = *std::move(admitted);
  }
  logger_->info(Line("operator call", call, outcome) + end);
}

}  // namespace berth
