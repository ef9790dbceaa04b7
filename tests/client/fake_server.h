// A server of berth.v1 in the test's process: deterministic tokens, and whatever faults a test puts into them.
// Thread-safe; the hooks are set before the first request.
#ifndef BERTH_TESTS_CLIENT_FAKE_SERVER_H_
#define BERTH_TESTS_CLIENT_FAKE_SERVER_H_

#include <grpcpp/server.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"
#include "berth/v1/control.grpc.pb.h"
#include "berth/v1/inference.grpc.pb.h"

namespace berth::cli {

class FakeServer : public v1::Inference::Service, public v1::Control::Service {
 public:
  static constexpr int kVocabSize = 1000;
  static constexpr int kEndToken = 7;

  // `number` counts the Generate calls from 0, in the order they came.
  using Refuse = std::function<grpc::Status(int number)>;
  using Edit = std::function<void(int number, std::vector<v1::GenerateResponse>* messages)>;

  struct Hooks {
    Refuse refuse = nullptr;     // not OK: the call's answer
    Edit edit = nullptr;         // changes a stream before it is sent
    bool hang = false;           // after the first message, until the client cancels
    int wait_for_in_flight = 0;  // a call continues once this many have been under way at a time
  };

  // Listens on a port of its own.
  FakeServer() : FakeServer(Hooks()) {}
  explicit FakeServer(Hooks hooks);
  ~FakeServer() override;

  const std::string& address() const { return address_; }
  v1::Inference::Stub* stub() const { return stub_.get(); }
  static v1::GetModelInfoResponse ModelInfo();

  int peak_in_flight() const;
  int num_cancelled() const;
  std::vector<v1::GenerateRequest> requests() const;
  // Blocks until `num_calls` calls are under way.
  void AwaitInFlight(int num_calls) const;

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override;
  // Output i has the text "output i".
  grpc::Status Complete(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        v1::GenerateResponse* response) override;
  grpc::Status GetModelInfo(grpc::ServerContext* context, const v1::GetModelInfoRequest* request,
                            v1::GetModelInfoResponse* response) override;
  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::GetServerInfoResponse* response) override;
  // EraseTenant fails for the tenant "locked".
  grpc::Status Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                     v1::DrainResponse* response) override;
  grpc::Status FlushCache(grpc::ServerContext* context, const v1::FlushCacheRequest* request,
                          v1::FlushCacheResponse* response) override;
  grpc::Status EraseTenant(grpc::ServerContext* context, const v1::EraseTenantRequest* request,
                           v1::EraseTenantResponse* response) override;
  grpc::Status GetLoad(grpc::ServerContext* context, const v1::GetLoadRequest* request,
                       v1::GetLoadResponse* response) override;

 private:
  int Enter(const v1::GenerateRequest& request);
  void Leave(bool cancelled);
  grpc::Status Stream(int number, grpc::ServerContext* context, const v1::GenerateRequest& request,
                      grpc::ServerWriter<v1::GenerateResponse>* writer) const;

  const Hooks hooks_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mutex_);
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int peak_in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_cancelled_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace berth::cli

#endif  // BERTH_TESTS_CLIENT_FAKE_SERVER_H_
