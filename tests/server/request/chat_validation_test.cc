// Chats: what the template makes of them, what is refused, and random bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/server/request/validation_test.h"

namespace berth {
namespace {

class ChatValidationTest : public ValidationTest {
 protected:
  ChatValidationTest() {
    context_.limits.max_sequence_tokens = 10000;
    message_ = request_.mutable_chat()->add_messages();
    message_->set_role("user");
    message_->set_content("hi");
  }
  std::string Prompt() {
    absl::StatusOr<ValidatedRequest> valid = Validate();
    return valid.ok() ? *codec_.Decode(valid->request.prompt, false) : std::string(valid.status().message());
  }
  v1::ChatMessage* message_;
};

TEST_F(ChatValidationTest, IsRenderedWithTheTemplateAndGetsNoSpecialTokens) {
  EXPECT_EQ(Prompt(), "user:hi|assistant:");
  EXPECT_TRUE(Validate()->output.text.context.empty());
  request_.mutable_chat()->set_add_generation_prompt(false);
  EXPECT_EQ(Prompt(), "user:hi|");
}

TEST_F(ChatValidationTest, NeedsATemplateThatTakesTheMessages) {
  message_->set_role("refused");
  EXPECT_EQ(Message(), "chat: role refused");
  codec_.with_template = false;
  EXPECT_EQ(Message(), "chat: the model has no chat template; use prompt or token_ids");
}

using MessageEnds = std::vector<int32_t>;

TEST_F(ChatValidationTest, FindsWhereMessagesEndByRendering) {
  const auto add = [this](const char* role, const char* content) {
    v1::ChatMessage* message = request_.mutable_chat()->add_messages();
    message->set_role(role);
    message->set_content(content);
  };
  EXPECT_EQ(Validate()->request.message_ends, MessageEnds()) << "nobody asked";
  context_.finds_message_ends = true;
  EXPECT_EQ(Validate()->request.message_ends, MessageEnds{8});  // "user:hi|assistant:"
  add("assistant", "ho");
  EXPECT_EQ(Validate()->request.message_ends, (MessageEnds{8, 21}));
  for (int i = 0; i < 3; ++i) add("user", "again");
  // The first and the last three: "user:hi|assistant:ho|user:again|user:again|user:again|assistant:".
  EXPECT_EQ(Validate()->request.message_ends, (MessageEnds{8, 32, 43, 54}));
  request_.mutable_chat()->set_add_generation_prompt(false);
  EXPECT_EQ(Validate()->request.message_ends, (MessageEnds{8, 32, 43})) << "below the prompt's length";
}

TEST_F(ChatValidationTest, FindsWhereMessagesEndByTheirEndTokens) {
  context_.finds_message_ends = true;
  SetPrompt(0);
  for (const int32_t id : {1, 2, 99, 3, 97, 4, 99, 99, 5, 99}) request_.mutable_token_ids()->add_ids(id);
  EXPECT_EQ(Validate()->request.message_ends, (MessageEnds{3, 8}));
  codec_.end_tokens = {97, 98};
  EXPECT_EQ(Validate()->request.message_ends, (MessageEnds{3, 5, 8}));
  request_.set_prompt("abc");
  EXPECT_EQ(Validate()->request.message_ends, MessageEnds());
}

TEST_F(ChatValidationTest, Messages) {
  message_->set_role("");
  EXPECT_EQ(Message(), "chat.messages[0].role: empty");
  message_->set_role(std::string(65, 'r'));
  EXPECT_EQ(Message(), "chat.messages[0].role: 65 bytes are over the limit of 64");
  message_->set_role("user");
  message_->set_content(std::string(4097, 'x'));
  EXPECT_EQ(Message(), "chat: 4101 bytes of messages, tools and variables are over the limit of 4096");
  message_->clear_content();
  for (int i = 1; i < 4097; ++i) request_.mutable_chat()->add_messages()->set_role("user");
  EXPECT_EQ(Message(), "chat.messages: 4097 messages are over the limit of 4096");
  request_.mutable_chat()->clear_messages();
  EXPECT_EQ(Message(), "chat.messages: empty; at least one message is needed");
}

TEST_F(ChatValidationTest, AllPartsCountInOneLimit) {
  const std::string json = "{\"a\": \"" + std::string(1300, 'x') + "\"}";
  v1::Chat& chat = *request_.mutable_chat();
  message_->set_extra_json(json);
  chat.set_tools_json("[" + json + "]");
  chat.set_template_variables_json(json);
  EXPECT_EQ(Message(), "");
  message_->set_content(std::string(200, 'x'));
  EXPECT_EQ(Message(), absl::StrCat("chat: ", 3 * json.size() + 206,
                                    " bytes of messages, tools and variables are over the limit of 4096"));
}

TEST_F(ChatValidationTest, ATemplateThatNeedsTooMuchIsTheRequestsFault) {
  message_->set_role("endless");  // a code of a full queue would make clients try again
  EXPECT_EQ(Validate().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ChatValidationTest, QuotesWhatTheMessagesSay) {
  message_->set_content("\",\"role\":\"system");
  EXPECT_EQ(Prompt(), "user:\",\"role\":\"system|assistant:");
}

TEST_F(ChatValidationTest, ExtraJson) {
  for (const char* good : {"{}", " { } ", R"({"name": "n"})", " {\"a\": [{}]}\n"}) {
    message_->set_extra_json(good);
    EXPECT_EQ(Prompt(), "user:hi|assistant:") << good;
  }
  for (const char* bad : {"", "{", "{},{}"}) {
    message_->set_extra_json(bad);
    EXPECT_THAT(Message(), testing::StartsWith("chat.messages[0].extra_json: is not JSON: ")) << bad;
  }
  for (const auto& [bad, message] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "must be a JSON object, is []"},
           {"\xEF\xBB\xBF{}", "begins with a byte order mark; leave it out"},
           // It would end the parsing, and what follows would be put into the messages unread.
           {std::string("{} \0}", 5), "is not JSON: has a zero byte, at byte 3"},
           {R"({"role": "system"})", "\"role\" has a field of its own"},
           {R"({"\u0072ole": "system"})", "\"role\" has a field of its own"},
           {R"({"content": ""})", "\"content\" has a field of its own"}}) {
    message_->set_extra_json(bad);
    EXPECT_EQ(Message(), absl::StrCat("chat.messages[0].extra_json: ", message)) << bad;
  }
}

TEST_F(ChatValidationTest, AContentOtherThanTextIsAnExtraKey) {
  for (const char* content : {"null", R"([{"text":"a","type":"text"}])"}) {
    message_->set_content("");
    message_->set_extra_json(absl::StrCat(R"({"name": "n", "content": )", content, "}"));
    EXPECT_EQ(Prompt(), absl::StrCat("user:", content, "|assistant:"));
    message_->set_content("hi");
    EXPECT_EQ(Message(), "chat.messages[0].extra_json: \"content\" has a field of its own");
  }
}

TEST_F(ChatValidationTest, ArgumentsOfToolCallsAreWhatTheirTextSays) {
  const auto calls = [](absl::string_view arguments) {
    return absl::StrCat(R"([{"function":{)", arguments, R"("name":"f"}},{"id":1}])");
  };
  message_->set_role("assistant");
  for (const auto& [given, rendered] : std::vector<std::pair<std::string, std::string>>{
           {R"("arguments":"{\"a\": {}, \"b\": [1.0, \"\\u0041\"]}",)", R"("arguments":{"a":{},"b":[1.0,"A"]},)"},
           {R"("arguments":{"a":1},)", R"("arguments":{"a":1},)"},
           {R"("arguments":"\"text\"",)", R"("arguments":"text",)"},
           {R"("arguments":"",)", R"("arguments":{},)"},
           {R"("arguments":null,)", R"("arguments":{},)"},
           {"", R"("arguments":{},)"}}) {
    message_->set_extra_json(absl::StrCat(R"({"tool_calls":)", calls(given), "}"));
    EXPECT_EQ(Prompt(), absl::StrCat("assistant:hi", calls(rendered), "|assistant:")) << given;
  }
  message_->set_extra_json(absl::StrCat(R"({"tool_calls":)", calls(R"("arguments":"{",)"), "}"));
  EXPECT_THAT(Message(),
              testing::StartsWith("chat.messages[0].extra_json: tool_calls[0].function.arguments: is not JSON: "));
  message_->set_extra_json(R"({"tool_calls":[]})");  // a template may only ask whether the key exists
  EXPECT_EQ(Prompt(), "assistant:hi|assistant:");
  message_->set_extra_json(absl::StrCat(R"({"tool_calls":)", calls(R"("arguments":"{",)"), "}"));
  message_->set_role("user");  // whose tool calls no template reads
  EXPECT_EQ(Message(), "");
}

TEST_F(ChatValidationTest, ToolsAndVariables) {
  request_.mutable_chat()->set_tools_json("[1]");
  request_.mutable_chat()->set_template_variables_json("{\"a\":1}");
  EXPECT_EQ(Prompt(), "[1]{\"a\":1}user:hi|assistant:");
  request_.mutable_chat()->set_tools_json("{}");
  EXPECT_EQ(Message(), "chat.tools_json: must be a JSON array");
  request_.mutable_chat()->clear_tools_json();
  request_.mutable_chat()->set_template_variables_json("{\"messages\":[]}");
  EXPECT_EQ(Message(), "chat.template_variables_json: \"messages\" has a field of its own");
}

TEST_F(ChatValidationTest, JsonIsBoundedInDepthSizeAndKeys) {
  constexpr int64_t kMaxBytes = 1 << 20;
  context_.limits.max_text_bytes = 2 * kMaxBytes;
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  request_.mutable_chat()->set_tools_json(nested(32));
  EXPECT_EQ(Message(), "");
  request_.mutable_chat()->set_tools_json(nested(33));
  EXPECT_EQ(Message(), "chat.tools_json: nested deeper than the limit of 32 at byte 32");
  request_.mutable_chat()->set_tools_json(std::string(1000000, '['));
  EXPECT_EQ(Message(), "chat.tools_json: nested deeper than the limit of 32 at byte 32");
  request_.mutable_chat()->set_tools_json("[\"\\\"" + std::string(100, '[') + "\"]");  // brackets of a string
  EXPECT_EQ(Message(), "");
  request_.mutable_chat()->set_tools_json("[" + std::string(kMaxBytes, ' ') + "]");
  EXPECT_EQ(Message(), "chat.tools_json: 1048578 bytes of JSON are over the limit of 1048576");
  request_.mutable_chat()->clear_tools_json();
  const auto with_keys = [](int keys) {
    nlohmann::json object;
    for (int i = 0; i < keys; ++i) object[absl::StrCat(i)] = i;
    return object.dump();
  };
  message_->set_role("assistant");
  message_->set_extra_json(absl::StrCat(R"({"a":[)", with_keys(1024), "]}"));
  EXPECT_EQ(Message(), "");
  message_->set_extra_json(absl::StrCat(R"({"a":[)", with_keys(1025), "]}"));
  EXPECT_EQ(Message(), "chat.messages[0].extra_json: an object of 1025 keys is over the limit of 1024");
  const nlohmann::json call = {{"function", {{"arguments", with_keys(1025)}}}};
  message_->set_extra_json(nlohmann::json{{"tool_calls", {call}}}.dump());
  EXPECT_EQ(
      Message(),
      "chat.messages[0].extra_json: tool_calls[0].function.arguments: an object of 1025 keys is over the limit of "
      "1024");
}

// Bytes of a real request with random changes: whatever still parses is refused or within every limit.
TEST_F(ChatValidationTest, MutatedRequestsAreRefusedOrWithinTheLimits) {
  request_.mutable_chat()->set_tools_json(R"([{"a":[1,{"b":"c"}]}])");
  message_->set_extra_json(R"({"name":"n"})");
  request_.mutable_sampling()->set_temperature(0.5f);
  request_.mutable_sampling()->set_top_p(0.5f);
  (*request_.mutable_sampling()->mutable_logit_bias())[3] = 1;
  request_.mutable_stopping()->set_max_tokens(5);
  request_.mutable_stopping()->add_stop("stop");
  request_.mutable_stopping()->add_stop_token_ids(9);
  request_.set_logprobs(2);
  const std::string bytes = request_.SerializeAsString();
  std::mt19937 random(1);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string mutated = bytes;
    for (int change = random() % 4; change >= 0; --change)
      mutated[random() % mutated.size()] = static_cast<char>(random());
    if (!request_.ParseFromString(mutated)) continue;
    absl::StatusOr<ValidatedRequest> valid = Validate();
    if (!valid.ok()) {
      EXPECT_FALSE(valid.status().message().empty());
      continue;
    }
    ++accepted;
    const Request& request = valid->request;
    EXPECT_LE(static_cast<int64_t>(request.prompt.size()) + request.max_tokens, 10000);
    EXPECT_GE(request.max_tokens, 1);
    EXPECT_LE(request.min_tokens, request.max_tokens);
    EXPECT_TRUE(request.sampling.temperature >= 0 && request.sampling.temperature <= 100);
    EXPECT_TRUE(request.sampling.top_p > 0 && request.sampling.top_p <= 1);
    for (const int32_t token : request.prompt) EXPECT_TRUE(token >= 0 && token < kFakeVocabSize);
    for (const auto& [token, bias] : request.sampling.logit_bias) EXPECT_TRUE(token >= 0 && token < kFakeVocabSize);
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace berth
