// The front end against the bundled model's own files, and against files that are wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>
#include <vector>

#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/sandbox.h"
#include "text/tokenizer.h"

namespace berth {
namespace {

constexpr char kModel[] = "models/demo/falcon_h1-demo";

class TextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = Tokenizer::Load(kModel);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(TextTest, EncodesAndDecodesAnyText) {
  for (const char* text : {"", "What is 23 + 45?", "naïve café 日本語 🙂\n\t\x01"}) {
    const auto ids = tokenizer_->Encode(text, true);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*tokenizer_->Decode(*ids, true), text);
  }
}

TEST_F(TextTest, RefusesWhatIsNoText) {
  EXPECT_EQ(tokenizer_->Encode("\xFF\xFE", true).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer_->Encode(std::string(Tokenizer::kMaxTextBytes + 1, 'a'), true).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(tokenizer_->Decode({-1}, true).ok());
  EXPECT_EQ(*tokenizer_->Decode({2000000000}, true), "");
}

TEST_F(TextTest, EncodeEndsAtItsBounds) {
  const std::string text(1 << 20, '1');  // each digit is a word
  EXPECT_EQ(tokenizer_->Encode(text, true, {.max_tokens = 100}).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(tokenizer_->Encode(text.substr(0, 100), false, {.max_tokens = 100})->size(), 100u);
  EXPECT_EQ(tokenizer_->Encode(text.substr(0, 101), false, {.max_tokens = 100}).status().code(),
            absl::StatusCode::kOutOfRange);
  int asked = 0;
  const auto stop = [&asked] { return ++asked == 1000; };
  EXPECT_EQ(tokenizer_->Encode(text, true, {.stop = stop}).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(asked, 1000);
}

// What the longest token promises: a text has at least its bytes over that many tokens.
TEST_F(TextTest, KnowsTheBytesOfItsLongestToken) {
  ASSERT_GT(tokenizer_->longest_token_bytes(), 0);
  size_t longest = 0;
  for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
    longest = std::max(longest, tokenizer_->TextOf(id).all_bytes().size());
  }
  EXPECT_GE(tokenizer_->longest_token_bytes(), static_cast<int64_t>(longest));
}

TEST_F(TextTest, AStreamNeverSplitsACharacter) {
  const std::string text = "日本 🙂👩‍👩‍👧 é";
  const auto ids = tokenizer_->Encode(text, false);
  Detokenizer detokenizer(tokenizer_.get(), true);
  std::string all;
  for (int32_t id : *ids) {
    const auto piece = detokenizer.Add({id});
    ASSERT_TRUE(piece.ok());
    if (!piece->empty()) {
      EXPECT_NE(static_cast<uint8_t>((*piece)[0]) & 0xC0, 0x80) << "begins within a character";
    }
    EXPECT_EQ(piece->find("\xEF\xBF\xBD"), std::string::npos);
    all += *piece;
  }
  EXPECT_EQ(all + *detokenizer.Flush(), text);
}

// Any tokens at all, also bytes that are not text: the stream's text equals that of the whole.
TEST_F(TextTest, RandomTokensStreamToTheWholesText) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 60; ++i) ids.push_back(static_cast<int32_t>(random() % tokenizer_->vocab_size()));
    Detokenizer detokenizer(tokenizer_.get(), round % 2 == 0);
    std::string all;
    for (size_t at = 0; at < ids.size();) {
      const size_t count = std::min<size_t>(1 + random() % 4, ids.size() - at);
      all += *detokenizer.Add(absl::MakeConstSpan(ids).subspan(at, count));
      at += count;
    }
    all += *detokenizer.Flush();
    EXPECT_EQ(all, *tokenizer_->Decode(ids, round % 2 == 0)) << round;
  }
}

// As a request with ignore_eos may give them. If each token's work grew with the run, the test would take hours.
TEST_F(TextTest, ALongRunOfSpecialTokensCostsAsMuchAsOthers) {
  const int32_t special = tokenizer_->TokenId("<|im_end|>");
  const std::vector<int32_t> word = *tokenizer_->Encode(" fox", false);
  for (const bool skip : {true, false}) {
    std::vector<int32_t> ids = word;
    ids.insert(ids.end(), 100000, special);
    ids.insert(ids.end(), word.begin(), word.end());
    Detokenizer detokenizer(tokenizer_.get(), skip);
    std::string all = *detokenizer.Add(ids);
    all += *detokenizer.Flush();
    EXPECT_EQ(all, *tokenizer_->Decode(ids, skip));
  }
}

TEST_F(TextTest, SpecialTokensBetweenBytesAndWordsChangeNothing) {
  std::mt19937 random(12);
  const int32_t special = tokenizer_->TokenId("<|im_end|>");
  for (int round = 0; round < 100; ++round) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 60; ++i) {
      const int32_t any = static_cast<int32_t>(random() % tokenizer_->vocab_size());
      ids.push_back(random() % 2 == 0 ? special : any);
    }
    Detokenizer detokenizer(tokenizer_.get(), true);
    std::string all;
    for (int32_t id : ids) all += *detokenizer.Add({id});
    all += *detokenizer.Flush();
    EXPECT_EQ(all, *tokenizer_->Decode(ids, true)) << round;
  }
}

