// Every field of a request below, at and above its limits, NaN, absent and zero.
#include "tests/server/request/validation_test.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/request/field_checks.h"
#include "server/request/tokens_only.h"

namespace berth {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

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
      {"repetition_penalty",
       &v1::Sampling::set_repetition_penalty,
       {0.01f, 100},
       {-1, 0, 1e-45f, 0.0099f, 101},
       "[0.01, 100]"},
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
      EXPECT_EQ(Message(), absl::StrCat("sampling.", c.name, ": ", ShortestText(value), " is outside ", c.range));
      EXPECT_EQ(Validate().status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST_F(ValidationTest, MessagesShowTheValueExactly) {
  request_.mutable_sampling()->set_top_p(1.0000001f);
  EXPECT_EQ(Message(), "sampling.top_p: 1.0000001 is outside (0, 1]");
  request_.mutable_sampling()->set_top_p(-1e-45f);
  EXPECT_EQ(Message(), "sampling.top_p: -1e-45 is outside (0, 1]");
  request_.clear_sampling();
  request_.mutable_beam_search()->set_num_beams(2);
  request_.mutable_beam_search()->set_length_penalty(10.000000000000002);
  EXPECT_EQ(Message(), "beam_search.length_penalty: 10.000000000000002 is outside [-10, 10]");
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
                                      " exceed the limit of 64 tokens for prompt and output"));
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
            "prompt: 64 tokens and stopping.max_tokens (absent, at least 1) exceed the limit of 64 tokens for prompt "
            "and output");
  SetPrompt(1);
  context_.limits.default_max_tokens = 0;
  EXPECT_EQ(Validate()->request.max_tokens, 63);
}

