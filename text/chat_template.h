// A model's chat template: conversations to prompts, as transformers' apply_chat_template renders them.
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
  // From chat_template.jinja, else from tokenizer_config.json (a string, or a list whose "default" is taken). Special
  // tokens become variables (bos_token, eos_token, ...). NOT_FOUND: the folder has none; INVALID_ARGUMENT: it cannot be
  // understood.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Load(const std::string& model_dir);
  // `variables_json`: an object of variables that every rendering sees.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(absl::string_view source, std::string variables_json);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // messages_json: an array of objects; tools_json: an array, or "" for none; extra_json: an object of further
  // variables, or "". INVALID_ARGUMENT: no such JSON, or the template refuses the conversation, with its own message.
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
