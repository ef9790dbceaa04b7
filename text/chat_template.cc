#include "text/chat_template.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/abi_call.h"
#include "text/tokenizer_config.h"

namespace berth {
namespace {

constexpr char kRendered = 'r';
constexpr char kFailed = 'f';
constexpr char kToolsOnly[] = "{{ raise_exception('the model has a chat template for requests with tools only') }}";

using Json = nlohmann::ordered_json;  // templates may print keys in their order

// "": no such file.
std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (file) content << file.rdbuf();
  return content.str();
}

// Returns a discarded value if the text is not JSON.
Json ParseJson(const std::string& text) { return Json::parse(text, nullptr, /*allow_exceptions=*/false); }

using Named = std::map<std::string, std::string>;  // sources by name

// The templates that a field "chat_template" holds: a text, which is the default, a list of {"name", "template"}, or an
// object from names to texts. INVALID_ARGUMENT names the field.
absl::StatusOr<Named> TemplatesOf(const Json& file, const std::string& path) {
  Named named;
  if (!file.contains("chat_template") || file["chat_template"].is_null()) return named;
  const Json& value = file["chat_template"];
  const absl::Status wrong =
      absl::InvalidArgumentError(absl::StrCat(path, ": chat_template is neither a text nor a list of named templates"));
  const auto add = [&named](const Json& name, const Json& source) {
    if (!name.is_string() || !source.is_string() || source.get_ref<const std::string&>().empty()) return false;
    named[name.get<std::string>()] = source.get<std::string>();
    return true;
  };
  if (value.is_string()) {
    add("default", value);
    return named;
  }
  if (!value.is_array() && !value.is_object()) return wrong;
  for (const auto& [key, entry] : value.items()) {
    const bool added = value.is_object() ? add(key, entry)
                                         : entry.is_object() && entry.contains("name") && entry.contains("template") &&
                                               add(entry["name"], entry["template"]);
    if (!added) return wrong;
  }
  return named;
}

// chat_template.jinja is the default; the others are named as their files.
Named TemplateFiles(const std::string& model_dir) {
  Named named;
  if (std::string source = ReadFile(model_dir + "/chat_template.jinja"); !source.empty()) {
    named["default"] = std::move(source);
  }
  std::error_code error;  // no such folder
  for (const auto& file : std::filesystem::directory_iterator(model_dir + "/additional_chat_templates", error)) {
    if (file.path().extension() == ".jinja") named[file.path().stem().string()] = ReadFile(file.path().string());
  }
  return named;
}

// By transformers' rules: files of templates hide what tokenizer_config.json holds. Last comes chat_template.json,
// which older processors have. Empty: none.
absl::StatusOr<Named> FindTemplates(const std::string& model_dir, const Json& config, const std::string& config_path) {
  Named files = TemplateFiles(model_dir);
  if (!files.empty()) return files;
  absl::StatusOr<Named> named = TemplatesOf(config, config_path);
  if (!named.ok() || !named->empty()) return named;
  const std::string path = model_dir + "/chat_template.json";
  const absl::StatusOr<Json> file = ReadJsonObject(path);
  return file.ok() ? TemplatesOf(*file, path) : file.status();
}

// Whether the name occurs in the source.
bool Mentions(absl::string_view source, absl::string_view name) {
  const auto is_part = [&source](size_t at) {
    return at < source.size() && (absl::ascii_isalnum(static_cast<unsigned char>(source[at])) || source[at] == '_');
  };
  for (size_t at = source.find(name); at != source.npos; at = source.find(name, at + 1)) {
    if ((at == 0 || !is_part(at - 1)) && !is_part(at + name.size())) return true;
  }
  return false;
}

absl::StatusOr<Json> ParseOrFail(const std::string& text, absl::string_view what, bool array) {
  Json json = ParseJson(text);
  if (array ? json.is_array() : json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(what, ": not a JSON ", array ? "array" : "object"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(const std::string& model_dir, const Sandbox* sandbox) {
  const std::string path = model_dir + "/tokenizer_config.json";
  const absl::StatusOr<TokenizerConfig> config = TokenizerConfig::Load(model_dir);
  if (!config.ok()) return config.status();
  const Json& variables = config->special_tokens();
  absl::StatusOr<Named> named = FindTemplates(model_dir, config->value(), path);
  if (!named.ok()) return named.status();
  const auto tool_use = named->find("tool_use");
  const auto standard = named->find("default");
  if (tool_use == named->end() && standard == named->end()) {
    return absl::NotFoundError(absl::StrCat(model_dir, ": no chat template"));
  }
  auto loaded = Parse(standard != named->end() ? standard->second : kToolsOnly, variables.dump(), sandbox);
  if (!loaded.ok() || tool_use == named->end()) return loaded;
  auto with_tools = Parse(tool_use->second, variables.dump(), sandbox);
  if (!with_tools.ok()) return with_tools.status();
  (*loaded)->tool_use_ = *std::move(with_tools);
  return loaded;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(absl::string_view source, std::string variables_json,
                                                                  const Sandbox* sandbox) {
  if (static_cast<int64_t>(source.size()) > kMaxSourceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("chat template: ", source.size(), " bytes are over the limit of ", kMaxSourceBytes));
  }
  auto parsed = absl::WrapUnique(new ChatTemplate(std::string(source), std::move(variables_json), sandbox));
  if (sandbox != nullptr) {
    const absl::Status status = parsed->CallSandbox("", {}).status();
    if (status.ok()) return parsed;
    if (!absl::IsResourceExhausted(status)) return status;
    return absl::InvalidArgumentError(absl::StrCat("chat template: too complex: ", status.message()));
  }
  BerthBytes error{};
  const int32_t result = berth_template_load(BytesOf(source), source.size(), &parsed->template_, &error);
  if (absl::Status status = CallStatus(result, error, "chat template"); !status.ok()) return status;
  return parsed;
}

ChatTemplate::~ChatTemplate() {
  if (template_ != nullptr) berth_template_free(template_);
}

absl::StatusOr<std::string> ChatTemplate::CallSandbox(const std::string& context_json, const StopCheck& stop) const {
  absl::StatusOr<std::string> answer = sandbox_->Call({source_, context_json}, stop);
  if (!answer.ok()) return answer;
  if (!answer->empty() && answer->front() == kRendered) return answer->substr(1);
  return absl::InvalidArgumentError(answer->empty() ? "chat template: no answer" : answer->substr(1));
}

// The arguments are the template's source, and the variables of a rendering, or "" if the template is only parsed. The
// answer begins with kRendered or kFailed.
std::string ChatTemplate::RunInSandbox(const std::vector<std::string>& arguments) {
  static std::string* const source = new std::string();  // of `chat_template`; this process renders one mostly
  static BerthTemplate* chat_template = nullptr;
  BerthBytes out{};
  BerthBytes error{};
  if (chat_template == nullptr || *source != arguments[0]) {
    if (chat_template != nullptr) berth_template_free(std::exchange(chat_template, nullptr));
    *source = arguments[0];
    const int32_t result = berth_template_load(BytesOf(*source), source->size(), &chat_template, &error);
    if (absl::Status s = CallStatus(result, error, "chat template"); !s.ok()) {
      chat_template = nullptr;
      return kFailed + std::string(s.message());
    }
  }
  const std::string& context = arguments[1];
  if (context.empty()) return std::string(1, kRendered);
  const int32_t result = berth_template_render(chat_template, BytesOf(context), context.size(), &out, &error);
  if (absl::Status s = CallStatus(result, error, "chat template"); !s.ok()) return kFailed + std::string(s.message());
  return kRendered + TakeString(out);
}

absl::StatusOr<std::string> ChatTemplate::Render(const std::string& messages_json, const std::string& tools_json,
                                                 bool add_generation_prompt, const std::string& extra_json,
                                                 const StopCheck& stop) const {
  if (!tools_json.empty() && tool_use_ != nullptr) {
    return tool_use_->Render(messages_json, tools_json, add_generation_prompt, extra_json, stop);
  }
  Json context = ParseJson(variables_json_);
  auto messages = ParseOrFail(messages_json, "chat.messages", /*array=*/true);
  if (!messages.ok()) return messages.status();
  context["messages"] = *std::move(messages);
  context["tools"] = nullptr;
  if (!tools_json.empty()) {
    auto tools = ParseOrFail(tools_json, "chat.tools_json", /*array=*/true);
    if (!tools.ok()) return tools.status();
    if (!tools->empty() && !Mentions(source_, "tools")) {
      return absl::InvalidArgumentError("chat.tools_json: the model's chat template has no place for tools");
    }
    context["tools"] = *std::move(tools);
  }
  context["documents"] = nullptr;
  context["add_generation_prompt"] = add_generation_prompt;
  if (!extra_json.empty()) {
    auto extra = ParseOrFail(extra_json, "chat.template_variables_json", /*array=*/false);
    if (!extra.ok()) return extra.status();
    context.update(*extra);
  }
  // All text is UTF-8 here: JSON parsing has refused any other.
  const std::string json = context.dump();
  if (sandbox_ != nullptr) return CallSandbox(json, stop);
  BerthBytes out{};
  BerthBytes error{};
  const int32_t result = berth_template_render(template_, BytesOf(json), json.size(), &out, &error);
  if (absl::Status status = CallStatus(result, error, "chat template"); !status.ok()) return status;
  return TakeString(out);
}

}  // namespace berth
