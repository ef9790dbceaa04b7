#include "server/api/reflection_service.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

template <typename Response>
void SetError(const absl::Status& status, Response* response) {
  response->mutable_error_response()->set_error_code(static_cast<int32_t>(status.code()));
  response->mutable_error_response()->set_error_message(std::string(status.message()));
}

template <typename Response>
void SetFiles(absl::StatusOr<DescribedServices::Files> files, Response* response) {
  if (!files.ok()) return SetError(files.status(), response);
  for (std::string& file : *files) {
    response->mutable_file_descriptor_response()->add_file_descriptor_proto(std::move(file));
  }
}

}  // namespace

grpc::Status TooLongForReflection(size_t bytes) {
  return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                      absl::StrCat("a request of ", bytes, " bytes is over the limit of ", kMaxReflectionBytes));
}

template <typename Version>
void AnswerReflection(const DescribedServices& services, const typename Version::Request& request,
                      typename Version::Response* response) {
  using Request = typename Version::Request;
  response->Clear();
  response->set_valid_host(request.host());
  *response->mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      return SetFiles(services.FileByName(request.file_by_filename()), response);
    case Request::kFileContainingSymbol:
      return SetFiles(services.FileOfSymbol(request.file_containing_symbol()), response);
    case Request::kFileContainingExtension: {
      const auto& extension = request.file_containing_extension();
      return SetFiles(services.FileOfExtension(extension.containing_type(), extension.extension_number()), response);
    }
    case Request::kAllExtensionNumbersOfType: {
      const absl::StatusOr<std::vector<int32_t>> numbers =
          services.ExtensionNumbers(request.all_extension_numbers_of_type());
      if (!numbers.ok()) return SetError(numbers.status(), response);
      auto* answer = response->mutable_all_extension_numbers_response();
      answer->set_base_type_name(request.all_extension_numbers_of_type());
      answer->mutable_extension_number()->Add(numbers->begin(), numbers->end());
      return;
    }
    case Request::kListServices:
      for (const std::string& name : services.services()) {
        response->mutable_list_services_response()->add_service()->set_name(name);
      }
      return;
    default:
      return SetError(absl::InvalidArgumentError("message_request: none is set"), response);
  }
}

template void AnswerReflection<ReflectionV1>(const DescribedServices&, const ReflectionV1::Request&,
                                             ReflectionV1::Response*);
template void AnswerReflection<ReflectionV1Alpha>(const DescribedServices&, const ReflectionV1Alpha::Request&,
                                                  ReflectionV1Alpha::Response*);

}  // namespace berth
