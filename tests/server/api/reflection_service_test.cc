// Reflection as grpcurl uses it, over gRPC, in both versions.
#include "server/api/reflection_service.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "berth/v1/control.grpc.pb.h"
#include "berth/v1/inference.grpc.pb.h"
#include "berth/v1/session_file.pb.h"
#include "berth/v1/sessions.pb.h"

namespace berth {
namespace {

// The linker leaves out the descriptors that nothing refers to.
const void* const kLinked[] = {v1::GetLoadRequest::descriptor(), v1::GenerateRequest::descriptor(),
                               v1::Session::descriptor(), v1::SessionFile::descriptor()};

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

template <typename Version>
class ReflectionServiceTest : public ::testing::Test {
 protected:
  using Request = typename Version::Request;
  using Response = typename Version::Response;

  ReflectionServiceTest() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = Version::Service::NewStub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
    stream_ = stub_->ServerReflectionInfo(&context_);
  }
  ~ReflectionServiceTest() override {
    stream_->WritesDone();
    EXPECT_TRUE(stream_->Finish().ok());
    server_->Shutdown();
  }
  Response Ask(const Request& request) {
    Response response;
    EXPECT_TRUE(stream_->Write(request) && stream_->Read(&response));
    EXPECT_EQ(response.original_request().SerializeAsString(), request.SerializeAsString());
    return response;
  }
  Response AskForSymbol(const std::string& symbol) {
    Request request;
    request.set_file_containing_symbol(symbol);
    return Ask(request);
  }
  Response AskForFile(const std::string& name) {
    Request request;
    request.set_file_by_filename(name);
    return Ask(request);
  }
  static std::vector<std::string> FileNames(const Response& response) {
    std::vector<std::string> names;
    for (const std::string& bytes : response.file_descriptor_response().file_descriptor_proto()) {
      google::protobuf::FileDescriptorProto file;
      EXPECT_TRUE(file.ParseFromString(bytes));
      names.push_back(file.name());
    }
    return names;
  }
  static int NotFound() { return static_cast<int>(grpc::StatusCode::NOT_FOUND); }

  const DescribedServices services_{{"berth.v1.Control", "berth.v1.Inference", "no.such.Service"}};
  ReflectionService<Version> service_{&services_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<typename Version::Service::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<Request, Response>> stream_;
};

using Versions = ::testing::Types<ReflectionV1, ReflectionV1Alpha>;
TYPED_TEST_SUITE(ReflectionServiceTest, Versions);

TYPED_TEST(ReflectionServiceTest, ListsTheServices) {
  typename TypeParam::Request request;
  request.set_list_services("*");
  request.set_host("h");
  const typename TypeParam::Response response = this->Ask(request);
  EXPECT_EQ(response.valid_host(), "h");
  std::vector<std::string> names;
  for (const auto& service : response.list_services_response().service()) names.push_back(service.name());
  EXPECT_THAT(names, ElementsAre("berth.v1.Control", "berth.v1.Inference", "no.such.Service"));
}

TYPED_TEST(ReflectionServiceTest, FindsTheFileOfASymbolOrAName) {
  for (const char* symbol : {"berth.v1.Inference", "berth.v1.Inference.Generate", "berth.v1.GenerateRequest",
                             "berth.v1.GenerateRequest.cache_salt", "berth.v1.FinishReason"}) {
    EXPECT_THAT(this->FileNames(this->AskForSymbol(symbol)), ElementsAre("berth/v1/inference.proto")) << symbol;
  }
  EXPECT_THAT(this->FileNames(this->AskForFile("berth/v1/control.proto")), ElementsAre("berth/v1/control.proto"));
}

TYPED_TEST(ReflectionServiceTest, WhatItDoesNotKnowIsNotFound) {
  for (const char* symbol : {"berth.v1.Nothing", "", "berth.v1.SessionFile", "no.such.Service"}) {
    EXPECT_EQ(this->AskForSymbol(symbol).error_response().error_code(), this->NotFound()) << symbol;
  }
  // The program has this file, but no service uses it.
  EXPECT_NE(kLinked[3], nullptr);
  for (const char* name : {"nothing.proto", "berth/v1/session_file.proto", ""}) {
    const typename TypeParam::Response response = this->AskForFile(name);
    EXPECT_EQ(response.error_response().error_code(), this->NotFound()) << name;
    EXPECT_EQ(response.error_response().error_message(), "unknown file \"" + std::string(name) + "\"");
  }
}

TYPED_TEST(ReflectionServiceTest, ThereAreNoExtensions) {
  typename TypeParam::Request request;
  request.mutable_file_containing_extension()->set_containing_type("berth.v1.GenerateRequest");
  request.mutable_file_containing_extension()->set_extension_number(100);
  EXPECT_EQ(this->Ask(request).error_response().error_code(), this->NotFound());
  request.mutable_file_containing_extension()->set_containing_type("berth.v1.Nothing");
  EXPECT_EQ(this->Ask(request).error_response().error_code(), this->NotFound());
  request.set_all_extension_numbers_of_type("berth.v1.GenerateRequest");
  const typename TypeParam::Response numbers = this->Ask(request);
  EXPECT_EQ(numbers.all_extension_numbers_response().base_type_name(), "berth.v1.GenerateRequest");
  EXPECT_EQ(numbers.all_extension_numbers_response().extension_number_size(), 0);
  request.set_all_extension_numbers_of_type("berth.v1.Nothing");
  EXPECT_EQ(this->Ask(request).error_response().error_code(), this->NotFound());
}

TYPED_TEST(ReflectionServiceTest, ARequestWithoutAQuestionIsInvalid) {
  const typename TypeParam::Response response = this->Ask({});
  EXPECT_EQ(response.error_response().error_code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_EQ(this->FileNames(this->AskForSymbol("berth.v1.Control")).size(), 1u);  // the stream goes on
}

TEST(DescribedServicesTest, ImportsComeWithTheirFile) {
  const DescribedServices services({"berth.v1.Sessions"});
  const absl::StatusOr<DescribedServices::Files> files = services.FileOfSymbol("berth.v1.Sessions");
  ASSERT_TRUE(files.ok()) << files.status();
  std::vector<std::string> names;
  for (const std::string& bytes : *files) {
    google::protobuf::FileDescriptorProto file;
    ASSERT_TRUE(file.ParseFromString(bytes));
    names.push_back(file.name());
  }
  EXPECT_EQ(names.front(), "berth/v1/sessions.proto");
  EXPECT_THAT(names, UnorderedElementsAre("berth/v1/sessions.proto", "berth/v1/inference.proto"));
}

// No message of the API has extensions; those of descriptor.proto's options show how they are found.
TEST(DescribedServicesTest, AnExtensionOfAnotherServicesFileIsNotFound) {
  const DescribedServices services({"berth.v1.Inference"});
  EXPECT_FALSE(services.ExtensionNumbers("google.protobuf.MethodOptions").ok());
}

}  // namespace
}  // namespace berth
