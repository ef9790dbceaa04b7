// Answers the oracle test: one JSON request a line on stdin, one JSON answer a line on stdout.
//
//     {"families": true}: the tokenizers of test_tokenizers.h, by name
//     {"load": DIR}
//     {"encode": TEXT, "special": BOOL}
//     {"stream": [ID...], "skip": BOOL}
//     {"decode": [ID...], "skip": BOOL}
//     {"template": SOURCE, "variables": {...}}
//     {"template_of": DIR}
//     {"render": [MESSAGE...], "tools": [...] or null, "generation": BOOL}
//     {"schema": SCHEMA, "any_order": BOOL, "end": TOKEN}: compiles it, for the tokenizer that is loaded; without
//     "end", <|im_end|> ends it
//     {"accepts": TEXT or [ID...]}: whether it is a complete text of the schema
//     {"walk": SEED, "limit": TOKENS}: a complete text of the schema; null where the limit came first
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/text/test_tokenizers.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace berth {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json Answer(const absl::StatusOr<T>& value) {
  if (!value.ok()) return {{"error", std::string(value.status().message())}};
  return {{"value", *value}};
}

class Oracle {
 public:
  Json Handle(const Json& request) {
    if (request.contains("families")) return Families();
    if (request.contains("load")) return Load(request["load"]);
    if (request.contains("template")) {
      return Take(ChatTemplate::Parse(request["template"].get<std::string>(), request["variables"].dump()));
    }
    if (request.contains("template_of")) return Take(ChatTemplate::Load(request["template_of"]));
    if (request.contains("encode"))
      return Answer(tokenizer_->Encode(request["encode"].get<std::string>(), request["special"]));
    if (request.contains("decode")) {
      return Answer(tokenizer_->Decode(request["decode"].get<std::vector<int32_t>>(), request["skip"]));
    }
    if (request.contains("schema")) return Compile(request);
    if (request.contains("accepts")) return Accepts(request["accepts"]);
    if (request.contains("walk")) return WalkSchema(request["walk"], request["limit"]);
    if (request.contains("stream")) return Stream(request["stream"].get<std::vector<int32_t>>(), request["skip"]);
    return Render(request);
  }

 private:
  static Json Families() {
    Json all = Json::object();
    for (const TestTokenizer& each : FamilyTokenizers()) all[each.name] = each.json;
    return {{"value", all}};
  }

  Json Load(const std::string& dir) {
    auto tokenizer = Tokenizer::Load(dir);
    if (!tokenizer.ok()) return {{"error", std::string(tokenizer.status().message())}};
    grammar_ = {};
    vocabulary_ = nullptr;
    tokenizer_ = *std::move(tokenizer);
    return {{"value", tokenizer_->vocab_size()}, {"warnings", tokenizer_->warnings()}};
  }

  Json Take(absl::StatusOr<std::unique_ptr<ChatTemplate>> chat_template) {
    if (!chat_template.ok()) return {{"error", std::string(chat_template.status().message())}};
    template_ = *std::move(chat_template);
    return {{"value", true}};
  }

  // The pieces of a stream, one per token, then the flush.
  Json Stream(const std::vector<int32_t>& ids, bool skip) {
    Detokenizer detokenizer(tokenizer_.get(), skip);
    Json pieces = Json::array();
    for (int32_t id : ids) {
      auto piece = detokenizer.Add({id});
      if (!piece.ok()) return {{"error", std::string(piece.status().message())}};
      pieces.push_back(*piece);
    }
    auto last = detokenizer.Flush();
    if (!last.ok()) return {{"error", std::string(last.status().message())}};
    pieces.push_back(*last);
    return {{"value", pieces}};
  }

  Json Render(const Json& request) {
    return Answer(template_->Render(request["render"].dump(), request["tools"].is_null() ? "" : request["tools"].dump(),
                                    request["generation"], request.contains("extra") ? request["extra"].dump() : ""));
  }

  Json Compile(const Json& request) {
    const std::string end = request.value("end", "<|im_end|>");
    if (vocabulary_ == nullptr) {
      end_ = tokenizer_->TokenId(end);
      bytes_.clear();
      auto vocabulary = GrammarVocabulary::Create(tokenizer_.get(), tokenizer_->vocab_size(), {end_});
      if (!vocabulary.ok()) return {{"error", std::string(vocabulary.status().message())}};
      vocabulary_ = *std::move(vocabulary);
      for (int32_t token = 0; token < vocabulary_->vocab_size(); ++token) bytes_.push_back(vocabulary_->Bytes(token));
    }
    const GrammarSpec spec = {.kind = GrammarSpec::Kind::kJsonSchema,
                              .text = request["schema"].dump(),
                              .any_order = request.value("any_order", false)};
    auto grammar = CompileGrammar(spec, vocabulary_, {}, {});
    if (!grammar.ok()) return {{"error", std::string(grammar.status().message())}};
    grammar_ = *std::move(grammar);
    return {{"value", true}};
  }

  Json Accepts(const Json& text) {
    if (text.is_array()) return AcceptsTokens(text);
    const auto tokens = tokenizer_->Encode(text, /*add_special_tokens=*/false);
    return tokens.ok() ? AcceptsTokens(*tokens) : Json{{"error", std::string(tokens.status().message())}};
  }

  Json AcceptsTokens(const std::vector<int32_t>& tokens) {
    const std::unique_ptr<TokenConstraint> place = grammar_.start->Clone();
    if (place->CountAllowed(tokens) < static_cast<int64_t>(tokens.size())) return {{"value", false}};
    for (int32_t token : tokens) {
      if (absl::Status s = place->Accept(token); !s.ok()) return {{"error", s.ToString()}};
    }
    return {{"value", place->CountAllowed({end_}) == 1}};
  }

  // Takes allowed tokens at random. Half of them are ones that close something or separate, so that texts end.
  Json WalkSchema(unsigned seed, size_t limit) {
    std::mt19937 random(seed);
    const std::unique_ptr<TokenConstraint> place = grammar_.start->Clone();
    std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(vocabulary_->vocab_size())));
    std::string text;
    for (size_t count = 0; count < limit; ++count) {
      if (absl::Status s = place->FillMasks({}, absl::MakeSpan(mask)); !s.ok()) return {{"error", s.ToString()}};
      std::vector<int32_t> allowed, closing;
      for (int32_t token = 0; token < vocabulary_->vocab_size(); ++token) {
        if ((mask[static_cast<size_t>(token / 32)] >> (token % 32) & 1) == 0) continue;
        const std::string& bytes = bytes_[static_cast<size_t>(token)];
        if (bytes[0] == '\xFF') return {{"value", text}};  // the end token: nothing else is a control token
        allowed.push_back(token);
        if (bytes.find_first_of("]}\",") != std::string::npos) closing.push_back(token);
      }
      const std::vector<int32_t>& from = !closing.empty() && random() % 2 == 0 ? closing : allowed;
      const int32_t token = from[random() % from.size()];
      if (absl::Status s = place->Accept(token); !s.ok()) return {{"error", s.ToString()}};
      text += bytes_[static_cast<size_t>(token)];
    }
    return {{"value", nullptr}};
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;  // of the tokenizer; null: no schema came for it
  int32_t end_ = 0;
  std::vector<std::string> bytes_;  // of its tokens
  CompiledGrammar grammar_;
  std::unique_ptr<ChatTemplate> template_;
};

}  // namespace
}  // namespace berth

int main() {
  berth::Oracle oracle;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << oracle.Handle(berth::Json::parse(line)).dump() << "\n" << std::flush;
  }
}