TEST_F(TextTest, ACharacterThatNeverCompletesIsShownAtTheEnd) {
  const auto ids = tokenizer_->Encode("é", false);
  ASSERT_EQ(ids->size(), 2u);
  Detokenizer detokenizer(tokenizer_.get(), true);
  EXPECT_EQ(*detokenizer.Add({(*ids)[0]}), "");
  EXPECT_EQ(*detokenizer.Flush(), "\xEF\xBF\xBD");
}

TEST(Tokenizer, RefusesWhatIsNoTokenizer) {
  for (const char* json : {"", "{}", "[1", "{\"model\": {\"type\": \"BPE\", \"vocab\": 3}}"}) {
    EXPECT_EQ(Tokenizer::Parse(json).status().code(), absl::StatusCode::kInvalidArgument) << json;
  }
  EXPECT_EQ(Tokenizer::Load("/nonexistent").status().code(), absl::StatusCode::kNotFound);
  // Nesting that would overflow a recursive parser's stack.
  EXPECT_FALSE(Tokenizer::Parse(std::string(1 << 20, '[')).ok());
}

// The crate panics at each of these.
TEST(Tokenizer, ErrorsSayWhatIsWrong) {
  const auto error = [](const char* json) { return std::string(Tokenizer::Parse(json).status().message()); };
  EXPECT_NE(error(R"({"decoder": {"type": "Fuse" 1}})").find("not JSON: expected `,` or `}` at line 1 column 29"),
            std::string::npos)
      << error(R"({"decoder": {"type": "Fuse" 1}})");
  const char* const no_map = R"({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}})";
  EXPECT_NE(error(no_map).find("precompiled_charsmap"), std::string::npos) << error(no_map);
}

TEST(ChatTemplate, RendersTheBundledTemplate) {
  auto chat_template = ChatTemplate::Load(kModel);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  const auto text = (*chat_template)->Render(R"([{"role": "user", "content": "Hello!"}])", "", true, "");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n");
}

// A folder of a model with these files, which the test's temporary folder keeps.
std::string ModelWith(const std::string& name, const std::vector<std::pair<std::string, std::string>>& files) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::create_directories(folder / "additional_chat_templates");
  for (const auto& [file, content] : files) std::ofstream(folder / file) << content;
  return folder.string();
}

// What the model's templates make of no messages, without tools and with one.
std::string Rendered(const std::string& model_dir) {
  const auto loaded = ChatTemplate::Load(model_dir);
  if (!loaded.ok()) return std::string(loaded.status().message());
  const auto render = [&loaded](const char* tools) {
    const absl::StatusOr<std::string> text = (*loaded)->Render("[]", tools, true, "");
    return text.ok() ? *text : std::string(text.status().message());
  };
  return render("") + "; " + render("[1]");
}

constexpr char kNamed[] = R"({"chat_template": [{"name": "default", "template": "config"},
                                                {"name": "tool_use", "template": "config {{ tools }}"}]})";

// transformers decides likewise: see test_template_files.py.
TEST(ChatTemplate, FilesOfTemplatesComeBeforeOthers) {
  const std::string no_place = "chat.tools_json: the model's chat template has no place for tools";
  const std::string legacy = R"({"chat_template": "legacy {{ tools }}"})";
  EXPECT_EQ(Rendered(ModelWith("all", {{"chat_template.jinja", "file"},
                                       {"additional_chat_templates/tool_use.jinja", "tool file {{ tools }}"},
                                       {"additional_chat_templates/rag.jinja", "unused"},
                                       {"tokenizer_config.json", kNamed},
                                       {"chat_template.json", legacy}})),
            "file; tool file [1]");
  EXPECT_EQ(Rendered(ModelWith("file", {{"chat_template.jinja", "file"}, {"tokenizer_config.json", kNamed}})),
            "file; " + no_place);
  EXPECT_EQ(Rendered(ModelWith("config", {{"tokenizer_config.json", kNamed}, {"chat_template.json", legacy}})),
            "config; config [1]");
  EXPECT_EQ(Rendered(ModelWith("legacy", {{"tokenizer_config.json", "{}"}, {"chat_template.json", legacy}})),
            "legacy None; legacy [1]");
  EXPECT_EQ(Rendered(ModelWith("tools", {{"additional_chat_templates/tool_use.jinja", "{{ tools }}"}})),
            "chat template: the model has a chat template for requests with tools only (line 1 of the template); [1]");
  EXPECT_EQ(Rendered(ModelWith("other", {{"additional_chat_templates/rag.jinja", "rag"}})),
            testing::TempDir() + "other: no chat template");
  for (const char* wrong : {"[]", R"({"chat_template": 1})", R"({"chat_template": [{"name": "default"}]})"}) {
    const std::string error = Rendered(ModelWith("wrong", {{"chat_template.json", wrong}}));
    EXPECT_NE(error.find("chat_template.json"), std::string::npos) << error;
  }
}

