#include "server/api/chat_input.h"

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/api/json_bounds.h"

namespace berth {
namespace {

constexpr int kMaxMessages = 4096;
constexpr size_t kMaxRoleBytes = 64;

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

// An object without the keys that the request sets by itself.
absl::Status CheckObject(absl::string_view field, std::string_view text, std::initializer_list<const char*> taken) {
  absl::StatusOr<nlohmann::json> json = ParseBoundedJson(field, text);
  if (!json.ok()) return json.status();
  if (!json->is_object()) return Invalid(field, "not a JSON object");
  for (const char* key : taken) {
    if (json->contains(key)) return Invalid(field, absl::StrCat("\"", key, "\" has a field of its own"));
  }
  return absl::OkStatus();
}

std::string Quote(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The extra keys are spliced in as the client wrote them: templates print them, and their order and numbers must stay.
absl::Status AppendMessage(int index, const v1::ChatMessage& message, std::string* out) {
  const std::string field = absl::StrCat("chat.messages[", index, "]");
  if (message.role().empty()) return Invalid(field + ".role", "empty");
  if (message.role().size() > kMaxRoleBytes) {
    return Invalid(field + ".role",
                   absl::StrCat(message.role().size(), " bytes are over the limit of ", kMaxRoleBytes));
  }
  absl::StrAppend(out, index == 0 ? "" : ",", "{\"role\":", Quote(message.role()),
                  ",\"content\":", Quote(message.content()));
  if (message.has_extra_json()) {
    if (absl::Status s = CheckObject(field + ".extra_json", message.extra_json(), {"role", "content"}); !s.ok()) {
      return s;
    }
    absl::string_view inner = absl::StripAsciiWhitespace(message.extra_json());
    inner = absl::StripAsciiWhitespace(inner.substr(1, inner.size() - 2));
    if (!inner.empty()) absl::StrAppend(out, ",", inner);
  }
  out->push_back('}');
  return absl::OkStatus();
}

absl::StatusOr<std::string> MessagesJson(const v1::Chat& chat, int64_t max_text_bytes) {
  if (chat.messages().empty()) return Invalid("chat.messages", "empty; at least one message is needed");
  if (chat.messages_size() > kMaxMessages) {
    return Invalid("chat.messages",
                   absl::StrCat(chat.messages_size(), " messages are over the limit of ", kMaxMessages));
  }
  size_t bytes = chat.tools_json().size() + chat.template_variables_json().size();
  for (const v1::ChatMessage& message : chat.messages()) {
    bytes += message.role().size() + message.content().size() + message.extra_json().size();
  }
  if (static_cast<int64_t>(bytes) > max_text_bytes) {
    return Invalid(
        "chat", absl::StrCat(bytes, " bytes of messages, tools and variables are over the limit of ", max_text_bytes));
  }
  std::string json = "[";
  for (int i = 0; i < chat.messages_size(); ++i) {
    if (absl::Status s = AppendMessage(i, chat.messages(i), &json); !s.ok()) return s;
  }
  json.push_back(']');
  return json;
}

}  // namespace

absl::StatusOr<std::string> RenderChat(const v1::Chat& chat, const TextCodec& text, int64_t max_text_bytes,
                                       const StopCheck& stop) {
  if (!text.has_chat_template()) return Invalid("chat", "the model has no chat template; use prompt or token_ids");
  absl::StatusOr<std::string> messages = MessagesJson(chat, max_text_bytes);
  if (!messages.ok()) return messages.status();
  if (chat.has_tools_json()) {
    absl::StatusOr<nlohmann::json> tools = ParseBoundedJson("chat.tools_json", chat.tools_json());
    if (!tools.ok()) return tools.status();
    if (!tools->is_array()) return Invalid("chat.tools_json", "not a JSON array");
  }
  if (chat.has_template_variables_json()) {
    if (absl::Status s = CheckObject("chat.template_variables_json", chat.template_variables_json(),
                                     {"messages", "tools", "add_generation_prompt"});
        !s.ok()) {
      return s;
    }
  }
  absl::StatusOr<std::string> rendered = text.RenderChat(
      *messages, chat.tools_json(), chat.has_add_generation_prompt() ? chat.add_generation_prompt() : true,
      chat.template_variables_json(), stop);
  if (absl::IsCancelled(rendered.status()) || absl::IsUnavailable(rendered.status())) return rendered.status();
  if (!rendered.ok()) return Invalid("chat", rendered.status().message());
  return rendered;
}

}  // namespace berth
