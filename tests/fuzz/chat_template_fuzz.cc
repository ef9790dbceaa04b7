// Four parts: a chat template, and the JSON of messages, tools and variables that it renders. The server does this in a
// process of its own (text/sandbox.h), which may run out of memory or stack. Here only the output's size is bounded.
#include "tests/fuzz/fuzz_input.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<std::string> parts = berth::PartsOf(data, size, 4);
  const auto parsed = berth::ChatTemplate::Parse(parts[0], R"({"bos_token": "<s>", "eos_token": "</s>"})");
  const std::string input = berth::TextOf(data, size);
  FUZZ_CHECK(!berth::HasPanicked(parsed.status(), input), parsed.status().ToString());
  if (!parsed.ok()) return 0;
  const std::string messages = parts[1].empty() ? R"([{"role": "user", "content": "hello"}])" : parts[1];
  const auto rendered = (*parsed)->Render(messages, parts[2], /*add_generation_prompt=*/true, parts[3]);
  FUZZ_CHECK(rendered.ok() || absl::IsInvalidArgument(rendered.status()), rendered.status().ToString());
  FUZZ_CHECK(!berth::HasPanicked(rendered.status(), input), rendered.status().ToString());
  return 0;
}
