// vLLM's messages to and from berth.v1's: no field is passed over in silence, and nothing is lost on the way back.
#include "server/vllm/messages.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/server/request/validation_test.h"

namespace berth {
namespace {

namespace engine = ::vllm::grpc::engine;
using google::protobuf::FieldDescriptor;
using google::protobuf::util::MessageDifferencer;

// They are about text, which is not returned, or say what always holds.
const std::set<std::string>& FieldsWithoutEffect() {
  static const auto* const names = new std::set<std::string>(
      {"spaces_between_special_tokens", "include_stop_str_in_output", "grammar_from_first_token", "original_text"});
  return *names;
}

// Sets the field to a value that is not its default.
void SetField(const FieldDescriptor* field, google::protobuf::Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  if (field->is_map()) {
    google::protobuf::Message* const entry = reflection.AddMessage(message, field);
    entry->GetReflection()->SetInt32(entry, entry->GetDescriptor()->field(0), 3);
    entry->GetReflection()->SetFloat(entry, entry->GetDescriptor()->field(1), 2);
    return;
  }
  const bool repeated = field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_FLOAT:
      return reflection.SetFloat(message, field, 0.5f);
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(message, field, 3);
    case FieldDescriptor::CPPTYPE_UINT32:
      return repeated ? reflection.AddUInt32(message, field, 3) : reflection.SetUInt32(message, field, 3);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(message, field, true);
    case FieldDescriptor::CPPTYPE_STRING:
      return repeated ? reflection.AddString(message, field, "x") : reflection.SetString(message, field, "x");
    default:
      repeated ? reflection.AddMessage(message, field) : reflection.MutableMessage(message, field);
  }
}

class MessagesTest : public ValidationTest {
 protected:
  static engine::GenerateRequest Valid() {
    engine::GenerateRequest request;
    request.mutable_tokenized()->add_input_ids(1);
    return request;
  }
  v1::GenerateRequest Translate(const engine::GenerateRequest& request) {
    const absl::StatusOr<v1::GenerateRequest> out = ToBerth(request, context_);
    EXPECT_TRUE(out.ok()) << out.status();
    return out.value_or(v1::GenerateRequest());
  }
  // Whether `request` becomes another request than the plain one, or is refused with the field's name.
  void ExpectSeen(const engine::GenerateRequest& request, const std::string& name, const std::string& short_name) {
    const absl::StatusOr<v1::GenerateRequest> out = ToBerth(request, context_);
    if (FieldsWithoutEffect().count(short_name) > 0) {
      ASSERT_TRUE(out.ok()) << name;
      EXPECT_TRUE(MessageDifferencer::Equals(*out, Translate(Valid()))) << name;
    } else if (out.ok()) {
      EXPECT_FALSE(MessageDifferencer::Equals(*out, Translate(Valid()))) << name << " has no effect";
    } else {
      EXPECT_EQ(out.status().message().substr(0, name.size()), name) << out.status();
    }
  }
};

TEST_F(MessagesTest, EveryFieldOfSamplingHasAnEffectOrIsRefusedByName) {
  const google::protobuf::Descriptor& type = *engine::SamplingParams::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    engine::GenerateRequest request = Valid();
    SetField(type.field(i), request.mutable_sampling_params());
    ExpectSeen(request, "sampling_params." + std::string(type.field(i)->name()), std::string(type.field(i)->name()));
  }
}

TEST_F(MessagesTest, EveryFieldOfTheRequestHasAnEffectOrIsRefusedByName) {
  const google::protobuf::Descriptor& type = *engine::GenerateRequest::descriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const std::string name(type.field(i)->name());
    if (name == "tokenized" || name == "sampling_params") continue;  // not one value
    engine::GenerateRequest request = Valid();
    SetField(type.field(i), &request);
    if (name == "stream") {
      EXPECT_TRUE(ToBerth(request, context_).ok());  // the call and Answers read it
    } else {
      ExpectSeen(request, name, name);
    }
  }
}

