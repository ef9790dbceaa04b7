// A model's chat template: renders conversations to prompts exactly as transformers' apply_chat_template does.
// Immutable; thread-safe.
#ifndef BERTH_TEXT_CHAT_TEMPLATE_H_
#define BERTH_TEXT_CHAT_TEMPLATE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/text_abi.h"

namespace berth {

class ChatTemplate {
 public:
  // Loads chat_template.jinja, or else the template in tokenizer_config.json: a string, or the "default" of a list.
  // Special tokens become variables (bos_token, eos_token, ...). NOT_FOUND: the folder has no template;
  // INVALID_ARGUMENT: it cannot be parsed.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Load(const std::string& model_dir);
  // `variables_json`: an object of variables that every rendering sees.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(absl::string_view source, std::string variables_json);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // Renders a conversation. messages_json: an array of objects; tools_json: an array, or "" for none; extra_json: an
  // object of further variables, or "". INVALID_ARGUMENT: the JSON is wrong, or the template raised an error, which the
  // message quotes.
  absl::StatusOr<std::string> Render(const std::string& messages_json, const std::string& tools_json,
                                     bool add_generation_prompt, const std::string& extra_json) const;

 private:
  ChatTemplate(BerthTemplate* chat_template, std::string variables_json)
      : template_(chat_template), variables_json_(std::move(variables_json)) {}

  BerthTemplate* template_;
  std::string variables_json_;
};

}  // namespace berth

#endif  // BERTH_TEXT_CHAT_TEMPLATE_H_
