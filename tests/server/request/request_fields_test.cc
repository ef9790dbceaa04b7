// Tests every field of a GenerateRequest, found by the proto's descriptor. Each is in the table or read by hand,
// changes the request, survives a session file, and is checked in a client's request and in a file.
#include "server/request/request_fields.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/request/session_request.h"
#include "server/request/validation.h"
#include "tests/server/request/validation_test.h"

namespace berth {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Setter = std::function<void(v1::GenerateRequest*)>;

// "sampling.temperature", ...: the fields of the request and of its messages, but those that are one input.
std::set<std::string> FieldsOfProto() {
  std::set<std::string> names;
  const auto add = [&names](const Descriptor* message, const std::string& prefix) {
    for (int i = 0; i < message->field_count(); ++i) names.insert(prefix + message->field(i)->name());
  };
  add(v1::GenerateRequest::descriptor(), "");
  for (const Descriptor* message :
       {v1::Sampling::descriptor(), v1::Stopping::descriptor(), v1::BeamSearch::descriptor()}) {
    for (int i = 0; i < v1::GenerateRequest::descriptor()->field_count(); ++i) {
      const FieldDescriptor* field = v1::GenerateRequest::descriptor()->field(i);
      if (field->message_type() != message) continue;
      names.erase(field->name());
      add(message, field->name() + ".");
    }
  }
  return names;
}

// Sets a field of the table, whatever its type.
void Set(absl::string_view name, double value, v1::GenerateRequest* request) {
  Message* message = request;
  std::string leaf(name);
  if (const size_t dot = leaf.find('.'); dot != std::string::npos) {
    message = request->GetReflection()->MutableMessage(request,
                                                       request->GetDescriptor()->FindFieldByName(leaf.substr(0, dot)));
    leaf = leaf.substr(dot + 1);
  }
  const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(leaf);
  const auto* reflection = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(message, field, value != 0);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection->SetFloat(message, field, static_cast<float>(value));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->SetDouble(message, field, value);
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->SetInt32(message, field, static_cast<int32_t>(value));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->SetUInt32(message, field, static_cast<uint32_t>(value));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection->SetUInt64(message, field, static_cast<uint64_t>(value));
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection->SetEnumValue(message, field, static_cast<int>(value));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->SetString(message, field, std::string(static_cast<size_t>(value), 'x'));
    default:
      FAIL() << name << " has a type that this test cannot set";
  }
}

// What the table says of a field, in numbers: a text stands for its length.
struct Row {
  double good = 0;          // a value that is not the default
  std::vector<double> bad;  // values outside the range
};

class RowCollector {
 public:
  std::map<std::string, Row> rows;

  bool Has(absl::string_view) const { return true; }
  template <typename T, typename Values, typename Default>
  void operator()(absl::string_view name, const T&, const Values& values, const Default&) {
    Row row;
    if constexpr (std::is_same_v<Values, Range>) {
      row = {.good = values.high, .bad = {values.high + 1}};
      if (values.low != 0 || std::is_floating_point_v<T>) row.bad.push_back(values.low - 1);
      if (values.excludes_low) row.bad.push_back(values.low);
      if (std::is_floating_point_v<T>) {
        row.good = (values.low + values.high) / 2 + 0.25;
        row.bad.insert(row.bad.end(), {std::numeric_limits<double>::quiet_NaN(), HUGE_VAL, -HUGE_VAL});
      }
    } else if constexpr (std::is_same_v<T, bool>) {
      row.good = IsTrueByDefault(name) ? 0 : 1;
    } else if constexpr (std::is_same_v<T, std::string>) {
      row = {.good = 3, .bad = {129}};
    } else {
      row.good = 3;
    }
    EXPECT_TRUE(rows.emplace(std::string(name), row).second) << name << " is in the table twice";
  }

 private:
  static bool IsTrueByDefault(absl::string_view name) {
    return name == "skip_special_tokens" || name == "share_prefix";
  }
};

class RequestFieldsTest : public ValidationTest {
 protected:
  RequestFieldsTest() {
    context_.limits.default_draft_tokens = 2;
    context_.defaults = {.temperature = 0.75f, .top_p = 0.5f, .min_p = 0.25f, .repetition_penalty = 1.5f, .top_k = 50};
    request_.set_session_id("s");
    request_.set_cache_salt("tenant");
    RowCollector collector;
    ValidatedRequest none;
    VisitRequestFields(context_, 0, &none, collector);
    rows_ = collector.rows;
  }

