#include "server/request/request_fields.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <type_traits>

namespace berth {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

static_assert(static_cast<int>(EarlyStopping::kHeuristic) == v1::EARLY_STOPPING_FALSE);
static_assert(static_cast<int>(EarlyStopping::kAtOnce) == v1::EARLY_STOPPING_TRUE);
static_assert(static_cast<int>(EarlyStopping::kNever) == v1::EARLY_STOPPING_NEVER);

// "sampling.temperature" is the field `temperature` of the message in the field `sampling`. A name that does not exist
// is a mistake in the table, which its test finds; protobuf's reflection ends the process.
const FieldDescriptor* FindField(const Message& message, absl::string_view name) {
  return message.GetDescriptor()->FindFieldByName(std::string(name));
}
// The message that holds the field, and the field's own name.
struct Place {
  absl::string_view outer;  // "": the request itself
  absl::string_view inner;
};
Place PlaceOf(absl::string_view name) {
  const size_t dot = name.find('.');
  if (dot == absl::string_view::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

// Integers and enums are read as int64_t, so that no value is cut before it is checked. Seeds alone need all 64 bits.
template <typename T>
using Wide =
    std::conditional_t<std::is_enum_v<T> || std::is_same_v<T, int32_t> || std::is_same_v<T, int64_t>, int64_t, T>;

template <typename T>
T GetValue(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  if constexpr (std::is_same_v<T, bool>) {
    return reflection.GetBool(message, field);
  } else if constexpr (std::is_same_v<T, float>) {
    return reflection.GetFloat(message, field);
  } else if constexpr (std::is_same_v<T, double>) {
    return reflection.GetDouble(message, field);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return reflection.GetString(message, field);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    return reflection.GetUInt64(message, field);
  } else {
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_ENUM:
        return reflection.GetEnumValue(message, field);
      case FieldDescriptor::CPPTYPE_INT32:
        return reflection.GetInt32(message, field);
      case FieldDescriptor::CPPTYPE_UINT32:
        return reflection.GetUInt32(message, field);
      default:
        return reflection.GetInt64(message, field);
    }
  }
}

template <typename T>
void SetValue(const T& value, const FieldDescriptor* field, Message* message) {
  const Reflection& reflection = *message->GetReflection();
  if constexpr (std::is_same_v<T, bool>) {
    reflection.SetBool(message, field, value);
  } else if constexpr (std::is_same_v<T, float>) {
    reflection.SetFloat(message, field, value);
  } else if constexpr (std::is_same_v<T, double>) {
    reflection.SetDouble(message, field, value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    reflection.SetString(message, field, value);
  } else if constexpr (std::is_same_v<T, uint64_t>) {
    reflection.SetUInt64(message, field, value);
  } else {
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_ENUM:
        return reflection.SetEnumValue(message, field, static_cast<int>(value));
      case FieldDescriptor::CPPTYPE_INT32:
        return reflection.SetInt32(message, field, static_cast<int32_t>(value));
      case FieldDescriptor::CPPTYPE_UINT32:
        return reflection.SetUInt32(message, field, static_cast<uint32_t>(value));
      default:
        return reflection.SetInt64(message, field, static_cast<int64_t>(value));
    }
  }
}

// Reads each field into its member and checks it, until the first error.
class Reader {
 public:
  explicit Reader(const v1::GenerateRequest& in) : in_(in) {}

  bool Has(absl::string_view name) const { return in_.GetReflection()->HasField(in_, FindField(in_, name)); }

  template <typename T, typename Values, typename Default>
  void operator()(absl::string_view name, T& member, const Values& values, const Default& fallback) {
    if (!status_.ok()) return;
    const Place place = PlaceOf(name);
    const Message& message =
        place.outer.empty() ? in_ : in_.GetReflection()->GetMessage(in_, FindField(in_, place.outer));
    const FieldDescriptor* field = FindField(message, place.inner);
    if (message.GetReflection()->HasField(message, field)) {
      Assign(name, GetValue<Wide<T>>(message, field), values, member);
    } else {
      AssignDefault(name, fallback, values, member);
    }
  }

  const absl::Status& status() const { return status_; }

 private:
  template <typename T, typename Values, typename Default>
  void AssignDefault(absl::string_view name, const Default& fallback, const Values& values, T& member) {
    Assign(name, static_cast<Wide<T>>(fallback), values, member);
  }
  template <typename T, typename Values, typename Default>
  void AssignDefault(absl::string_view, const Unset<Default>& unset, const Values&, T& member) {
    member = unset.value;
  }

  template <typename T, typename Values>
  void Assign(absl::string_view name, Wide<T> value, const Values& values, T& member) {
    if constexpr (std::is_same_v<Values, Range>) {
      status_ = CheckRange(name, value, values);
    } else if constexpr (std::is_same_v<Values, Capped>) {
      value = std::min(value, values.most);
    } else if constexpr (!std::is_same_v<Values, AnyValue>) {
      status_ = values(name, value);
    }
    if (status_.ok()) member = static_cast<T>(std::move(value));
  }

  const v1::GenerateRequest& in_;
  absl::Status status_;
};

class DefaultsWriter {
 public:
  explicit DefaultsWriter(v1::GenerateRequest* message) : message_(message) {}

  bool Has(absl::string_view name) const {
    return message_->GetReflection()->HasField(*message_, FindField(*message_, name));
  }

  template <typename T, typename Values, typename Default>
  void operator()(absl::string_view name, const T& member, const Values&, const Default&) {
    const Place place = PlaceOf(name);
    Message* message = message_;
    if (!place.outer.empty()) {
      message = message_->GetReflection()->MutableMessage(message_, FindField(*message_, place.outer));
    }
    const FieldDescriptor* field = FindField(*message, place.inner);
    if (!message->GetReflection()->HasField(*message, field)) SetValue(member, field, message);
  }
  template <typename T, typename Values, typename Default>
  void operator()(absl::string_view, const T&, const Values&, const Unset<Default>&) {}

 private:
  v1::GenerateRequest* const message_;
};

}  // namespace

absl::Status ReadRequestFields(const v1::GenerateRequest& in, const ValidationContext& context, uint64_t random_seed,
                               ValidatedRequest* out) {
  Reader reader(in);
  VisitRequestFields(context, random_seed, out, reader);
  return reader.status();
}

void FillInDefaults(const ValidatedRequest& valid, const ValidationContext& context, v1::GenerateRequest* message) {
  VisitRequestFields(context, /*random_seed=*/0, &valid, DefaultsWriter(message));
}

}  // namespace berth
