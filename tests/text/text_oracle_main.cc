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
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/text/test_tokenizers.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
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
    tokenizer_ = *std::move(tokenizer);
    return {{"value", tokenizer_->vocab_size()}};
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

  std::unique_ptr<Tokenizer> tokenizer_;
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