  // A good value and, where there is one, a bad value for each field that is read by hand.
  static const std::map<std::string, std::pair<Setter, Setter>>& ByHand() {
    using R = v1::GenerateRequest;
    static const auto& fields = *new std::map<std::string, std::pair<Setter, Setter>>{
        {"prompt", {[](R* r) { r->set_prompt("ab"); }, [](R* r) { r->set_prompt(std::string(4097, 'x')); }}},
        {"chat", {[](R* r) { r->mutable_chat()->add_messages()->set_role("user"); }, [](R* r) { r->mutable_chat(); }}},
        {"token_ids",
         {[](R* r) { r->mutable_token_ids()->add_ids(7); }, [](R* r) { r->mutable_token_ids()->add_ids(100); }}},
        {"add_special_tokens",
         {[](R* r) {
            r->set_prompt("ab");
            r->set_add_special_tokens(false);
          },
          [](R* r) { r->set_add_special_tokens(false); }}},
        {"decoder_token_ids",
         {[](R* r) { r->mutable_decoder_token_ids()->add_ids(7); },
          [](R* r) { r->mutable_decoder_token_ids()->add_ids(100); }}},
        {"forced_bos_token_id",
         {[](R* r) { r->set_forced_bos_token_id(7); }, [](R* r) { r->set_forced_bos_token_id(100); }}},
        {"sampling.logit_bias",
         {[](R* r) { (*r->mutable_sampling()->mutable_logit_bias())[7] = 0.1f; },
          [](R* r) { (*r->mutable_sampling()->mutable_logit_bias())[7] = 100.5f; }}},
        {"stopping.max_tokens",
         {[](R* r) { r->mutable_stopping()->set_max_tokens(20); },
          [](R* r) { r->mutable_stopping()->set_max_tokens(64); }}},
        {"stopping.stop",
         {[](R* r) { r->mutable_stopping()->add_stop("xy"); }, [](R* r) { r->mutable_stopping()->add_stop(""); }}},
        {"stopping.stop_token_ids",
         {[](R* r) { r->mutable_stopping()->add_stop_token_ids(7); },
          [](R* r) { r->mutable_stopping()->add_stop_token_ids(100); }}},
        {"structure",
         {[](R* r) { r->mutable_structure()->set_regex("a+"); }, [](R* r) { r->mutable_structure()->set_regex(""); }}},
        {"stopping.ignore_eos", {[](R* r) { r->mutable_stopping()->set_ignore_eos(true); }, nullptr}},
    };
    return fields;
  }
  Setter GoodValue(const std::string& name) const {
    if (const auto found = ByHand().find(name); found != ByHand().end()) return found->second.first;
    return [name, good = rows_.at(name).good](v1::GenerateRequest* r) { Set(name, good, r); };
  }
  void UseModelOf(const std::string& name) {
    const bool of_decoder = name == "decoder_token_ids" || name == "forced_bos_token_id";
    context_.limits.max_encoder_tokens = of_decoder ? 20 : 0;
    if (of_decoder) context_.defaults.decoder_start_token_id = 95;
  }

  // Through a file on the disk, to a server with other defaults.
  absl::StatusOr<ValidatedRequest> ThroughFile(const ValidatedRequest& valid) {
    const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/request.session";
    if (absl::Status s = WriteSessionFile(path, MakeSessionFile(valid), CacheSnapshot()); !s.ok()) return s;
    absl::StatusOr<SessionFileContent> content = ReadSessionFile(path, /*with_snapshot=*/true);
    if (!content.ok()) return content.status();
    ValidationContext other = context_;
    other.limits.default_draft_tokens = 9;
    other.limits.default_max_tokens = 9;
    other.defaults = {.temperature = 1.25f, .top_p = 0.9f, .decoder_start_token_id = 3, .forced_bos_token_id = 3};
    ModelInfo model = model_;
    model.eos_token_ids = {98};
    other.model = &model;
    return ResumeSession(*std::move(content), other);
  }

