// The server's --flagfile.
#include "server/config.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = berth::FuzzFolder() + "/flags";
  berth::WriteFile(path, berth::TextOf(data, size));
  static auto* const config = new berth::Config();
  static const auto* const flags = new berth::FlagSet(berth::ServerFlags(config));  // takes long to make
  *config = berth::Config();
  const auto parsed = flags->Parse({"--flagfile=" + path});
  if (!parsed.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(parsed.status()), parsed.status().ToString());
    return 0;
  }
  berth::SetDeviceDefaults(/*on_gpu=*/false, config);
  const absl::Status valid = berth::Validate(*config);
  FUZZ_CHECK(valid.ok() || absl::IsInvalidArgument(valid), valid.ToString());
  return 0;
}
