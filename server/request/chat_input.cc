#include "server/request/chat_input.h"

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/bounded_json.h"

namespace berth {
namespace {

constexpr int kMaxMessages = 4096;
constexpr size_t kMaxRoleBytes = 64;

// What each JSON text may have. An nlohmann::ordered_json compares each new key with all before it: 90,000 keys in 0.9
// MB take 5 s.
constexpr JsonLimits kJsonLimits = {.max_bytes = 1 << 20, .max_depth = 32, .max_keys = 1024};

absl::Status Invalid(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

// An object without the keys that the request sets by itself.
absl::StatusOr<nlohmann::json> ParseObject(absl::string_view field, absl::string_view text,
                                           std::initializer_list<const char*> taken) {
  nlohmann::json json;
  if (absl::Status s = ParseJsonObject(text, field, kJsonLimits, &json); !s.ok()) return s;
  for (const char* key : taken) {
    if (json.contains(key)) return Invalid(field, absl::StrCat("\"", key, "\" has a field of its own"));
  }
  return json;
}

std::string Quote(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Makes the arguments of tool calls what their texts say, as vLLM does: OpenAI's API has them as JSON in a text, and
// templates print them as JSON. Absent or empty ones become {}.
absl::Status ParseArguments(const std::string& field, nlohmann::ordered_json* tool_calls) {
  int index = 0;
  for (nlohmann::ordered_json& call : *tool_calls) {
    const std::string place = absl::StrCat(field, ": tool_calls[", index++, "].function.arguments");
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    nlohmann::ordered_json& arguments = call["function"]["arguments"];
    if (arguments.is_null() || arguments == "") arguments = nlohmann::ordered_json::object();
    if (!arguments.is_string()) continue;
    const std::string text = arguments.get<std::string>();
    nlohmann::json json;
    if (absl::Status s = ParseJson(text, place, kJsonLimits, &json); !s.ok()) return s;
    arguments = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  }
  return absl::OkStatus();
}

// The extra keys without braces, in the client's order, since templates print them. Only the arguments of tool calls
// are changed. "content" may be among the keys if it is not a text.
absl::StatusOr<std::string> ExtraKeys(const std::string& field, const v1::ChatMessage& message, bool* has_content) {
  const std::string& text = message.extra_json();
  const absl::StatusOr<nlohmann::json> keys = ParseObject(field, text, {"role"});
  if (!keys.ok()) return keys.status();
  const auto content = keys->find("content");
  *has_content = content != keys->end();
  if (*has_content && (!message.content().empty() || content->is_string())) {
    return Invalid(field, "\"content\" has a field of its own");
  }
  std::string whole(absl::StripAsciiWhitespace(text));
  const auto tool_calls = keys->find("tool_calls");
  if (message.role() == "assistant" && tool_calls != keys->end() && tool_calls->is_array()) {
    nlohmann::ordered_json extra = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (absl::Status s = ParseArguments(field, &extra["tool_calls"]); !s.ok()) return s;
    if (tool_calls->empty()) extra.erase("tool_calls");  // as vLLM does
    whole = extra.dump();
  }
  return std::string(absl::StripAsciiWhitespace(absl::string_view(whole).substr(1, whole.size() - 2)));
}

absl::Status AppendMessage(int index, const v1::ChatMessage& message, std::string* out) {
  const std::string field = absl::StrCat("chat.messages[", index, "]");
  if (message.role().empty()) return Invalid(field + ".role", "empty");
  if (message.role().size() > kMaxRoleBytes) {
    return Invalid(field + ".role",
                   absl::StrCat(message.role().size(), " bytes are over the limit of ", kMaxRoleBytes));
  }
  absl::StatusOr<std::string> extra = "";
  bool has_content = false;
  if (message.has_extra_json()) extra = ExtraKeys(field + ".extra_json", message, &has_content);
  if (!extra.ok()) return extra.status();
  absl::StrAppend(out, index == 0 ? "" : ",", "{\"role\":", Quote(message.role()));
  if (!has_content) absl::StrAppend(out, ",\"content\":", Quote(message.content()));
  if (!extra->empty()) absl::StrAppend(out, ",", *extra);
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
    nlohmann::json tools;
    const absl::Status status = ParseJson(chat.tools_json(), "chat.tools_json", kJsonLimits, &tools);
    if (!status.ok()) return status;
    if (!tools.is_array()) return Invalid("chat.tools_json", "must be a JSON array");
  }
  if (chat.has_template_variables_json()) {
    const absl::Status status = ParseObject("chat.template_variables_json", chat.template_variables_json(),
                                            {"messages", "tools", "add_generation_prompt"})
                                    .status();
    if (!status.ok()) return status;
  }
  absl::StatusOr<std::string> rendered = text.RenderChat(
      *messages, chat.tools_json(), chat.has_add_generation_prompt() ? chat.add_generation_prompt() : true,
      chat.template_variables_json(), stop);
  if (absl::IsCancelled(rendered.status()) || absl::IsUnavailable(rendered.status())) return rendered.status();
  if (!rendered.ok()) return Invalid("chat", rendered.status().message());
  return rendered;
}

}  // namespace berth