  static void ExpectSame(const ValidatedRequest& got, const ValidatedRequest& wanted) {
    Request request = got.request;
    EXPECT_NE(request.progress, nullptr);
    request.progress = nullptr;
    EXPECT_TRUE(request == wanted.request);
    EXPECT_TRUE(got.output == wanted.output);
    EXPECT_EQ(got.session_id, wanted.session_id);
    EXPECT_TRUE(got.structure == wanted.structure);
    ASSERT_TRUE(got.session_request.has_value());
    EXPECT_EQ(got.session_request->DebugString(), wanted.session_request->DebugString());
  }

  std::map<std::string, Row> rows_;
};

TEST_F(RequestFieldsTest, TheTableAndTheListNameEachFieldOfTheProtoOnce) {
  std::set<std::string> named;
  for (const auto& [name, row] : rows_) named.insert(name);
  for (const absl::string_view name : kFieldsReadByHand) {
    EXPECT_TRUE(named.insert(std::string(name)).second) << name << " is in the table and in the list";
    EXPECT_EQ(ByHand().count(std::string(name)), 1u) << name << " has no value in this test";
  }
  EXPECT_EQ(named, FieldsOfProto());
}

TEST_F(RequestFieldsTest, EachFieldChangesTheRequestAndSurvivesASessionFile) {
  const std::set<std::string> not_of_sessions = {"n", "best_of", "beam_search.num_beams", "beam_search.length_penalty",
                                                 "beam_search.early_stopping"};
  const v1::GenerateRequest plain = request_;
  const GenerationDefaults defaults = context_.defaults;
  for (const std::string& name : FieldsOfProto()) {
    SCOPED_TRACE(name);
    const bool of_session = not_of_sessions.count(name) == 0;
    const bool of_beams = name.find("beam_search.") == 0;
    request_ = plain;
    context_.defaults = of_beams ? GenerationDefaults() : defaults;  // a penalty is refused beside beams
    UseModelOf(name);
    if (!of_session) request_.clear_session_id();
    if (of_beams && name != "beam_search.num_beams") request_.mutable_beam_search()->set_num_beams(2);
    if (name == "deliver_saved_only") request_.set_autosave_tokens(1);
    const absl::StatusOr<ValidatedRequest> before = Validate();
    GoodValue(name)(&request_);
    const absl::StatusOr<ValidatedRequest> valid = Validate();
    ASSERT_TRUE(valid.ok()) << valid.status();
    ASSERT_TRUE(before.ok()) << before.status();
    EXPECT_TRUE(!(valid->request == before->request) || !(valid->output == before->output) ||
                valid->request_id != before->request_id || valid->session_id != before->session_id ||
                valid->structure != before->structure)
        << "the field has no effect";
    if (!of_session) {
      request_.set_session_id("s");
      EXPECT_THAT(Message(), StartsWith("session_id: a session has 1 output"));
      continue;
    }
    const absl::StatusOr<ValidatedRequest> resumed = ThroughFile(*valid);
    ASSERT_TRUE(resumed.ok()) << resumed.status();
    ExpectSame(*resumed, *valid);
  }
}

TEST_F(RequestFieldsTest, AllFieldsTogetherSurviveASessionFile) {
  // A structure is refused beside ignore_eos, the others beside a session or another input.
  const std::set<std::string> left_out = {
      "n", "best_of", "chat", "token_ids", "decoder_token_ids", "forced_bos_token_id", "structure"};
  for (const std::string& name : FieldsOfProto()) {
    if (left_out.count(name) == 0 && name.find("beam_search.") != 0) GoodValue(name)(&request_);
  }
  const absl::StatusOr<ValidatedRequest> valid = Validate();
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->request.draft_tokens, kMaxDraftTokens);
  const absl::StatusOr<ValidatedRequest> resumed = ThroughFile(*valid);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  ExpectSame(*resumed, *valid);
}