TEST_F(MessagesTest, ZeroAndEmptyAreAbsent) {
  const v1::GenerateRequest plain = Translate(Valid());
  EXPECT_FALSE(plain.has_request_id());
  EXPECT_FALSE(plain.has_n());
  EXPECT_FALSE(plain.has_logprobs());
  EXPECT_FALSE(plain.has_structure());
  EXPECT_TRUE(MessageDifferencer::Equals(plain.sampling(), v1::Sampling()));
  EXPECT_TRUE(MessageDifferencer::Equals(plain.stopping(), v1::Stopping()));
  engine::GenerateRequest zeros = Valid();
  zeros.mutable_sampling_params()->set_temperature(0);
  zeros.mutable_sampling_params()->set_seed(0);
  zeros.mutable_sampling_params()->set_logprobs(0);
  const v1::GenerateRequest out = Translate(zeros);
  EXPECT_TRUE(out.sampling().has_temperature());
  EXPECT_TRUE(out.sampling().has_seed());
  EXPECT_TRUE(out.has_logprobs());
}

TEST_F(MessagesTest, NumbersAreCheckedBeforeTheyAreCut) {
  engine::GenerateRequest request = Valid();
  request.mutable_tokenized()->add_input_ids(4294967295u);
  EXPECT_EQ(ToBerth(request, context_).status().message().substr(0, 54),
            "tokenized.input_ids[1]: token id 4294967295 is outside");
  request = Valid();
  request.mutable_sampling_params()->add_stop_token_ids(2147483648u);
  EXPECT_NE(ToBerth(request, context_).status().message().find("2147483648"), absl::string_view::npos);
  request = Valid();
  request.mutable_sampling_params()->set_seed(-1);
  EXPECT_EQ(Translate(request).sampling().seed(), 4294967295u);
}

TEST_F(MessagesTest, AGrammarIsLarkOrBecomesIt) {
  engine::GenerateRequest request = Valid();
  request.mutable_sampling_params()->set_grammar("start: \"a\"");
  EXPECT_EQ(Translate(request).structure().lark(), "start: \"a\"");
  request.mutable_sampling_params()->set_grammar("root ::= \"a\"");
  EXPECT_EQ(Translate(request).structure().lark(), "start: \"a\"\n");
  context_.limits.max_structure_bytes = 5;
  EXPECT_EQ(ToBerth(request, context_).status().message(), "sampling_params.grammar: 12 bytes are over the limit of 5");
}

TEST_F(MessagesTest, ErrorsNameTheFieldsOfTheContract) {
  const auto renamed = [](const char* message) {
    return std::string(WithContractNames(absl::InvalidArgumentError(message)).message());
  };
  EXPECT_EQ(renamed("sampling.top_p: 2"), "sampling_params.top_p: 2");
  EXPECT_EQ(renamed("logprobs: 9"), "sampling_params.logprobs: 9");
  EXPECT_EQ(renamed("n: 99"), "sampling_params.n: 99");
  EXPECT_EQ(renamed("structure.lark: x"), "sampling_params.grammar: x");
  EXPECT_EQ(renamed("structure.choice[1]: is empty"), "sampling_params.choice.choices[1]: is empty");
  EXPECT_EQ(renamed("prompt: 9 tokens and stopping.max_tokens 4 exceed"),
            "input: 9 tokens and sampling_params.max_tokens 4 exceed");
  const absl::Status full = absl::ResourceExhaustedError("sampling.");
  EXPECT_EQ(WithContractNames(full), full);
  EXPECT_TRUE(WithContractNames(absl::OkStatus()).ok());
}

TEST_F(MessagesTest, DefaultsAreWrittenAsTheyStandInTheModelsFile) {
  EXPECT_EQ(SamplingDefaultsJson({}), "{}");
  GenerationDefaults defaults;
  defaults.temperature = 0.7f;
  defaults.top_p = 0.95f;
  defaults.top_k = 20;
  defaults.repetition_penalty = 1.05f;
  EXPECT_EQ(SamplingDefaultsJson(defaults), R"({"repetition_penalty":1.05,"temperature":0.7,"top_k":20,"top_p":0.95})");
}

