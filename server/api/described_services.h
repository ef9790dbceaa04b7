// The descriptors of the services that a server has: what its reflection service answers from. It knows the files of
// these services and what they import, and no others. Constant, so thread-safe.
#ifndef BERTH_SERVER_API_DESCRIBED_SERVICES_H_
#define BERTH_SERVER_API_DESCRIBED_SERVICES_H_

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace berth {

class DescribedServices {
 public:
  // Full names of services whose descriptors are linked into the program. Others are listed, but not described.
  explicit DescribedServices(std::vector<std::string> services);

  const std::vector<std::string>& services() const { return services_; }

  // Serialised FileDescriptorProtos: the file first, then what it imports, directly or not.
  using Files = std::vector<std::string>;
  // NOT_FOUND, as for the others.
  absl::StatusOr<Files> FileByName(const std::string& name) const;
  absl::StatusOr<Files> FileOfSymbol(const std::string& symbol) const;
  absl::StatusOr<Files> FileOfExtension(const std::string& message, int32_t number) const;
  // In ascending order; none for a message without extensions.
  absl::StatusOr<std::vector<int32_t>> ExtensionNumbers(const std::string& message) const;

 private:
  using FileDescriptor = google::protobuf::FileDescriptor;

  void Add(const FileDescriptor* file);
  // Null: the file is not of these services.
  const FileDescriptor* Known(const FileDescriptor* file) const { return files_.contains(file) ? file : nullptr; }

  const std::vector<std::string> services_;
  const google::protobuf::DescriptorPool& pool_;
  std::set<const FileDescriptor*> files_;
};

}  // namespace berth

#endif  // BERTH_SERVER_API_DESCRIBED_SERVICES_H_
