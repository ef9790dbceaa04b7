// The JSON of a chat: extra_json of a message, tools_json and template_variables_json. Whatever they hold, the template
// sees the messages' own roles and contents, and values that are JSON.
#include <nlohmann/json.hpp>

#include "server/request/chat_input.h"
#include "tests/fuzz/fuzz_input.h"

namespace berth {
namespace {

// Checks what a template would get.
class CheckingCodec final : public TextCodec {
 public:
  explicit CheckingCodec(const v1::Chat& chat) : chat_(chat) {}

  absl::StatusOr<std::string> RenderChat(const std::string& messages_json, const std::string& tools_json, bool,
                                         const std::string& extra_json, const StopCheck&) const override {
    const auto messages = nlohmann::json::parse(messages_json, nullptr, /*allow_exceptions=*/false);
    FUZZ_CHECK(messages.is_array() && static_cast<int>(messages.size()) == chat_.messages_size(), messages_json);
    for (int i = 0; i < chat_.messages_size(); ++i) {
      FUZZ_CHECK(messages[i].is_object(), messages_json);
      FUZZ_CHECK(messages[i]["role"] == chat_.messages(i).role(), messages_json);
      const bool own = messages[i]["content"] == chat_.messages(i).content();
      FUZZ_CHECK(own || (chat_.messages(i).content().empty() && !messages[i]["content"].is_string()), messages_json);
    }
    FUZZ_CHECK(tools_json.empty() || nlohmann::json::parse(tools_json, nullptr, false).is_array(), tools_json);
    FUZZ_CHECK(extra_json.empty() || nlohmann::json::parse(extra_json, nullptr, false).is_object(), extra_json);
    return "rendered";
  }
  bool has_chat_template() const override { return true; }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view, bool, const EncodeBounds&) const override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t>, bool) const override { return ""; }
  bool Reads(int32_t, bool) const override { return false; }
  TokenText TextOf(int32_t, bool) const override { return {}; }
  std::unique_ptr<TextStream> NewStream(TextStreamOptions) const override { return nullptr; }

 private:
  const v1::Chat& chat_;
};

}  // namespace
}  // namespace berth

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::string> parts = berth::PartsOf(data, size, 4);
  berth::v1::Chat chat;
  for (const char* role : {"user", "assistant", "tool"}) {
    berth::v1::ChatMessage* message = chat.add_messages();
    message->set_role(role);
    message->set_content(parts[0]);
    if (!parts[1].empty()) message->set_extra_json(parts[1]);
  }
  if (!parts[2].empty()) chat.set_tools_json(parts[2]);
  if (!parts[3].empty()) chat.set_template_variables_json(parts[3]);
  if (!chat.ParseFromString(chat.SerializeAsString())) return -1;  // not UTF-8: gRPC refuses it
  const auto rendered = RenderChat(chat, berth::CheckingCodec(chat), /*max_text_bytes=*/1 << 20, {});
  FUZZ_CHECK(rendered.ok() || absl::IsInvalidArgument(rendered.status()), rendered.status().ToString());
  return 0;
}