TEST_F(ValidationTest, MinTokens) {
  request_.mutable_stopping()->set_max_tokens(4);
  request_.mutable_stopping()->set_min_tokens(4);
  EXPECT_EQ(Validate()->request.min_tokens, 4);
  EXPECT_EQ(Validate()->output.text.min_tokens, 4);
  request_.mutable_stopping()->set_min_tokens(std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(Message(), "stopping.min_tokens: 4294967295 is over max_tokens 4");
}

TEST_F(ValidationTest, LengthsOfTheModelAreDefaults) {
  SetPrompt(10);
  context_.defaults.max_length = 14;
  context_.defaults.min_length = 13;
  EXPECT_EQ(Validate()->request.max_tokens, 4);
  EXPECT_EQ(Validate()->request.min_tokens, 3);
  context_.defaults.max_new_tokens = 6;
  context_.defaults.min_new_tokens = 5;
  EXPECT_EQ(Validate()->request.max_tokens, 6);
  EXPECT_EQ(Validate()->request.min_tokens, 5);
  EXPECT_EQ(Validate()->output.text.min_tokens, 5);
  request_.mutable_stopping()->set_max_tokens(2);
  EXPECT_EQ(Validate()->request.min_tokens, 2) << "not more than the request's max_tokens";
  request_.mutable_stopping()->set_min_tokens(0);
  EXPECT_EQ(Validate()->request.min_tokens, 0);
  request_.mutable_stopping()->clear_max_tokens();
  context_.defaults = {.max_length = 10};
  EXPECT_EQ(Validate()->request.max_tokens, 16) << "the prompt has as many: the server's default";
  context_.defaults = {.max_new_tokens = 1000};
  EXPECT_EQ(Validate()->request.max_tokens, 16);
}

TEST_F(ValidationTest, RulesAndStopStringsOfTheModelHold) {
  context_.defaults.rules = {.no_repeat_ngram_size = 3, .suppressed = {5}, .biases = {{{1, 2}, 0.5f}}};
  context_.defaults.stop_strings = {"x"};
  context_.defaults.forced_bos_token_id = 7;
  EXPECT_EQ(Validate()->request.rules, context_.defaults.rules);
  EXPECT_EQ(Validate()->output.text.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(Validate()->request.forced_first, std::vector<int32_t>{7});
  SetPrompt(2);
  EXPECT_TRUE(Validate()->request.forced_first.empty()) << "it follows a prompt of one token";
  request_.mutable_sampling()->set_no_repeat_ngram_size(0);
  EXPECT_EQ(Validate()->request.rules.no_repeat_ngram_size, 0);
  EXPECT_EQ(Validate()->request.rules.suppressed, std::vector<int32_t>{5});
  request_.mutable_stopping()->add_stop("y");
  EXPECT_EQ(Validate()->output.text.stop, std::vector<std::string>{"y"});
  request_.mutable_stopping()->clear_stop();
  request_.mutable_stopping()->set_ignore_eos(true);
  EXPECT_TRUE(Validate()->output.text.stop.empty());
}

TEST_F(ValidationTest, BeamsOfTheModelAreDefaultsOfABeamSearch) {
  context_.limits.max_outputs = 8;
  context_.defaults.num_beams = 3;
  context_.defaults.length_penalty = 2.0;
  context_.defaults.early_stopping = 2;
  EXPECT_EQ(Validate()->request.beams, BeamParams()) << "a request without one is not searched";
  request_.mutable_beam_search();
  EXPECT_EQ(Validate()->request.beams,
            (BeamParams{.num_beams = 3, .length_penalty = 2.0, .early_stopping = EarlyStopping::kNever}));
  request_.mutable_beam_search()->set_num_beams(2);
  EXPECT_EQ(Validate()->request.beams.num_beams, 2);
  context_.defaults.rules.no_repeat_ngram_size = 3;
  EXPECT_EQ(Validate()->request.rules.no_repeat_ngram_size, 3);
  context_.defaults.rules.biases = {{{1}, -HUGE_VALF}};
  EXPECT_EQ(Message(), "");
  context_.defaults.rules.biases = {{{1}, 0.5f}};
  EXPECT_EQ(Message().substr(0, 45), "sequence_bias of generation_config.json: 1 ca") << Message();
  context_.defaults = {};
  request_.mutable_beam_search()->clear_num_beams();
  EXPECT_EQ(Message(), "beam_search.num_beams: 0 is outside [2, 8]");
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

// The fake tokenizer reads what it does not know as special token 95.
TEST_F(ValidationTest, StopStringsWithSpecialTokensAreRefusedUnlessTheTextHasThem) {
  request_.mutable_stopping()->add_stop("<95>");
  EXPECT_EQ(Message(), "");
  request_.mutable_stopping()->add_stop("\n");
  EXPECT_EQ(Message(), "");
  request_.mutable_stopping()->add_stop("\n<95>");
  EXPECT_EQ(Message(),
            "stopping.stop[2]: has the special token <95>, which the text leaves out; use stop_token_ids, or "
            "skip_special_tokens=false");
  request_.set_skip_special_tokens(false);
  EXPECT_EQ(Message(), "");
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
  EXPECT_EQ(Message(), "add_special_tokens: can be set only with prompt");
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
  // C0, C1, an Arabic mark, a zero-width space, a line separator, bidirectional overrides and isolates, a byte-order
  // mark.
  for (const char* id : {"a\nb", "a\u0085", "\u061Cb", "a\u200Bb", "a\u2028b", "\u202Eb", "a\u2066", "\uFEFFa"}) {
    request_.set_request_id(id);
    EXPECT_EQ(Message(), "request_id: has a control character") << id;
  }
  for (const char* id : {"naïve", "日本語", "Ω—…", "\u00A0", "🙂"}) {
    request_.set_request_id(id);
    EXPECT_EQ(Message(), "") << id;
  }
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

TEST_F(ValidationTest, Tokenize) {
  v1::TokenizeRequest request;
  EXPECT_EQ(Tokenize(request, context_).status().message(), "input: none of text, chat is set");
  request.set_text("a");
  EXPECT_EQ(Tokenize(request, context_)->token_ids_size(), 2);
  request.set_add_special_tokens(false);
  EXPECT_EQ(Tokenize(request, context_)->token_ids_size(), 1);
  v1::ChatMessage* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  EXPECT_EQ(Tokenize(request, context_).status().message(), "add_special_tokens: can be set only with text");
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

TEST_F(ValidationTest, ATextThatCannotFitIsNotTokenised) {
  int encoded = 0;
  codec_.on_encode = [&encoded](std::string_view, const StopCheck&) { ++encoded; };
  codec_.longest_token = 4;
  request_.set_prompt(std::string(2 * 64 * 4 + 4, 'a'));  // twice what fits
  EXPECT_EQ(Validate().status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Message(), "prompt: 516 bytes are over 128 tokens, as no token has over 4 bytes");
  EXPECT_EQ(encoded, 0);
  codec_.longest_token = 0;  // unknown: the tokenizer stops by itself
  EXPECT_EQ(Message(), "prompt: 516 bytes are over 128 tokens");
  EXPECT_EQ(encoded, 1);
}

TEST_F(ValidationTest, ATextThatIsStoppedIsCancelled) {
  request_.set_prompt("abc");
  EXPECT_EQ(ValidateGenerate(request_, context_, 1, [] { return true; }).status().code(), absl::StatusCode::kCancelled);
  v1::TokenizeRequest text;
  text.set_text("abc");
  EXPECT_EQ(Tokenize(text, context_, [] { return true; }).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace berth
