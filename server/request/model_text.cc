#include "server/request/model_text.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/memory/memory.h"
#include "text/detokenizer.h"
#include "text/stop_matcher.h"

namespace berth {
namespace {

class ModelTextStream : public TextStream {
 public:
  ModelTextStream(const Tokenizer* tokenizer, TextStreamOptions options)
      : detokenizer_(tokenizer, options.skip_special_tokens, options.context),
        matcher_(options.stop, options.include_stop),
        include_stop_(options.include_stop),
        min_tokens_(options.min_tokens) {
    for (std::string& stop : options.stop) {
      const int32_t token = tokenizer->TokenId(stop);
      if (token >= 0 && !tokenizer->Reads(token, options.skip_special_tokens)) stop_tokens_[token] = std::move(stop);
    }
  }

  absl::StatusOr<TextPiece> Add(int32_t token) override {
    ++num_tokens_;
    const auto stop = stop_tokens_.find(token);
    if (may_stop() && stop != stop_tokens_.end()) return StopAt(stop->second);
    absl::StatusOr<std::string> text = detokenizer_.Add({token});
    if (!text.ok()) return text.status();
    return Match(*text);
  }

  absl::StatusOr<TextPiece> Flush() override {
    absl::StatusOr<std::string> text = detokenizer_.Flush();
    if (!text.ok()) return text.status();
    TextPiece piece = Match(*text);
    if (!piece.stopped) piece.text += matcher_.Flush();
    return piece;
  }

 private:
  bool may_stop() const { return num_tokens_ > min_tokens_; }

  // At a special token that is a stop string: the text leaves it out, so the matcher does not see it.
  absl::StatusOr<TextPiece> StopAt(const std::string& stop) {
    absl::StatusOr<TextPiece> piece = Flush();
    if (!piece.ok() || piece->stopped) return piece;
    if (include_stop_) piece->text += stop;
    piece->stopped = true;
    piece->stop_string = stop;
    return piece;
  }

  TextPiece Match(const std::string& text) {
    StopMatcher::Result result = matcher_.Add(text, may_stop());
    return {.text = std::move(result.text), .stopped = result.matched, .stop_string = std::move(result.stop)};
  }

  Detokenizer detokenizer_;
  StopMatcher matcher_;
  const bool include_stop_;
  const int64_t min_tokens_;
  std::map<int32_t, std::string> stop_tokens_;  // stop strings that are special tokens, which the text leaves out
  int64_t num_tokens_ = 0;
};

// What ends a message in widespread chat templates. The model's own end token comes from its files.
constexpr const char* kMessageEnds[] = {"<|im_end|>",      "<|eot_id|>", "<|eom_id|>",           "<end_of_turn>",
                                        "<|end_of_turn|>", "<|end|>",    "<|END_OF_TURN_TOKEN|>"};

// The ids of `names` that the tokenizer knows as special tokens, ascending.
std::vector<int32_t> SpecialTokens(const Tokenizer& tokenizer, const std::vector<std::string>& names) {
  std::vector<int32_t> tokens;
  for (const std::string& name : names) {
    const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(name, /*add_special_tokens=*/false, {});
    if (!ids.ok() || ids->size() != 1) continue;
    const absl::StatusOr<std::string> text = tokenizer.Decode(*ids, /*skip_special_tokens=*/true);
    if (text.ok() && text->empty()) tokens.push_back(ids->front());
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

}  // namespace

ModelText::ModelText(std::unique_ptr<Tokenizer> tokenizer, std::unique_ptr<ChatTemplate> chat_template)
    : tokenizer_(std::move(tokenizer)), chat_template_(std::move(chat_template)) {
  std::vector<std::string> names(std::begin(kMessageEnds), std::end(kMessageEnds));
  if (chat_template_ != nullptr) {
    const auto variables = nlohmann::json::parse(chat_template_->variables_json(), nullptr, /*allow_exceptions=*/false);
    if (variables.is_object() && variables.contains("eos_token") && variables["eos_token"].is_string()) {
      names.push_back(variables["eos_token"].get<std::string>());
    }
  }
  message_end_tokens_ = SpecialTokens(*tokenizer_, names);
}

absl::StatusOr<std::unique_ptr<ModelText>> ModelText::Load(const std::string& model_dir, const Sandbox* sandbox) {
  auto tokenizer = Tokenizer::Load(model_dir);
  if (absl::IsNotFound(tokenizer.status())) return nullptr;
  if (!tokenizer.ok()) return tokenizer.status();
  auto chat_template = ChatTemplate::Load(model_dir, sandbox);
  if (!chat_template.ok() && !absl::IsNotFound(chat_template.status())) return chat_template.status();
  return absl::WrapUnique(
      new ModelText(*std::move(tokenizer), chat_template.ok() ? *std::move(chat_template) : nullptr));
}

absl::StatusOr<std::vector<int32_t>> ModelText::Encode(std::string_view text, bool add_special_tokens,
                                                       const EncodeBounds& bounds) const {
  return tokenizer_->Encode(absl::string_view(text.data(), text.size()), add_special_tokens, bounds);
}

absl::StatusOr<std::string> ModelText::Decode(absl::Span<const int32_t> tokens, bool skip_special_tokens) const {
  return tokenizer_->Decode(tokens, skip_special_tokens);
}

absl::StatusOr<std::string> ModelText::RenderChat(const std::string& messages_json, const std::string& tools_json,
                                                  bool add_generation_prompt, const std::string& extra_json,
                                                  const StopCheck& stop) const {
  if (chat_template_ == nullptr) return absl::FailedPreconditionError("the model has no chat template");
  return chat_template_->Render(messages_json, tools_json, add_generation_prompt, extra_json, stop);
}

std::unique_ptr<TextStream> ModelText::NewStream(TextStreamOptions options) const {
  return std::make_unique<ModelTextStream>(tokenizer_.get(), std::move(options));
}

}  // namespace berth
