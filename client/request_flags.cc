#include "client/request_flags.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/internal/raw_logging.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "proto/inference_descriptor.h"

namespace berth::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A field of the request (`outer` is null) or of the message in its field `outer`.
struct Field {
  const FieldDescriptor* outer = nullptr;
  const FieldDescriptor* inner = nullptr;

  Message* Holder(v1::GenerateRequest* request) const {
    return outer == nullptr ? request : request->GetReflection()->MutableMessage(request, outer);
  }
  const Message& Holder(const v1::GenerateRequest& request) const {
    return outer == nullptr ? request : request.GetReflection()->GetMessage(request, outer);
  }
};

// A message like TokenIds, which holds nothing but a list: its flag is a list too.
bool IsList(const Descriptor& message) { return message.field_count() == 1 && message.field(0)->is_repeated(); }

// The flag of a list of texts gives one of them each time.
bool IsListOfTexts(const FieldDescriptor& field) {
  return field.message_type() != nullptr && IsList(*field.message_type()) &&
         field.message_type()->field(0)->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
}

// The comments of the proto's fields. The descriptors of generated code have none.
class Comments {
 public:
  Comments() {
    google::protobuf::FileDescriptorSet files;
    if (!files.ParseFromArray(kInferenceDescriptor, static_cast<int>(kInferenceDescriptorBytes))) {
      ABSL_RAW_LOG(FATAL, "the descriptor of inference.proto does not parse");
    }
    for (const google::protobuf::FileDescriptorProto& file : files.file()) pool_.BuildFile(file);
  }

  // In one line.
  std::string Of(const FieldDescriptor& field) const {
    google::protobuf::SourceLocation location;
    const FieldDescriptor* found = pool_.FindFieldByName(field.full_name());
    if (found == nullptr || !found->GetSourceLocation(&location)) return "";
    return absl::StrJoin(absl::StrSplit(location.leading_comments, absl::ByAnyChar(" \n"), absl::SkipEmpty()), " ");
  }

 private:
  DescriptorPool pool_;
};

// "false" for EARLY_STOPPING_FALSE.
std::string Word(const google::protobuf::EnumValueDescriptor& value) {
  const std::string& name = value.name();
  return absl::AsciiStrToLower(name.substr(name.rfind('_') + 1));
}

std::string Words(const EnumDescriptor& type, absl::string_view separator) {
  std::vector<std::string> words;
  for (int i = 0; i < type.value_count(); ++i) words.push_back(Word(*type.value(i)));
  return absl::StrJoin(words, separator);
}

absl::Status ParseEnum(absl::string_view text, const FieldDescriptor* field, Message* message) {
  const EnumDescriptor& type = *field->enum_type();
  for (int i = 0; i < type.value_count(); ++i) {
    if (Word(*type.value(i)) != text) continue;
    message->GetReflection()->SetEnum(message, field, type.value(i));
    return absl::OkStatus();
  }
  return RefuseValue(text, absl::StrCat("is not one of ", Words(type, ", ")));
}

// "42:-1.5", into a map of numbers.
absl::Status ParseMapEntry(absl::string_view text, const FieldDescriptor* field, Message* message) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  int32_t id = 0;
  float value = 0;
  if (!absl::SimpleAtoi(parts.first, &id) || !absl::SimpleAtof(parts.second, &value)) {
    return RefuseValue(text, "is not ID:BIAS; write for example 42:-1.5");
  }
  Message* entry = message->GetReflection()->AddMessage(message, field);
  const Descriptor* type = field->message_type();
  entry->GetReflection()->SetInt32(entry, type->map_key(), id);
  entry->GetReflection()->SetFloat(entry, type->map_value(), value);
  return absl::OkStatus();
}

// "1,2,3"
absl::Status ParseIds(absl::string_view text, const FieldDescriptor* field, Message* message) {
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(part, &id)) return RefuseValue(part, "is not a token id");
    message->GetReflection()->AddInt32(message, field, id);
  }
  return absl::OkStatus();
}

absl::Status ParseRepeated(absl::string_view text, const FieldDescriptor* field, Message* message) {
  if (field->is_map()) return ParseMapEntry(text, field, message);
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) return ParseIds(text, field, message);
  message->GetReflection()->AddString(message, field, std::string(text));
  return absl::OkStatus();
}

template <typename T>
absl::Status ParseAs(absl::string_view text, void (Reflection::*set)(Message*, const FieldDescriptor*, T) const,
                     const FieldDescriptor* field, Message* message) {
  T value{};
  if (absl::Status s = ParseFlagValue(text, &value); !s.ok()) return s;
  (message->GetReflection()->*set)(message, field, std::move(value));
  return absl::OkStatus();
}

// The flags of these texts, which are documents, take the name of a file.
constexpr absl::string_view kReadFromFile[] = {"json_schema", "lark", "structural_tag"};

bool IsReadFromFile(const FieldDescriptor& field) {
  return std::find(std::begin(kReadFromFile), std::end(kReadFromFile), field.name()) != std::end(kReadFromFile);
}