TEST_F(RequestFieldsTest, TheModelsRulesSurviveASessionFile) {
  context_.defaults.rules = {.no_repeat_ngram_size = 3,
                             .no_repeat_input_ngram_size = 2,
                             .suppressed = {5, 1000},
                             .suppressed_first = {6},
                             .biases = {{{1}, 0.5f}, {{1, 2}, -HUGE_VALF}}};
  context_.defaults.stop_strings = {"xy", "\n<95>"};  // <95> is a special token, so a client's would be refused
  context_.defaults.min_new_tokens = 2;
  context_.defaults.max_new_tokens = 7;
  context_.defaults.forced_eos_token_ids = {9};
  const absl::StatusOr<ValidatedRequest> valid = Validate();
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->request.rules, context_.defaults.rules);
  const absl::StatusOr<ValidatedRequest> resumed = ThroughFile(*valid);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  ExpectSame(*resumed, *valid);
}

TEST_F(RequestFieldsTest, ValuesOutsideTheRangeAreRefusedByName) {
  const v1::GenerateRequest plain = request_;
  for (const auto& [name, row] : rows_) {
    for (const double bad : row.bad) {
      request_ = plain;
      if (name.find("beam_search.") == 0) request_.mutable_beam_search()->set_num_beams(2);
      Set(name, bad, &request_);
      EXPECT_THAT(Message(), StartsWith(absl::StrCat(name, ": "))) << bad;
      EXPECT_THAT(Message(), HasSubstr("outside")) << bad;
      EXPECT_EQ(Validate().status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
  for (const auto& [name, values] : ByHand()) {
    if (values.second == nullptr) continue;
    UseModelOf(name);
    request_ = plain;
    values.second(&request_);
    EXPECT_FALSE(Validate().ok()) << name;
  }
}

// A file whose checksums are right may still hold anything.
TEST_F(RequestFieldsTest, AForgedFileIsRefusedByTheNameOfItsField) {
  request_.set_logprobs(1);
  const v1::SessionFile good = MakeSessionFile(*Validate());
  const auto refusal = [&](const std::function<void(v1::SessionFile*)>& forge) {
    SessionFileContent content;
    content.file = good;
    content.file.add_output(1);
    content.file.add_output_logprobs()->add_top()->set_token_id(1);
    forge(&content.file);
    const absl::Status status = ResumeSession(std::move(content), context_).status();
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    }
    return std::string(status.message());
  };
  EXPECT_EQ(refusal([](v1::SessionFile*) {}), "");
  EXPECT_EQ(refusal([](v1::SessionFile* f) { Set("sampling.temperature", NAN, f->mutable_request()); }),
            "session_id: \"s\" cannot be resumed by this server: sampling.temperature: nan is outside [0, 100]");
  for (const auto& [name, row] : rows_) {
    for (const double bad : row.bad) {
      const auto forge = [&name = name, bad](v1::SessionFile* f) {
        if (name.find("beam_search.") == 0) f->mutable_request()->mutable_beam_search()->set_num_beams(2);
        Set(name, bad, f->mutable_request());
      };
      EXPECT_THAT(refusal(forge), HasSubstr(absl::StrCat(": ", name, ": "))) << bad;
    }
  }
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->mutable_request()->set_best_of(2); }), HasSubstr("1 output"));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->clear_request(); }), HasSubstr("input"));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->add_stop_token_ids(100); }), HasSubstr("stop_token_ids["));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->add_forced_first(-1); }), HasSubstr("forced_first[0]"));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->add_forced_last(100); }), HasSubstr("forced_last[0]"));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->set_no_repeat_input_ngram_size(-1); }),
              HasSubstr("no_repeat_input_ngram_size: -1"));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->add_biases(); }), HasSubstr("biases.token_ids: 0 tokens"));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->add_text_context(100); }), HasSubstr("text_context["));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->set_output(0, 100); }), HasSubstr("output[0]: token id 100"));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->add_output(1); }), HasSubstr("output_logprobs: 1 entries"));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->mutable_output_logprobs(0)->add_top(); }),
              HasSubstr("output_logprobs.top: 2 entries"));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->mutable_output_logprobs(0)->mutable_top(0)->set_token_id(-1); }),
              HasSubstr("output_logprobs.top: token id -1"));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->mutable_output_logprobs(0)->set_logprob(NAN); }),
              HasSubstr("output_logprobs.logprob"));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->set_finish(v1::FINISH_REASON_CANCELLED); }), HasSubstr("finish: 3"));
  EXPECT_THAT(refusal([](v1::SessionFile* f) { f->set_stop_token(100); }), HasSubstr("stop_token: 100"));
}

}  // namespace
}  // namespace berth
