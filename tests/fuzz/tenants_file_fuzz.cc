// The file of --tenants.
#include "server/admission/tenants.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<berth::Tenants> tenants = berth::Tenants::Parse(berth::TextOf(data, size));
  if (!tenants.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(tenants.status()), tenants.status().ToString());
    return 0;
  }
  for (const auto& [name, tenant] : tenants->entries()) {
    FUZZ_CHECK(berth::WeightOf(tenants->Of(name)) > 0, name);
    FUZZ_CHECK(berth::BurstOf(tenant) > absl::ZeroDuration(), name);
  }
  FUZZ_CHECK(tenants->credentials().FindToken("token") == nullptr || !tenants->entries().empty(), "nobody's token");
  return 0;
}
