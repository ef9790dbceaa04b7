// The audit log: one line for each credential that was refused, and for each call that acts on the whole server or on
// others' requests. A line says who, from where, on which tenant, and how it ended; never a secret. Thread-safe.
//
// Lines go to spdlog's logger "audit" (server/process/logging.h): into the usual log, or into the file of --audit_log.
#ifndef BERTH_SERVER_ADMISSION_AUDIT_H_
#define BERTH_SERVER_ADMISSION_AUDIT_H_

#include <spdlog/logger.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/process/line_limit.h"

namespace berth {

class Audit {
 public:
  struct Options {
    // Null: spdlog's "audit", or the default logger where there is none.
    std::shared_ptr<spdlog::logger> logger;
    LineLimit::Options refusals;  // the lines of what is refused
    // Called for each call without a valid credential, whether or not it gets a line.
    std::function<void()> on_unauthenticated = [] {};
  };

  Audit() : Audit(Options()) {}
  explicit Audit(Options options);

  // What is known of a call. Each text may come from the caller, and be of any bytes; a long one is cut in the line.
  struct Call {
    absl::string_view peer;        // ServerContextBase::peer()
    absl::string_view method;      // "Drain", or "/berth.v1.Inference/Generate"
    absl::string_view credential;  // its name, never the secret; "": none
    absl::string_view tenant;      // the one that the call acts on, or names; "": none
  };
  // A call whose credential is missing, unknown, or not enough. One line in a time is written for what shows no known
  // credential to a peer, and one for each credential and method.
  void OnRefused(const Call& call, const absl::Status& why);
  // A call that only an operator may make, allowed or not, once its outcome is known. Anyone may be refused, or ask for
  // what is not valid: such calls of one credential and method get one line in a time.
  void OnOperatorCall(const Call& call, const absl::Status& outcome);

 private:
  const std::shared_ptr<spdlog::logger> logger_;
  const std::function<void()> on_unauthenticated_;
  LineLimit refusals_;
};

}  // namespace berth

#endif  // BERTH_SERVER_ADMISSION_AUDIT_H_