v1::GenerateResponse Piece(uint32_t index, std::vector<int32_t> tokens) {
  v1::GenerateResponse out;
  out.set_index(index);
  out.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  out.mutable_usage()->set_prompt_tokens(7);
  out.mutable_usage()->set_cached_tokens(4);
  out.mutable_usage()->set_completion_tokens(99);  // of all outputs
  for (int32_t token : tokens) {
    v1::TokenLogprobs* const entry = out.add_logprobs();
    entry->set_token_id(token);
    entry->set_logprob(-0.5f);
    entry->add_top()->set_token_id(token + 1);
  }
  return out;
}

TEST_F(MessagesTest, AStreamHasChunksAndOneEndForEachOutput) {
  engine::GenerateRequest request = Valid();
  request.set_stream(true);
  request.mutable_sampling_params()->set_logprobs(1);
  request.mutable_sampling_params()->add_stop_token_ids(5);
  Answers answers(request);
  const auto first = answers.Translate(Piece(1, {3, 4}));
  ASSERT_EQ(first.size(), 1u);
  const engine::GenerateStreamChunk& chunk = first[0].chunk();
  EXPECT_EQ(chunk.token_ids_size(), 2);
  EXPECT_EQ(chunk.prompt_tokens(), 7u);
  EXPECT_EQ(chunk.completion_tokens(), 2u);
  EXPECT_EQ(chunk.cached_tokens(), 4u);
  EXPECT_EQ(chunk.index(), 1u);
  EXPECT_EQ(chunk.output_logprobs().top_logprobs(1).token_ids(0), 5u);
  v1::GenerateResponse end = Piece(1, {5});
  end.set_finish_reason(v1::FINISH_REASON_STOP);
  end.set_stop_token_id(5);
  const auto last = answers.Translate(end);
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last[0].chunk().token_ids(0), 5u);
  EXPECT_EQ(last[1].complete().finish_reason(), "stop");
  EXPECT_EQ(last[1].complete().completion_tokens(), 3u);
  EXPECT_EQ(last[1].complete().matched_token_id(), 5u);
  EXPECT_EQ(last[1].complete().output_ids_size(), 0);
  v1::GenerateResponse aborted = Piece(0, {});
  aborted.set_finish_reason(v1::FINISH_REASON_CANCELLED);
  const auto abort = answers.Translate(aborted);
  ASSERT_EQ(abort.size(), 1u);
  EXPECT_EQ(abort[0].complete().finish_reason(), "abort");
  EXPECT_EQ(abort[0].complete().completion_tokens(), 0u);
}

TEST_F(MessagesTest, WithoutStreamingEachOutputIsOneMessage) {
  Answers answers(Valid());
  v1::GenerateResponse joined = Piece(0, {3, 2});
  joined.set_finish_reason(v1::FINISH_REASON_STOP);
  joined.set_stop_token_id(2);  // an end token of the model, which no list of the request has
  v1::GenerateResponse* const other = joined.add_other_outputs();
  other->set_index(1);
  other->add_token_ids(8);
  other->set_finish_reason(v1::FINISH_REASON_STOP);
  other->set_stop_string("x");
  const auto out = answers.Translate(joined);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].complete().matched_stop_case(), engine::GenerateComplete::MATCHED_STOP_NOT_SET);
  EXPECT_EQ(out[0].complete().completion_tokens(), 2u);
  EXPECT_EQ(out[0].complete().output_logprobs().token_logprobs_size(), 2);
  EXPECT_EQ(out[0].complete().output_logprobs().top_logprobs_size(), 0);  // none were asked for
  EXPECT_EQ(out[1].complete().index(), 1u);
  EXPECT_EQ(out[1].complete().prompt_tokens(), 7u);
  EXPECT_EQ(out[1].complete().completion_tokens(), 1u);
  EXPECT_EQ(out[1].complete().matched_stop_str(), "x");
}