absl::Status ParseFile(absl::string_view path, const FieldDescriptor* field, Message* message) {
  std::ifstream file{std::string(path), std::ios::binary};
  // By read, which does not throw: a folder opens like a file, and fails here.
  std::string text;
  char buffer[1 << 14];
  while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(file.gcount()));
  }
  if (!file.is_open() || file.bad()) return RefuseValue(path, "cannot be read");
  message->GetReflection()->SetString(message, field, std::move(text));
  return absl::OkStatus();
}

// Refuses a second field of a oneof.
absl::Status CheckOneof(absl::string_view text, const FieldDescriptor* field, const Message& message) {
  const google::protobuf::OneofDescriptor* oneof = field->real_containing_oneof();
  if (oneof == nullptr) return absl::OkStatus();
  const FieldDescriptor* present = message.GetReflection()->GetOneofFieldDescriptor(message, oneof);
  if (present == nullptr || present == field) return absl::OkStatus();
  return RefuseValue(text, absl::StrCat("cannot be combined with --", present->name()));
}

absl::Status ParseField(absl::string_view text, const FieldDescriptor* field, Message* message) {
  if (absl::Status s = CheckOneof(text, field, *message); !s.ok()) return s;
  if (IsReadFromFile(*field)) return ParseFile(text, field, message);
  if (field->is_repeated()) return ParseRepeated(text, field, message);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      Message* list = message->GetReflection()->MutableMessage(message, field);
      return ParseRepeated(text, list->GetDescriptor()->field(0), list);
    }
    case FieldDescriptor::CPPTYPE_ENUM:
      return ParseEnum(text, field, message);
    case FieldDescriptor::CPPTYPE_BOOL:
      return ParseAs<bool>(text, &Reflection::SetBool, field, message);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return ParseAs<float>(text, &Reflection::SetFloat, field, message);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return ParseAs<double>(text, &Reflection::SetDouble, field, message);
    case FieldDescriptor::CPPTYPE_INT32:
      return ParseAs<int32_t>(text, &Reflection::SetInt32, field, message);
    case FieldDescriptor::CPPTYPE_UINT32:
      return ParseAs<uint32_t>(text, &Reflection::SetUInt32, field, message);
    case FieldDescriptor::CPPTYPE_INT64:
      return ParseAs<int64_t>(text, &Reflection::SetInt64, field, message);
    case FieldDescriptor::CPPTYPE_UINT64:
      return ParseAs<uint64_t>(text, &Reflection::SetUInt64, field, message);
    case FieldDescriptor::CPPTYPE_STRING:
      return ParseAs<std::string>(text, &Reflection::SetString, field, message);
  }
  return RefuseValue(text, "cannot be read");
}

std::string FormatField(const Message& message, const FieldDescriptor* field) {
  const Reflection& reflection = *message.GetReflection();
  if (field->is_repeated() || !reflection.HasField(message, field)) return "";
  std::string text;
  google::protobuf::TextFormat::PrintFieldValueToString(message, field, /*index=*/-1, &text);
  return text;
}

std::string Placeholder(const FieldDescriptor& field) {
  if (field.is_map()) return "id:bias";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "";
    case FieldDescriptor::CPPTYPE_ENUM:
      return Words(*field.enum_type(), "|");
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return IsListOfTexts(field) ? "text" : "id,...";
    case FieldDescriptor::CPPTYPE_STRING:
      return IsReadFromFile(field) ? "file" : "text";
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "x";
    default:
      return field.is_repeated() ? "id,..." : "n";
  }
}

// Found by FlagSet::Add.
FlagBinding Bind(const Field& field, v1::GenerateRequest* request) {
  return {.parse = [field,
                    request](absl::string_view text) { return ParseField(text, field.inner, field.Holder(request)); },
          .format = [field, request] { return FormatField(field.Holder(std::as_const(*request)), field.inner); },
          .placeholder = Placeholder(*field.inner),
          .limits = "",
          .is_bool = field.inner->cpp_type() == FieldDescriptor::CPPTYPE_BOOL && !field.inner->is_repeated()};
}

// "Beam search" for beam_search.
std::string Title(const FieldDescriptor& field) {
  std::string title = absl::StrReplaceAll(field.name(), {{"_", " "}});
  title[0] = absl::ascii_toupper(static_cast<unsigned char>(title[0]));
  return title;
}

}  // namespace

void AddRequestFlags(absl::Span<const absl::string_view> left_out, v1::GenerateRequest* request, FlagSet* flags) {
  const Comments comments;
  const auto add = [&](const Field& field) {
    const absl::string_view repeats =
        field.inner->is_repeated() || IsListOfTexts(*field.inner) ? " May be repeated." : "";
    flags->Add(field.inner->name(), request, field, absl::StrCat(comments.Of(*field.inner), repeats));
  };
  std::vector<const FieldDescriptor*> groups;
  flags->AddGroup("Request");
  const Descriptor& type = *v1::GenerateRequest::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    const bool is_input = field->real_containing_oneof() != nullptr;
    if (is_input || std::find(left_out.begin(), left_out.end(), field->name()) != left_out.end()) continue;
    if (field->message_type() != nullptr && !IsList(*field->message_type())) {
      groups.push_back(field);
    } else {
      add({nullptr, field});
    }
  }
  for (const FieldDescriptor* group : groups) {
    flags->AddGroup(Title(*group));
    for (int i = 0; i < group->message_type()->field_count(); ++i) add({group, group->message_type()->field(i)});
  }
}

}  // namespace berth::cli
