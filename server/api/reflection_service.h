// gRPC's reflection service, in the versions that clients ask for: v1, and v1alpha for older ones. Both answer from the
// same descriptors. It replaces gRPC's own plugin, which has v1alpha only and describes whatever the program links.
// Thread-safe; no call blocks.
#ifndef BERTH_SERVER_API_REFLECTION_SERVICE_H_
#define BERTH_SERVER_API_REFLECTION_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "server/api/described_services.h"

namespace berth {

// The messages of a version.
struct ReflectionV1 {
  using Service = grpc::reflection::v1::ServerReflection;
  using Request = grpc::reflection::v1::ServerReflectionRequest;
  using Response = grpc::reflection::v1::ServerReflectionResponse;
};
struct ReflectionV1Alpha {
  using Service = grpc::reflection::v1alpha::ServerReflection;
  using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
  using Response = grpc::reflection::v1alpha::ServerReflectionResponse;
};

// Limit of a request. A stream keeps its last one for as long as the client likes, and the answer has it too.
constexpr size_t kMaxReflectionBytes = 4096;
grpc::Status TooLongForReflection(size_t bytes);

// Sets `*response` to the answer. Defined for the two versions.
template <typename Version>
void AnswerReflection(const DescribedServices& services, const typename Version::Request& request,
                      typename Version::Response* response);

template <typename Version>
class ReflectionService final : public Version::Service::CallbackService {
 public:
  // `services` must outlive this.
  explicit ReflectionService(const DescribedServices* services) : services_(*services) {}

  grpc::ServerBidiReactor<typename Version::Request, typename Version::Response>* ServerReflectionInfo(
      grpc::CallbackServerContext*) override {
    return new Stream(services_);
  }

 private:
  // Reads a request, writes its answer, and so on. Frees itself in OnDone.
  class Stream final : public grpc::ServerBidiReactor<typename Version::Request, typename Version::Response> {
   public:
    explicit Stream(const DescribedServices& services) : services_(services) { this->StartRead(&request_); }

    void OnReadDone(bool ok) override {
      if (!ok) return this->Finish(grpc::Status::OK);
      request_.DiscardUnknownFields();
      const size_t bytes = request_.ByteSizeLong();
      if (bytes > kMaxReflectionBytes) return this->Finish(TooLongForReflection(bytes));
      AnswerReflection<Version>(services_, request_, &response_);
      this->StartWrite(&response_);
    }
    void OnWriteDone(bool ok) override {
      if (!ok) return this->Finish(grpc::Status::CANCELLED);
      this->StartRead(&request_);
    }
    void OnDone() override { delete this; }

   private:
    const DescribedServices& services_;
    typename Version::Request request_;
    typename Version::Response response_;
  };

  const DescribedServices& services_;
};

}  // namespace berth

#endif  // BERTH_SERVER_API_REFLECTION_SERVICE_H_
