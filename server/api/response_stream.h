// The stream of an RPC's answers: passes what a RequestOutput writes to gRPC. A derived class frees itself in OnDone,
// which gRPC calls once, after End and the last operation.
#ifndef BERTH_SERVER_API_RESPONSE_STREAM_H_
#define BERTH_SERVER_API_RESPONSE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "berth/v1/inference.grpc.pb.h"
#include "server/api/grpc_status.h"
#include "server/api/request_output.h"

namespace berth {

class ResponseStream : public grpc::ServerWriteReactor<v1::GenerateResponse>, public OutputWriter {
 public:
  void Write(const v1::GenerateResponse* message) final { StartWrite(message); }
  void End(v1::GenerateResponse* last, const absl::Status& status) final {
    status_ = status;
    if (last != nullptr) {
      StartWriteAndFinish(last, grpc::WriteOptions(), ToGrpcStatus(status));
    } else {
      Finish(ToGrpcStatus(status));
    }  // the call may be gone by now
  }

 protected:
  // How it ended.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

}  // namespace berth

#endif  // BERTH_SERVER_API_RESPONSE_STREAM_H_
