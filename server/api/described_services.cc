#include "server/api/described_services.h"

#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/process/escape.h"

namespace berth {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

void AddTo(const FileDescriptor* file, std::vector<const FileDescriptor*>* files) {
  if (std::find(files->begin(), files->end(), file) != files->end()) return;
  files->push_back(file);
  for (int i = 0; i < file->dependency_count(); ++i) AddTo(file->dependency(i), files);
}

absl::StatusOr<DescribedServices::Files> Serialise(const FileDescriptor* file, absl::string_view what,
                                                   const std::string& name) {
  if (file == nullptr) return absl::NotFoundError(absl::StrCat("unknown ", what, " ", Quoted(name)));
  std::vector<const FileDescriptor*> files;
  AddTo(file, &files);
  DescribedServices::Files serialised;
  for (const FileDescriptor* one : files) {
    google::protobuf::FileDescriptorProto proto;
    one->CopyTo(&proto);
    serialised.push_back(proto.SerializeAsString());
  }
  return serialised;
}

}  // namespace

DescribedServices::DescribedServices(std::vector<std::string> services)
    : services_(std::move(services)), pool_(*DescriptorPool::generated_pool()) {
  for (const std::string& name : services_) {
    if (const auto* service = pool_.FindServiceByName(name); service != nullptr) Add(service->file());
  }
}

void DescribedServices::Add(const FileDescriptor* file) {
  if (!files_.insert(file).second) return;
  for (int i = 0; i < file->dependency_count(); ++i) Add(file->dependency(i));
}

absl::StatusOr<DescribedServices::Files> DescribedServices::FileByName(const std::string& name) const {
  return Serialise(Known(pool_.FindFileByName(name)), "file", name);
}

absl::StatusOr<DescribedServices::Files> DescribedServices::FileOfSymbol(const std::string& symbol) const {
  return Serialise(Known(pool_.FindFileContainingSymbol(symbol)), "symbol", symbol);
}

absl::StatusOr<DescribedServices::Files> DescribedServices::FileOfExtension(const std::string& message,
                                                                            int32_t number) const {
  const auto* type = pool_.FindMessageTypeByName(message);
  const FieldDescriptor* extension = nullptr;
  if (type != nullptr && Known(type->file()) != nullptr) extension = pool_.FindExtensionByNumber(type, number);
  return Serialise(extension == nullptr ? nullptr : Known(extension->file()), absl::StrCat("extension ", number, " of"),
                   message);
}

absl::StatusOr<std::vector<int32_t>> DescribedServices::ExtensionNumbers(const std::string& message) const {
  const auto* type = pool_.FindMessageTypeByName(message);
  if (type == nullptr || Known(type->file()) == nullptr) {
    return absl::NotFoundError(absl::StrCat("unknown message ", Quoted(message)));
  }
  std::vector<const FieldDescriptor*> extensions;
  pool_.FindAllExtensions(type, &extensions);
  std::vector<int32_t> numbers;
  for (const FieldDescriptor* extension : extensions) {
    if (Known(extension->file()) != nullptr) numbers.push_back(extension->number());
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace berth