// A prompt of the tokens 9, 8 and 7.
v1::GenerateResponse WithPromptLogprobs(v1::GenerateResponse message) {
  message.mutable_usage()->set_prompt_tokens(3);
  for (int32_t token : {9, 8, 7}) message.add_prompt_token_ids(token);
  for (int32_t token : {8, 7}) {
    v1::TokenLogprobs* const entry = message.add_prompt_logprobs();
    entry->set_token_id(token);
    entry->set_logprob(-0.25f);
    entry->add_top()->set_token_id(token + 1);
  }
  return message;
}

void ExpectPromptLogprobs(const engine::InputLogProbs& logprobs, int num_top) {
  EXPECT_THAT(logprobs.token_ids(), testing::ElementsAre(9, 8, 7));
  ASSERT_EQ(logprobs.token_logprobs_size(), 3);
  EXPECT_FALSE(logprobs.token_logprobs(0).has_value());
  EXPECT_EQ(logprobs.token_logprobs(2).value(), -0.25f);
  ASSERT_EQ(logprobs.top_logprobs_size(), num_top);
  if (num_top == 0) return;
  EXPECT_EQ(logprobs.top_logprobs(0).token_ids_size(), 0);
  EXPECT_THAT(logprobs.top_logprobs(2).token_ids(), testing::ElementsAre(8));
}

TEST_F(MessagesTest, PromptLogprobsAreAskedForWithTheTokenThatHasNone) {
  engine::GenerateRequest request = Valid();
  request.mutable_sampling_params()->set_prompt_logprobs(0);
  EXPECT_TRUE(Translate(request).has_prompt_logprobs());
  EXPECT_TRUE(Translate(request).return_prompt_token_ids());
  EXPECT_FALSE(Translate(Valid()).return_prompt_token_ids());
  request.mutable_sampling_params()->set_prompt_logprobs(-1);
  EXPECT_EQ(ToBerth(request, context_).status().message().substr(0, 34), "sampling_params.prompt_logprobs: -");
  request.mutable_sampling_params()->set_prompt_logprobs(1);
  context_.limits.max_encoder_tokens = 10;
  EXPECT_EQ(ToBerth(request, context_).status().message(),
            "sampling_params.prompt_logprobs: not supported for a model with an encoder");
  EXPECT_EQ(WithContractNames(absl::InvalidArgumentError("prompt_logprobs: 9")).message(),
            "sampling_params.prompt_logprobs: 9");
}

TEST_F(MessagesTest, PromptLogprobsAreInTheFirstMessageOfTheFirstOutput) {
  engine::GenerateRequest request = Valid();
  request.set_stream(true);
  request.mutable_sampling_params()->set_prompt_logprobs(1);
  Answers stream(request);
  // The ids come with the first message, whichever output it is of.
  v1::GenerateResponse other = Piece(1, {3});
  other.add_prompt_token_ids(9);
  EXPECT_FALSE(stream.Translate(other)[0].chunk().has_input_logprobs());
  v1::GenerateResponse first = WithPromptLogprobs(Piece(0, {3}));
  first.clear_prompt_token_ids();
  ExpectPromptLogprobs(stream.Translate(first)[0].chunk().input_logprobs(), 3);
  EXPECT_FALSE(stream.Translate(Piece(0, {4}))[0].chunk().has_input_logprobs());

  request.set_stream(false);
  request.mutable_sampling_params()->set_prompt_logprobs(0);
  v1::GenerateResponse joined = WithPromptLogprobs(Piece(0, {3}));
  joined.add_other_outputs()->set_index(1);
  const auto whole = Answers(request).Translate(joined);
  joined.clear_prompt_logprobs();
  EXPECT_FALSE(Answers(request).Translate(joined)[0].complete().has_input_logprobs()) << "ended before its first token";
  ExpectPromptLogprobs(whole[0].complete().input_logprobs(), 0);
  EXPECT_FALSE(whole[1].complete().has_input_logprobs());
}

}  // namespace
}  // namespace berth
