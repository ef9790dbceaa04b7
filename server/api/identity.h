// Whom the services ask who makes a call. How credentials are read and checked is not their matter.
#ifndef BERTH_SERVER_API_IDENTITY_H_
#define BERTH_SERVER_API_IDENTITY_H_

#include <grpcpp/grpcpp.h>

#include "server/admission/identity.h"

namespace berth {

// Thread-safe.
class IdentitySource {
 public:
  virtual ~IdentitySource() = default;
  // The caller's identity. The call was let in, so it has one. Does not block.
  virtual Identity Of(const grpc::ServerContextBase& context) const = 0;
};

}  // namespace berth

#endif  // BERTH_SERVER_API_IDENTITY_H_
