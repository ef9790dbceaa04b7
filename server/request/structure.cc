#include "server/request/structure.h"

#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/request/field_checks.h"

namespace berth {
namespace {

using Kind = GrammarSpec::Kind;
using Whitespace = GrammarSpec::Whitespace;

constexpr int64_t kMaxChoices = 4096;
constexpr int64_t kMaxBeginBytes = 256;

static_assert(static_cast<int>(Whitespace::kFlexible) == v1::WHITESPACE_FLEXIBLE);
static_assert(static_cast<int>(Whitespace::kCompact) == v1::WHITESPACE_COMPACT);
static_assert(static_cast<int>(Whitespace::kSpaced) == v1::WHITESPACE_SPACED);

const char* FieldOf(Kind kind) {
  switch (kind) {
    case Kind::kJsonSchema:
      return "structure.json_schema";
    case Kind::kJsonObject:
      return "structure.json_object";
    case Kind::kRegex:
      return "structure.regex";
    case Kind::kChoice:
      return "structure.choice";
    case Kind::kLark:
      return "structure.lark";
    case Kind::kStructuralTag:
      return "structure.structural_tag";
  }
  return "structure";
}

// A structure is read in three steps: its kind, with the text or the choices; the options that fit this kind; and where
// it begins. Each error names the field, the value and the limit.
absl::Status ReadText(Kind kind, const std::string& text, int64_t limit, GrammarSpec* spec) {
  spec->kind = kind;
  spec->text = text;
  if (text.empty()) return Invalid(FieldOf(kind), ": is empty");
  return CheckText(FieldOf(kind), text, limit);
}

absl::Status ReadChoices(const v1::Choices& in, int64_t limit, GrammarSpec* spec) {
  const char* field = FieldOf(Kind::kChoice);
  spec->kind = Kind::kChoice;
  if (in.choices_size() == 0) return Invalid(field, ": 0 choices; at least 1 is needed");
  if (absl::Status s = CheckCount(field, in.choices_size(), kMaxChoices); !s.ok()) return s;
  int64_t bytes = 0;
  for (int i = 0; i < in.choices_size(); ++i) {
    if (in.choices(i).empty()) return Invalid(field, "[", i, "]: is empty");
    bytes += static_cast<int64_t>(in.choices(i).size());
  }
  if (bytes > limit) return Invalid(field, ": ", bytes, " bytes together are over the limit of ", limit);
  spec->choices.assign(in.choices().begin(), in.choices().end());
  return absl::OkStatus();
}

absl::Status ReadKind(const v1::Structure& in, int64_t limit, GrammarSpec* spec) {
  switch (in.kind_case()) {
    case v1::Structure::kJsonSchema:
      return ReadText(Kind::kJsonSchema, in.json_schema(), limit, spec);
    case v1::Structure::kRegex:
      return ReadText(Kind::kRegex, in.regex(), limit, spec);
    case v1::Structure::kLark:
      return ReadText(Kind::kLark, in.lark(), limit, spec);
    case v1::Structure::kStructuralTag:
      return ReadText(Kind::kStructuralTag, in.structural_tag(), limit, spec);
    case v1::Structure::kChoice:
      return ReadChoices(in.choice(), limit, spec);
    case v1::Structure::kJsonObject:
      spec->kind = Kind::kJsonObject;
      return in.json_object() ? absl::OkStatus() : Invalid("structure.json_object: false; only true is accepted");
    case v1::Structure::KIND_NOT_SET:
      return Invalid("structure: none of json_schema, json_object, regex, choice, lark, structural_tag is set");
  }
  return absl::OkStatus();
}

absl::Status ReadWhitespace(const v1::Structure& in, GrammarSpec* spec) {
  if (!in.has_whitespace()) return absl::OkStatus();
  const Kind kind = spec->kind;
  if (kind != Kind::kJsonSchema && kind != Kind::kJsonObject && kind != Kind::kStructuralTag) {
    return Invalid("structure.whitespace: applies to JSON only; ", FieldOf(kind), " is set");
  }
  if (absl::Status s = CheckRange("structure.whitespace", int64_t{in.whitespace()}, Closed(0, v1::Whitespace_MAX));
      !s.ok()) {
    return s;
  }
  spec->whitespace = static_cast<Whitespace>(in.whitespace());
  return absl::OkStatus();
}

absl::Status ReadUnknownKeywords(const v1::Structure& in, GrammarSpec* spec) {
  if (!in.has_unknown_keywords()) return absl::OkStatus();
  if (spec->kind != Kind::kJsonSchema && spec->kind != Kind::kStructuralTag && spec->kind != Kind::kLark) {
    return Invalid("structure.unknown_keywords: applies to schemas only; ", FieldOf(spec->kind), " is set");
  }
  spec->refuse_unknown = in.unknown_keywords() == v1::UNKNOWN_KEYWORDS_REFUSE;
  return CheckRange("structure.unknown_keywords", int64_t{in.unknown_keywords()}, Closed(0, v1::UnknownKeywords_MAX));
}

absl::Status ReadPropertyOrder(const v1::Structure& in, GrammarSpec* spec) {
  if (!in.has_property_order()) return absl::OkStatus();
  if (spec->kind != Kind::kJsonSchema && spec->kind != Kind::kStructuralTag && spec->kind != Kind::kLark) {
    return Invalid("structure.property_order: applies to schemas only; ", FieldOf(spec->kind), " is set");
  }
  spec->any_order = in.property_order() == v1::PROPERTY_ORDER_ANY;
  return CheckRange("structure.property_order", int64_t{in.property_order()}, Closed(0, v1::PropertyOrder_MAX));
}

absl::Status ReadBegin(const v1::Structure& in, int64_t vocab_size, GrammarSpec* spec) {
  if (in.begin_case() == v1::Structure::kBeginAfterToken) {
    spec->begin_token = in.begin_after_token();
    return CheckToken("structure.begin_after_token", in.begin_after_token(), vocab_size);
  }
  if (in.begin_case() != v1::Structure::kBeginAfterText) return absl::OkStatus();
  spec->begin_text = in.begin_after_text();
  const int64_t bytes = static_cast<int64_t>(spec->begin_text.size());
  if (bytes >= 1 && bytes <= kMaxBeginBytes) return absl::OkStatus();
  return Invalid("structure.begin_after_text: ", bytes, " bytes are outside [1, ", kMaxBeginBytes, "]");
}

}  // namespace

absl::StatusOr<GrammarSpec> ReadStructure(const v1::GenerateRequest& in, const ValidationContext& context) {
  if (!context.text->has_tokenizer()) return Invalid("structure: the model has no tokenizer");
  if (in.stopping().ignore_eos()) {
    return Invalid("structure: cannot be combined with stopping.ignore_eos, since a structure ends by an end token");
  }
  GrammarSpec spec;
  const v1::Structure& structure = in.structure();
  if (absl::Status s = ReadKind(structure, context.limits.max_structure_bytes, &spec); !s.ok()) return s;
  Checks checks;
  checks.Add(ReadWhitespace(structure, &spec));
  checks.Add(ReadUnknownKeywords(structure, &spec));
  checks.Add(ReadPropertyOrder(structure, &spec));
  checks.Add(ReadBegin(structure, context.model->vocab_size, &spec));
  if (!checks.status().ok()) return checks.status();
  return spec;
}

absl::Status BeginAfterPrompt(absl::Span<const int32_t> prompt, const TextCodec& text, GrammarSpec* spec) {
  if (spec->begin_text.empty()) return absl::OkStatus();
  // More tokens than the text has bytes, and some for what a decoder drops at the start.
  const size_t count = std::min(prompt.size(), spec->begin_text.size() + 16);
  const auto end = text.Decode(prompt.last(count), /*skip_special_tokens=*/false);
  if (!end.ok()) return end.status();
  if (absl::EndsWith(*end, spec->begin_text)) spec->begin_text.clear();
  return absl::OkStatus();
}

absl::Status NameStructure(const GrammarSpec& spec, const absl::Status& error) {
  if (!absl::IsInvalidArgument(error)) return error;
  return Invalid(FieldOf(spec.kind), ": ", error.message());
}

}  // namespace berth
