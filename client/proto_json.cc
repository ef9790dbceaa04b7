#include "client/proto_json.h"

#include <google/protobuf/descriptor.h>

#include <cstdlib>

#include "absl/strings/escaping.h"

namespace berth::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::ordered_json;

// `index` < 0: a field that is not repeated.
ordered_json FieldToJson(const Message& message, const FieldDescriptor* field, int index) {
  const auto* reflection = message.GetReflection();
  const bool one = index < 0;
#define BERTH_READ(Type) \
  (one ? reflection->Get##Type(message, field) : reflection->GetRepeated##Type(message, field, index))
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return BERTH_READ(Int32);
    case FieldDescriptor::CPPTYPE_INT64:
      return BERTH_READ(Int64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return BERTH_READ(UInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return BERTH_READ(UInt64);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return BERTH_READ(Float);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return BERTH_READ(Double);
    case FieldDescriptor::CPPTYPE_BOOL:
      return BERTH_READ(Bool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return BERTH_READ(Enum)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      // JSON has no bytes; protobuf's mapping writes them in base64.
      return field->type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(BERTH_READ(String)) : BERTH_READ(String);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(one ? reflection->GetMessage(message, field)
                        : reflection->GetRepeatedMessage(message, field, index));
  }
#undef BERTH_READ
  std::abort();
}

}  // namespace

ordered_json ToJson(const Message& message) {
  ordered_json json = ordered_json::object();
  const auto* reflection = message.GetReflection();
  const auto* descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (field->is_repeated()) {
      ordered_json& list = json[field->name()] = ordered_json::array();
      for (int k = 0; k < reflection->FieldSize(message, field); ++k) list.push_back(FieldToJson(message, field, k));
    } else if (!field->has_presence() || reflection->HasField(message, field)) {
      json[field->name()] = FieldToJson(message, field, -1);
    }
  }
  return json;
}

}  // namespace berth::cli
