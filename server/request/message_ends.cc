#include "server/request/message_ends.h"

#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "server/request/chat_input.h"

namespace berth {
namespace {

// The length of what two texts have in common, in whole characters.
size_t CommonText(const std::string& a, const std::string& b) {
  size_t common = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
  while (common > 0 && common < a.size() && (a[common] & 0xC0) == 0x80) --common;
  return common;
}

}  // namespace

std::vector<int32_t> EndsAfterTokens(absl::Span<const int32_t> prompt, const ValidationContext& context) {
  const absl::Span<const int32_t> special = context.text->message_end_tokens();
  const std::vector<int32_t>& eos = context.model->eos_token_ids;
  const auto ends = [&](int32_t token) {
    return std::binary_search(special.begin(), special.end(), token) ||
           std::find(eos.begin(), eos.end(), token) != eos.end();
  };
  std::vector<int32_t> found;
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    if (ends(prompt[i]) && !ends(prompt[i + 1])) found.push_back(static_cast<int32_t>(i + 1));
  }
  return found;
}

absl::StatusOr<std::vector<int32_t>> EndsByRendering(const v1::Chat& chat, const std::string& text,
                                                     absl::Span<const int32_t> prompt, const StopCheck& stop,
                                                     const ValidationContext& context) {
  const int count = chat.messages_size();
  std::set<int32_t> found;
  for (const int kept : std::set<int>{1, count - 2, count - 1, count}) {
    if (kept < 1) continue;
    v1::Chat beginning = chat;
    beginning.mutable_messages()->DeleteSubrange(kept, count - kept);
    beginning.set_add_generation_prompt(false);
    const absl::StatusOr<std::string> rendered =
        RenderChat(beginning, *context.text, context.limits.max_text_bytes, stop);
    if (absl::IsCancelled(rendered.status()) || absl::IsUnavailable(rendered.status())) return rendered.status();
    if (!rendered.ok()) continue;
    const absl::StatusOr<std::vector<int32_t>> tokens =
        context.text->Encode(text.substr(0, CommonText(text, *rendered)), /*add_special_tokens=*/false, {.stop = stop});
    if (absl::IsCancelled(tokens.status())) return tokens.status();
    if (!tokens.ok()) continue;
    // The last token may stand for more text in the whole prompt.
    const int64_t common =
        std::mismatch(tokens->begin(), tokens->end(), prompt.begin(), prompt.end()).first - tokens->begin();
    if (common > 0 && common < static_cast<int64_t>(prompt.size())) found.insert(static_cast<int32_t>(common));
  }
  return std::vector<int32_t>(found.begin(), found.end());
}

}  // namespace berth
