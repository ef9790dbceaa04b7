// Turns a request into a session file's header, and back. Functions; thread-safe.
#ifndef BERTH_SERVER_REQUEST_SESSION_REQUEST_H_
#define BERTH_SERVER_REQUEST_SESSION_REQUEST_H_

#include "absl/status/statusor.h"
#include "berth/v1/session_file.pb.h"
#include "berth/v1/sessions.pb.h"
#include "server/request/validated_request.h"
#include "server/storage/session_file.h"

namespace berth {

// The header of a request that has not begun, without its model. REQUIRES: `valid.session_request` is set.
v1::SessionFile MakeSessionFile(const ValidatedRequest& valid);

// The request that continues a session. It is read and checked like a client's request, and everything else in the file
// is checked too. FAILED_PRECONDITION naming the session and a field: this server refuses the field. Its limits are
// then smaller than those of the server that wrote the file, or the file was forged.
absl::StatusOr<ValidatedRequest> ResumeSession(SessionFileContent content, const ValidationContext& context);
// As `resume` asks: under its request id, and from the tokens on that its client has. INVALID_ARGUMENT naming the
// field.
absl::StatusOr<ValidatedRequest> ResumeSession(SessionFileContent content, const v1::ResumeSessionRequest& resume,
                                               const ValidationContext& context);

}  // namespace berth

#endif  // BERTH_SERVER_REQUEST_SESSION_REQUEST_H_