TEST(ChatTemplate, ToolsThatWouldNotReachThePromptAreRefused) {
  for (const auto& [source, takes] :
       std::vector<std::pair<const char*, bool>>{{"{{ tools }}", true},
                                                 {"{% for t in tools %}{% endfor %}", true},
                                                 {"{{ messages }}", false},
                                                 {"{{ builtin_tools or tools_x }}", false},
                                                 {"", false}}) {
    const auto parsed = *ChatTemplate::Parse(source, "{}");
    EXPECT_EQ(parsed->Render("[]", R"([{"type": "function"}])", true, "").ok(), takes) << source;
    EXPECT_TRUE(parsed->Render("[]", "[]", true, "").ok()) << source;
  }
}

std::string ErrorOf(absl::string_view source) {
  auto chat_template = ChatTemplate::Parse(source, "{}");
  if (!chat_template.ok()) return std::string(chat_template.status().message());
  return std::string((*chat_template)->Render("[]", "", false, "").status().message());
}

TEST(ChatTemplate, ABrokenTemplateEndsInAnError) {
  EXPECT_NE(ErrorOf("{% if %}"), "");
  EXPECT_EQ(ErrorOf("{%}").find("internal error"), std::string::npos) << ErrorOf("{%}");
  EXPECT_NE(ErrorOf("{{ raise_exception('roles must alternate') }}").find("roles must alternate"), std::string::npos);
  EXPECT_NE(ErrorOf("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"), "");
  EXPECT_NE(ErrorOf("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "");
}

std::string Repeat(absl::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all.append(text.data(), text.size());
  return all;
}

// Each of these ended the process, or took any memory.
TEST(ChatTemplate, ATemplateThatNeedsTooMuchIsAnErrorInTheSandbox) {
  const auto sandbox = Sandbox::Start({.function = ChatTemplate::RunInSandbox, .memory_bytes = 128 << 20});
  ASSERT_TRUE(sandbox.ok()) << sandbox.status();
  for (const std::string& flat : {"{{ " + Repeat("not ", 100000) + "1 }}", "{{ a" + Repeat(".a", 200000) + " }}",
                                  "{{ 1" + Repeat("+1", 200000) + " }}", "{{ 'a'" + Repeat("|trim", 180000) + " }}"}) {
    const absl::Status status = ChatTemplate::Parse(flat, "{}", sandbox->get()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find("too complex"), absl::string_view::npos) << status;
  }
  const std::string doubling = "{% set ns = namespace(x='a') %}{% for i in range(45) %}{% set ns.x = ns.x ~ ns.x %}";
  for (const std::string& greedy :
       {std::string("{% set ns = namespace(x=1) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}"
                    "{{ ns.x|tojson }}"),
        doubling + "{% endfor %}", std::string("{{ '%1000000000s'|format('a') }}"),
        std::string("{{ 'a\nb'|indent(2000000000) }}")}) {
    const auto chat_template = ChatTemplate::Parse(greedy, "{}", sandbox->get());
    ASSERT_TRUE(chat_template.ok()) << chat_template.status();
    EXPECT_FALSE((*chat_template)->Render("[]", "", true, "").ok()) << greedy;
  }
  EXPECT_EQ(ChatTemplate::Parse(std::string(ChatTemplate::kMaxSourceBytes + 1, 'a'), "{}").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, TheSandboxRendersTheSame) {
  const auto sandbox = Sandbox::Start({.function = ChatTemplate::RunInSandbox});
  ASSERT_TRUE(sandbox.ok()) << sandbox.status();
  const auto bundled = ChatTemplate::Load(kModel, sandbox->get());
  const auto other = ChatTemplate::Parse("{{ raise_exception('no ' ~ messages[0].content) }}", "{}", sandbox->get());
  ASSERT_TRUE(bundled.ok() && other.ok());
  for (int i = 0; i < 3; ++i) {  // a worker changes its template
    const auto text = (*bundled)->Render(R"([{"role": "user", "content": "Hello!"}])", "", true, "");
    EXPECT_EQ(text.value(), "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n");
    const absl::Status refused = (*other)->Render(R"([{"content": "way"}])", "", true, "").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("no way"), absl::string_view::npos) << refused;
  }
  EXPECT_EQ(ChatTemplate::Parse("{% if %}", "{}", sandbox->get()).status(),
            ChatTemplate::Parse("{% if %}", "{}").status());
  EXPECT_EQ((*bundled)->Render("[]", "", true, "", [] { return true; }).status().code(), absl::StatusCode::kCancelled);
}

TEST(ChatTemplate, RefusesWhatIsNoConversation) {
  auto chat_template = *ChatTemplate::Parse("{{ messages[0].content }}", "{}");
  EXPECT_FALSE(chat_template->Render("{}", "", true, "").ok());
  EXPECT_FALSE(chat_template->Render("[", "", true, "").ok());
  EXPECT_FALSE(chat_template->Render("[]", "{}", true, "").ok());
  EXPECT_FALSE(chat_template->Render("[]", "", true, "[]").ok());
}

}  // namespace
}  // namespace berth
