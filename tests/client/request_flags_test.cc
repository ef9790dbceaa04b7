// The flags that follow from the proto: one for each field, each with help, each setting its field.
#include "client/request_flags.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace berth::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct FlagField {
  const FieldDescriptor* outer = nullptr;  // null: of the request itself
  const FieldDescriptor* inner = nullptr;
};

std::vector<FlagField> AllFields() {
  std::vector<FlagField> fields;
  const Descriptor& type = *v1::GenerateRequest::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    if (field->real_containing_oneof() != nullptr) continue;
    if (field->message_type() == nullptr || field->message_type() == v1::TokenIds::descriptor()) {
      fields.push_back({nullptr, field});
      continue;
    }
    for (int j = 0; j < field->message_type()->field_count(); ++j) {
      fields.push_back({field, field->message_type()->field(j)});
    }
  }
  return fields;
}

std::string SomeFile() {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/some_file";
  std::ofstream(path) << "{\"type\": \"object\"}\n";
  return path;
}

std::string SomeValue(const FieldDescriptor& field) {
  if (field.is_map()) return "5:-1.5";
  if (field.name() == "json_schema" || field.name() == "lark" || field.name() == "structural_tag") return SomeFile();
  if (field.enum_type() != nullptr && field.enum_type()->name() == "Whitespace") return "compact";
  if (field.enum_type() != nullptr && field.enum_type()->name() == "UnknownKeywords") return "refuse";
  if (field.enum_type() != nullptr && field.enum_type()->name() == "PropertyOrder") return "any";
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return "never";
    case FieldDescriptor::CPPTYPE_STRING:
      return "text";
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "0.5";
    default:
      return "3";
  }
}

TEST(RequestFlags, EachFieldIsAFlagWithItsCommentAsHelp) {
  v1::GenerateRequest request;
  FlagSet flags;
  AddRequestFlags({}, &request, &flags);
  std::set<std::string> names;
  for (const absl::string_view line : absl::StrSplit(flags.Markdown(), '\n')) {
    if (!absl::StartsWith(line, "| `--")) continue;
    const absl::string_view name = line.substr(5, line.find_first_of("=`", 5) - 5);
    EXPECT_TRUE(names.insert(std::string(name)).second) << name << " is a flag twice";
  }
  std::set<std::string> wanted;
  for (const FlagField& field : AllFields()) wanted.insert(field.inner->name());
  EXPECT_EQ(names, wanted);
  EXPECT_THAT(flags.Help(),
              AllOf(HasSubstr("--draft_tokens=n"), HasSubstr("Check at most this many draft tokens per step"),
                    HasSubstr("--early_stopping=false|true|never"), HasSubstr("\nBeam search:\n")));
  EXPECT_THAT(flags.Markdown(), Not(HasSubstr("|  |\n"))) << "a field has no comment";
}

TEST(RequestFlags, EachFlagSetsItsFieldAndNoOther) {
  for (const FlagField& field : AllFields()) {
    SCOPED_TRACE(field.inner->full_name());
    v1::GenerateRequest request;
    FlagSet flags;
    AddRequestFlags({}, &request, &flags);
    const std::string argument = absl::StrCat("--", field.inner->name(), "=", SomeValue(*field.inner));
    ASSERT_TRUE(flags.Parse({argument}).ok()) << flags.Parse({argument}).status();
    const Message& message =
        field.outer == nullptr ? request : request.GetReflection()->GetMessage(request, field.outer);
    std::vector<const FieldDescriptor*> set;
    message.GetReflection()->ListFields(message, &set);
    EXPECT_EQ(set, std::vector<const FieldDescriptor*>{field.inner});
    request.GetReflection()->ListFields(request, &set);
    EXPECT_EQ(set, std::vector<const FieldDescriptor*>{field.outer == nullptr ? field.inner : field.outer});
  }
}

TEST(RequestFlags, ListsGrow) {
  v1::GenerateRequest request;
  FlagSet flags;
  AddRequestFlags({}, &request, &flags);
  ASSERT_TRUE(flags
                  .Parse({"--stop=x,y", "--stop=z", "--stop_token_ids=1,2", "--stop_token_ids=3", "--logit_bias=5:-1.5",
                          "--logit_bias=6:2", "--decoder_token_ids=7,8"})
                  .ok());
  EXPECT_THAT(request.stopping().stop(), ::testing::ElementsAre("x,y", "z"));
  EXPECT_THAT(request.stopping().stop_token_ids(), ::testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(request.decoder_token_ids().ids(), ::testing::ElementsAre(7, 8));
  EXPECT_EQ(request.sampling().logit_bias().at(5), -1.5f);
  EXPECT_EQ(request.sampling().logit_bias().at(6), 2.0f);
}

TEST(RequestFlags, AStructureIsOfOneKind) {
  v1::GenerateRequest request;
  FlagSet flags;
  AddRequestFlags({}, &request, &flags);
  ASSERT_TRUE(flags.Parse({"--choice=yes, or", "--choice=no"}).ok());
  EXPECT_THAT(request.structure().choice().choices(), ::testing::ElementsAre("yes, or", "no"));
  EXPECT_EQ(flags.Parse({"--regex=a"}).status().message(), "--regex: a cannot be combined with --choice");
  request.Clear();
  ASSERT_TRUE(flags.Parse({"--json_schema=" + SomeFile()}).ok());
  EXPECT_EQ(request.structure().json_schema(), "{\"type\": \"object\"}\n");
  request.Clear();
  EXPECT_EQ(flags.Parse({"--lark=/no/file"}).status().message(), "--lark: /no/file cannot be read");
  EXPECT_EQ(flags.Parse({"--lark=/"}).status().message(), "--lark: / cannot be read");
}

TEST(RequestFlags, ErrorsNameFlagValueAndWhatIsAllowed) {
  v1::GenerateRequest request;
  FlagSet flags;
  AddRequestFlags({"n", "beam_search"}, &request, &flags);
  const auto error = [&](const std::string& argument) {
    return std::string(flags.Parse({argument}).status().message());
  };
  EXPECT_THAT(error("--seed=-1"), HasSubstr("--seed: -1 is not a whole number"));
  EXPECT_THAT(error("--logit_bias=x:1"), HasSubstr("--logit_bias: x:1 is not ID:BIAS"));
  EXPECT_THAT(error("--stop_token_ids=1,x"), HasSubstr("--stop_token_ids: x is not a token id"));
  EXPECT_THAT(error("--n=2"), HasSubstr("unknown flag --n"));
  EXPECT_THAT(error("--num_beams=2"), HasSubstr("unknown flag --num_beams"));
}

}  // namespace
}  // namespace berth::cli
