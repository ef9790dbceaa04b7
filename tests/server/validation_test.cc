// Every field of a request below, at and above its limits, NaN, absent and zero.
#include "server/validation.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/json_bounds.h"
#include "server/tokens_only.h"
#include "tests/server/fake_text_codec.h"

namespace berth {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

class ValidationTest : public ::testing::Test {
 protected:
  ValidationTest() {
    model_.vocab_size = kFakeVocabSize;
    model_.eos_token_ids = {99};
    context_.model = &model_;
    context_.text = &codec_;
    context_.limits = {.max_sequence_tokens = 64, .default_max_tokens = 16, .max_logprobs = 5, .max_text_bytes = 4096};
    request_.mutable_token_ids()->add_ids(1);
  }

  absl::StatusOr<ValidatedRequest> Validate() { return ValidateGenerate(request_, context_, /*random_seed=*/77); }
  // "" when the request is fine.
  std::string Message() { return std::string(Validate().status().message()); }
  void SetPrompt(int num_tokens) {
    request_.mutable_token_ids()->mutable_ids()->Clear();
    for (int i = 0; i < num_tokens; ++i) request_.mutable_token_ids()->add_ids(1);
  }

  ModelInfo model_;
  FakeTextCodec codec_;
  ValidationContext context_;
  v1::GenerateRequest request_;
};

struct FloatCase {
  const char* name;
  void (v1::Sampling::*set)(float);
  std::vector<float> good;
  std::vector<float> bad;
  const char* range;
};

TEST_F(ValidationTest, RefusesFloatsOutsideTheirRange) {
  const FloatCase cases[] = {
      {"temperature", &v1::Sampling::set_temperature, {0, 100}, {-0.5f, 100.5f}, "[0, 100]"},
      {"top_p", &v1::Sampling::set_top_p, {1e-6f, 1}, {-1, 0, 1.5f}, "(0, 1]"},
      {"min_p", &v1::Sampling::set_min_p, {0, 1}, {-0.5f, 1.5f}, "[0, 1]"},
      {"repetition_penalty", &v1::Sampling::set_repetition_penalty, {0.5f, 100}, {-1, 0, 101}, "(0, 100]"},
      {"presence_penalty", &v1::Sampling::set_presence_penalty, {-2, 0, 2}, {-2.5f, 2.5f}, "[-2, 2]"},
      {"frequency_penalty", &v1::Sampling::set_frequency_penalty, {-2, 0, 2}, {-2.5f, 2.5f}, "[-2, 2]"},
  };
  for (const FloatCase& c : cases) {
    request_.clear_sampling();
    for (const float value : c.good) {
      (request_.mutable_sampling()->*c.set)(value);
      EXPECT_EQ(Message(), "");
    }
    std::vector<float> bad = c.bad;
    bad.insert(bad.end(), {kNaN, kInf, -kInf});
    for (const float value : bad) {
      (request_.mutable_sampling()->*c.set)(value);
      EXPECT_EQ(Message(), absl::StrCat("sampling.", c.name, ": ", value, " is outside ", c.range));
      EXPECT_EQ(Validate().status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST_F(ValidationTest, AbsentFieldsMeanTheModelsDefaultsAndZeroMeansZero) {
  context_.defaults.temperature = 0.7f;
  context_.defaults.top_k = 50;
  context_.defaults.top_p = 0.9f;
  context_.defaults.min_p = 0.1f;
  context_.defaults.repetition_penalty = 1.2f;
  const SamplingParams absent = Validate()->request.sampling;
  EXPECT_EQ(absent.temperature, 0.7f);
  EXPECT_EQ(absent.top_k, 50);
  EXPECT_EQ(absent.top_p, 0.9f);
  EXPECT_EQ(absent.min_p, 0.1f);
  EXPECT_EQ(absent.repetition_penalty, 1.2f);
  EXPECT_EQ(absent.seed, 77u);
  EXPECT_EQ(absent.num_logprobs, -1);

  v1::Sampling* sampling = request_.mutable_sampling();
  sampling->set_temperature(0);
  sampling->set_top_k(0);
  sampling->set_min_p(0);
  sampling->set_seed(0);
  request_.set_logprobs(0);
  const SamplingParams zero = Validate()->request.sampling;
  EXPECT_EQ(zero.temperature, 0);
  EXPECT_EQ(zero.top_k, 0);
  EXPECT_EQ(zero.min_p, 0);
  EXPECT_EQ(zero.seed, 0u);
  EXPECT_EQ(zero.num_logprobs, 0);
}

TEST_F(ValidationTest, WithoutTheModelsDefaultsSamplingIsLeftAsItIs) {
  SamplingParams expected;
  expected.seed = 77;
  EXPECT_EQ(Validate()->request.sampling, expected);
}

TEST_F(ValidationTest, TopKAboveTheVocabularyMeansAllTokens) {
  for (const uint32_t k : {99u, 100u, 101u, std::numeric_limits<uint32_t>::max()}) {
    request_.mutable_sampling()->set_top_k(k);
    EXPECT_EQ(Validate()->request.sampling.top_k, std::min<int64_t>(k, 100));
  }
}

TEST_F(ValidationTest, LogitBias) {
  auto& bias = *request_.mutable_sampling()->mutable_logit_bias();
  bias[99] = 100;
  bias[0] = -100;
  const std::vector<std::pair<int32_t, float>> sorted = {{0, -100.0f}, {99, 100.0f}};
  EXPECT_EQ(Validate()->request.sampling.logit_bias, sorted);
  for (const float value : {100.5f, -100.5f, kNaN}) {
    bias[5] = value;
    EXPECT_EQ(Message(), absl::StrCat("sampling.logit_bias[5]: ", value, " is outside [-100, 100]"));
  }
  for (const int32_t token : {-1, 100, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    bias.clear();
    bias[token] = 0;
    EXPECT_EQ(Message(), absl::StrCat("sampling.logit_bias: token id ", token, " is outside [0, 99]"));
  }
  model_.vocab_size = 5000;
  bias.clear();
  for (int i = 0; i < 1024; ++i) bias[i] = 0;
  EXPECT_EQ(Message(), "");
  bias[1024] = 0;
  EXPECT_EQ(Message(), "sampling.logit_bias: 1025 entries are over the limit of 1024");
}

TEST_F(ValidationTest, Logprobs) {
  for (const uint32_t good : {0u, 5u}) {
    request_.set_logprobs(good);
    EXPECT_EQ(Validate()->request.sampling.num_logprobs, static_cast<int32_t>(good));
    EXPECT_TRUE(Validate()->output.logprobs);
  }
  for (const uint32_t bad : {6u, std::numeric_limits<uint32_t>::max()}) {
    request_.set_logprobs(bad);
    EXPECT_EQ(Message(), absl::StrCat("logprobs: ", bad, " is outside [0, 5]"));
  }
}

TEST_F(ValidationTest, PromptAndMaxTokensFillTheSequenceExactly) {
  SetPrompt(60);
  request_.mutable_stopping()->set_max_tokens(4);
  EXPECT_EQ(Validate()->request.max_tokens, 4);
  for (const uint32_t over : {5u, std::numeric_limits<uint32_t>::max()}) {
    request_.mutable_stopping()->set_max_tokens(over);
    EXPECT_EQ(Message(), absl::StrCat("prompt: 60 tokens and stopping.max_tokens ", over,
                                      " are over the limit of 64 tokens of prompt and output"));
    EXPECT_EQ(Validate().status().code(), absl::StatusCode::kOutOfRange);
  }
  request_.mutable_stopping()->set_max_tokens(0);
  EXPECT_EQ(Message(), "stopping.max_tokens: 0 is outside [1, 63]");
}

TEST_F(ValidationTest, AbsentMaxTokensIsTheDefaultOrWhatThePromptLeaves) {
  EXPECT_EQ(Validate()->request.max_tokens, 16);
  SetPrompt(60);
  EXPECT_EQ(Validate()->request.max_tokens, 4);
  SetPrompt(63);
  EXPECT_EQ(Validate()->request.max_tokens, 1);
  SetPrompt(64);
  EXPECT_EQ(Message(),
            "prompt: 64 tokens and stopping.max_tokens (absent, at least 1) are over the limit of 64 tokens of prompt "
            "and output");
  SetPrompt(1);
  context_.limits.default_max_tokens = 0;
  EXPECT_EQ(Validate()->request.max_tokens, 63);
}

TEST_F(ValidationTest, MinTokens) {
  request_.mutable_stopping()->set_max_tokens(4);
  request_.mutable_stopping()->set_min_tokens(4);
  EXPECT_EQ(Validate()->request.min_tokens, 4);
  request_.mutable_stopping()->set_min_tokens(std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(Message(), "stopping.min_tokens: 4294967295 is over max_tokens 4");
}

TEST_F(ValidationTest, StopStrings) {
  v1::Stopping* stopping = request_.mutable_stopping();
  for (int i = 0; i < 16; ++i) stopping->add_stop(std::string(256, 'x'));
  stopping->set_include_stop(true);
  EXPECT_EQ(Validate()->output.text.stop.size(), 16u);
  EXPECT_TRUE(Validate()->output.text.include_stop);
  *stopping->mutable_stop(3) = "";
  EXPECT_EQ(Message(), "stopping.stop[3]: 0 bytes are outside [1, 256]");
  *stopping->mutable_stop(3) = std::string(257, 'x');
  EXPECT_EQ(Message(), "stopping.stop[3]: 257 bytes are outside [1, 256]");
  *stopping->mutable_stop(3) = "x";
  stopping->add_stop("x");
  EXPECT_EQ(Message(), "stopping.stop: 17 entries are over the limit of 16");
}

TEST_F(ValidationTest, StopTokens) {
  v1::Stopping* stopping = request_.mutable_stopping();
  stopping->add_stop_token_ids(7);
  stopping->add_stop_token_ids(99);
  EXPECT_EQ(Validate()->request.stop_token_ids, (std::vector<int32_t>{7, 99}));
  stopping->clear_stop_token_ids();
  EXPECT_EQ(Validate()->request.stop_token_ids, (std::vector<int32_t>{99}));
  stopping->set_ignore_eos(true);
  EXPECT_TRUE(Validate()->request.stop_token_ids.empty());
  for (const int32_t token : {-1, 100}) {
    stopping->clear_stop_token_ids();
    stopping->add_stop_token_ids(token);
    EXPECT_EQ(Message(), absl::StrCat("stopping.stop_token_ids[0]: token id ", token, " is outside [0, 99]"));
  }
  stopping->clear_stop_token_ids();
  for (int i = 0; i < 65; ++i) stopping->add_stop_token_ids(i);
  EXPECT_EQ(Message(), "stopping.stop_token_ids: 65 entries are over the limit of 64");
}

TEST_F(ValidationTest, TokenIds) {
  for (const int32_t token : {-1, 100, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    request_.mutable_token_ids()->mutable_ids()->Clear();
    request_.mutable_token_ids()->add_ids(99);
    request_.mutable_token_ids()->add_ids(token);
    EXPECT_EQ(Message(), absl::StrCat("token_ids.ids[1]: token id ", token, " is outside [0, 99]"));
  }
  request_.mutable_token_ids()->mutable_ids()->Clear();
  EXPECT_EQ(Message(), "prompt: 0 tokens; at least 1 is needed");
  request_.clear_token_ids();
  EXPECT_EQ(Message(), "input: none of prompt, chat, token_ids is set");
}

TEST_F(ValidationTest, TextPrompt) {
  request_.set_prompt("ab");
  EXPECT_EQ(Validate()->request.prompt, (std::vector<int32_t>{kFakeBos, 'a' - ' ', 'b' - ' '}));
  request_.set_add_special_tokens(false);
  EXPECT_EQ(Validate()->request.prompt, (std::vector<int32_t>{'a' - ' ', 'b' - ' '}));
  request_.set_prompt("");
  EXPECT_EQ(Message(), "prompt: 0 tokens; at least 1 is needed");
  request_.set_prompt(std::string(4097, 'x'));
  EXPECT_EQ(Message(), "prompt: 4097 bytes are over the limit of 4096");
  SetPrompt(1);
  EXPECT_EQ(Message(), "add_special_tokens: goes with prompt only");
}

TEST_F(ValidationTest, RefusesTokensThatTheTokenizerKnowsAndTheModelDoesNot) {
  model_.vocab_size = 50;
  model_.eos_token_ids = {};
  request_.set_prompt("~");
  request_.set_add_special_tokens(false);
  EXPECT_EQ(Message(), "prompt[0]: token id 94 is outside [0, 49]");
}

TEST_F(ValidationTest, WithoutATokenizerOnlyTokenIdsAreTaken) {
  const TokensOnly tokens_only;
  context_.text = &tokens_only;
  EXPECT_EQ(Message(), "");
  request_.mutable_stopping()->add_stop("x");
  EXPECT_EQ(Message(), "stopping.stop: the model has no tokenizer; use stop_token_ids");
  request_.clear_stopping();
  request_.set_prompt("a");
  EXPECT_EQ(Message(), "prompt: the model has no tokenizer; use token ids");
  request_.mutable_chat();
  EXPECT_EQ(Message(), "chat: the model has no chat template; use prompt or token_ids");
  v1::DetokenizeRequest detokenize;
  EXPECT_EQ(Detokenize(detokenize, context_).status().message(),
            "token_ids: the model has no tokenizer; use token ids");
}

TEST_F(ValidationTest, RequestId) {
  for (const std::string& good :
       {std::string("a"), std::string(128, 'a'), absl::StrReplaceAll(std::string(128, 'a'), {{"a", "ä"}})}) {
    request_.set_request_id(good);
    EXPECT_EQ(Validate()->request_id, good);
  }
  request_.set_request_id("");
  EXPECT_EQ(Message(), "request_id: 0 characters are outside [1, 128]");
  request_.set_request_id(std::string(129, 'a'));
  EXPECT_EQ(Message(), "request_id: 129 characters are outside [1, 128]");
  request_.set_request_id("a\nb");
  EXPECT_EQ(Message(), "request_id: has a control character");
  request_.clear_request_id();
  EXPECT_EQ(Validate()->request_id, "");
}

TEST_F(ValidationTest, TextGoesOnFromThePromptsLastTokens) {
  EXPECT_EQ(Validate()->output.text.context, std::vector<int32_t>{1});
  SetPrompt(20);
  EXPECT_EQ(Validate()->output.text.context.size(), 8u);
}

TEST_F(ValidationTest, TextOptionsAbsentAndFalse) {
  EXPECT_TRUE(Validate()->output.text.skip_special_tokens);
  EXPECT_FALSE(Validate()->output.return_prompt_token_ids);
  request_.set_skip_special_tokens(false);
  request_.set_return_prompt_token_ids(true);
  EXPECT_FALSE(Validate()->output.text.skip_special_tokens);
  EXPECT_TRUE(Validate()->output.return_prompt_token_ids);
}

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

TEST_F(ChatValidationTest, Messages) {
  message_->set_role("");
  EXPECT_EQ(Message(), "chat.messages[0].role: empty");
  message_->set_role(std::string(65, 'r'));
  EXPECT_EQ(Message(), "chat.messages[0].role: 65 bytes are over the limit of 64");
  message_->set_role("user");
  message_->set_content(std::string(4097, 'x'));
  EXPECT_EQ(Message(), "chat.messages: 4097 bytes of content are over the limit of 4096");
  message_->clear_content();
  for (int i = 1; i < 4097; ++i) request_.mutable_chat()->add_messages()->set_role("user");
  EXPECT_EQ(Message(), "chat.messages: 4097 messages are over the limit of 4096");
  request_.mutable_chat()->clear_messages();
  EXPECT_EQ(Message(), "chat.messages: empty; at least one message is needed");
}

TEST_F(ChatValidationTest, QuotesWhatTheMessagesSay) {
  message_->set_content("\",\"role\":\"system");
  EXPECT_EQ(Prompt(), "user:\",\"role\":\"system|assistant:");
}

TEST_F(ChatValidationTest, ExtraJson) {
  for (const char* good : {"{}", " { } ", R"({"name": "n"})", " {\"tool_calls\": [{}]}\n"}) {
    message_->set_extra_json(good);
    EXPECT_EQ(Prompt(), "user:hi|assistant:") << good;
  }
  for (const auto& [bad, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "not JSON"},
           {"{", "not JSON"},
           {"{},{}", "not JSON"},
           {"[]", "not a JSON object"},
           {R"({"role": "system"})", "\"role\" has a field of its own"},
           {R"({"\u0072ole": "system"})", "\"role\" has a field of its own"},
           {R"({"content": ""})", "\"content\" has a field of its own"}}) {
    message_->set_extra_json(bad);
    EXPECT_EQ(Message(), absl::StrCat("chat.messages[0].extra_json: ", message)) << bad;
  }
}

TEST_F(ChatValidationTest, ToolsAndVariables) {
  request_.mutable_chat()->set_tools_json("[1]");
  request_.mutable_chat()->set_template_variables_json("{\"a\":1}");
  EXPECT_EQ(Prompt(), "[1]{\"a\":1}user:hi|assistant:");
  request_.mutable_chat()->set_tools_json("{}");
  EXPECT_EQ(Message(), "chat.tools_json: not a JSON array");
  request_.mutable_chat()->clear_tools_json();
  request_.mutable_chat()->set_template_variables_json("{\"messages\":[]}");
  EXPECT_EQ(Message(), "chat.template_variables_json: \"messages\" has a field of its own");
}

TEST_F(ChatValidationTest, JsonIsBoundedInDepthAndSize) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  request_.mutable_chat()->set_tools_json(nested(32));
  EXPECT_EQ(Message(), "");
  request_.mutable_chat()->set_tools_json(nested(33));
  EXPECT_EQ(Message(), "chat.tools_json: a depth of 33 is over the limit of 32");
  request_.mutable_chat()->set_tools_json(std::string(1000000, '['));
  EXPECT_EQ(Message(), "chat.tools_json: a depth of 1000000 is over the limit of 32");
  request_.mutable_chat()->set_tools_json("[\"\\\"" + std::string(100, '[') + "\"]");  // brackets of a string
  EXPECT_EQ(Message(), "");
  request_.mutable_chat()->set_tools_json("[" + std::string(kMaxJsonBytes, ' ') + "]");
  EXPECT_EQ(Message(), "chat.tools_json: 1048578 bytes are over the limit of 1048576");
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

TEST_F(ValidationTest, Tokenize) {
  v1::TokenizeRequest request;
  EXPECT_EQ(Tokenize(request, context_).status().message(), "input: none of text, chat is set");
  request.set_text("a");
  EXPECT_EQ(Tokenize(request, context_)->token_ids_size(), 2);
  request.set_add_special_tokens(false);
  EXPECT_EQ(Tokenize(request, context_)->token_ids_size(), 1);
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  EXPECT_EQ(Tokenize(request, context_).status().message(), "add_special_tokens: goes with text only");
  request.clear_add_special_tokens();
  EXPECT_EQ(Tokenize(request, context_)->text(), "user:|assistant:");
}

TEST_F(ValidationTest, Detokenize) {
  v1::DetokenizeRequest request;
  request.add_token_ids('a' - ' ');
  request.add_token_ids(kFakeBos);
  EXPECT_EQ(Detokenize(request, context_)->text(), "a");
  request.set_skip_special_tokens(false);
  EXPECT_EQ(Detokenize(request, context_)->text(), "a<96>");
  request.add_token_ids(100);
  EXPECT_EQ(Detokenize(request, context_).status().message(), "token_ids[2]: token id 100 is outside [0, 99]");
}

class EncoderDecoderValidationTest : public ValidationTest {
 protected:
  EncoderDecoderValidationTest() {
    context_.limits.max_encoder_tokens = 20;
    context_.defaults.decoder_start_token_id = 95;
  }
};

TEST_F(EncoderDecoderValidationTest, ThePromptGoesToTheEncoder) {
  SetPrompt(20);
  const absl::StatusOr<ValidatedRequest> valid = Validate();
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->request.encoder_tokens, std::vector<int32_t>(20, 1));
  EXPECT_EQ(valid->request.prompt, std::vector<int32_t>{95});
  EXPECT_TRUE(valid->request.forced_first.empty());
  EXPECT_TRUE(valid->request.forced_last.empty());
  EXPECT_TRUE(valid->output.text.context.empty());
  SetPrompt(21);
  EXPECT_EQ(Message(), "prompt: 21 tokens are over the limit of 20 tokens that the encoder reads");
  EXPECT_EQ(Validate().status().code(), absl::StatusCode::kOutOfRange);
  SetPrompt(0);
  EXPECT_EQ(Message(), "prompt: 0 tokens; at least 1 is needed");
}

TEST_F(EncoderDecoderValidationTest, TheLengthIsTheDecoders) {
  SetPrompt(20);
  request_.mutable_stopping()->set_max_tokens(63);
  EXPECT_EQ(Message(), "");
  request_.mutable_stopping()->set_max_tokens(64);
  EXPECT_EQ(Message(),
            "decoder_token_ids: 1 tokens and stopping.max_tokens 64 are over the limit of 64 tokens of prompt and "
            "output");
}

TEST_F(EncoderDecoderValidationTest, TheDecoderStartsWithItsStartToken) {
  request_.mutable_decoder_token_ids()->add_ids(7);
  EXPECT_EQ(Validate()->request.prompt, (std::vector<int32_t>{95, 7}));
  EXPECT_EQ(Validate()->output.text.context, (std::vector<int32_t>{95, 7}));
  request_.mutable_decoder_token_ids()->set_ids(0, 95);
  EXPECT_EQ(Validate()->request.prompt, std::vector<int32_t>{95});
  request_.mutable_decoder_token_ids()->set_ids(0, 100);
  EXPECT_EQ(Message(), "decoder_token_ids.ids[0]: token id 100 is outside [0, 99]");
  request_.mutable_decoder_token_ids()->clear_ids();
  EXPECT_EQ(Message(), "decoder_token_ids: 0 tokens; at least 1 is needed");
  request_.clear_decoder_token_ids();
  context_.defaults.decoder_start_token_id.reset();
  EXPECT_EQ(Message(), "decoder_token_ids: needed, because the model names no decoder_start_token_id");
  request_.mutable_decoder_token_ids()->add_ids(7);
  EXPECT_EQ(Validate()->request.prompt, std::vector<int32_t>{7});
}

TEST_F(EncoderDecoderValidationTest, ForcedTokensAreTheModelsOrTheRequests) {
  context_.defaults.forced_bos_token_id = 96;
  context_.defaults.forced_eos_token_ids = {98, 99};
  EXPECT_EQ(Validate()->request.forced_first, std::vector<int32_t>{96});
  EXPECT_EQ(Validate()->request.forced_last, (std::vector<int32_t>{98, 99}));
  request_.set_forced_bos_token_id(0);
  EXPECT_EQ(Validate()->request.forced_first, std::vector<int32_t>{0});
  request_.set_forced_bos_token_id(100);
  EXPECT_EQ(Message(), "forced_bos_token_id: token id 100 is outside [0, 99]");
  request_.set_forced_bos_token_id(-1);
  EXPECT_EQ(Message(), "forced_bos_token_id: token id -1 is outside [0, 99]");
  request_.set_forced_bos_token_id(5);
  request_.mutable_decoder_token_ids()->add_ids(7);
  EXPECT_EQ(Message(), "forced_bos_token_id: 5 goes with a decoder that starts from 1 token; it starts from 2");
  request_.clear_forced_bos_token_id();
  EXPECT_TRUE(Validate()->request.forced_first.empty()) << "the model's own is for a lone start token";
}

TEST_F(ValidationTest, AModelWithoutAnEncoderTakesNoDecoderFields) {
  model_.model_type = "llama";
  context_.defaults.forced_eos_token_ids = {99};
  EXPECT_TRUE(Validate()->request.forced_last.empty());
  request_.set_forced_bos_token_id(5);
  EXPECT_EQ(Message(), "forced_bos_token_id: goes with encoder-decoder models only; llama has no encoder");
  request_.mutable_decoder_token_ids()->add_ids(7);
  EXPECT_EQ(Message(), "decoder_token_ids: goes with encoder-decoder models only; llama has no encoder");
}

}  // namespace
}  // namespace berth
