// A model's chat template: renders conversations to prompts exactly as transformers' apply_chat_template does.
// Immutable; thread-safe.
#ifndef BERTH_TEXT_CHAT_TEMPLATE_H_
#define BERTH_TEXT_CHAT_TEMPLATE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/encode_bounds.h"
#include "text/sandbox.h"
#include "text/text_abi.h"

namespace berth {

class ChatTemplate {
 public:
  // Far above any template.
  static constexpr int64_t kMaxSourceBytes = int64_t{1} << 20;

  // Loads chat_template.jinja and additional_chat_templates/*.jinja, or else the templates in tokenizer_config.json, or
  // else that in chat_template.json. The one named "tool_use" renders requests with tools, and "default" the others.
  // Special tokens become variables (bos_token, eos_token, ...). NOT_FOUND: the folder has neither;
  // INVALID_ARGUMENT: one cannot be parsed, or is over kMaxSourceBytes. With a sandbox, which must outlive the
  // template, it is parsed and rendered there: a template may need any memory, stack and time. Without, only fuel
  // bounds it.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Load(const std::string& model_dir,
                                                            const Sandbox* sandbox = nullptr);
  // `variables_json`: an object of variables that every rendering sees.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(absl::string_view source, std::string variables_json,
                                                             const Sandbox* sandbox = nullptr);
  // The function of the sandbox.
  static std::string RunInSandbox(const std::vector<std::string>& arguments);
  ~ChatTemplate();
  // The object of variables that every rendering sees.
  const std::string& variables_json() const { return variables_json_; }
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // Renders a conversation. messages_json: an array of objects; tools_json: an array, or "" for none; extra_json: an
  // object of further variables, or "". INVALID_ARGUMENT: the JSON is wrong, the template does not read the tools, or
  // it raised an error, which the message quotes. With a sandbox also RESOURCE_EXHAUSTED, CANCELLED and UNAVAILABLE, as
  // Sandbox::Call.
  absl::StatusOr<std::string> Render(const std::string& messages_json, const std::string& tools_json,
                                     bool add_generation_prompt, const std::string& extra_json,
                                     const StopCheck& stop = {}) const;

 private:
  ChatTemplate(std::string source, std::string variables_json, const Sandbox* sandbox)
      : source_(std::move(source)), variables_json_(std::move(variables_json)), sandbox_(sandbox) {}

  absl::StatusOr<std::string> CallSandbox(const std::string& context_json, const StopCheck& stop) const;

  const std::string source_;
  const std::string variables_json_;
  const Sandbox* const sandbox_;
  BerthTemplate* template_ = nullptr;       // null: in the sandbox
  std::unique_ptr<ChatTemplate> tool_use_;  // renders requests with tools; null: this one does
};

}  // namespace berth

#endif  // BERTH_TEXT_CHAT_TEMPLATE_H_
