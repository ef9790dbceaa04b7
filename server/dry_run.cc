#include "server/dry_run.h"

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "flags/units.h"
#include "models/loader.h"
#include "server/capacity.h"
#include "server/device.h"

namespace berth {

absl::Status DryRun(Config config, std::ostream& out) {
  if (absl::Status s = SetUpDevice(&config).status(); !s.ok()) return s;
  const absl::StatusOr<std::unique_ptr<LoadedModel>> model = LoadedModel::Load(config.model);
  if (!model.ok()) return model.status();
  const ModelInfo& info = (*model)->info();
  const CachePlan& plan = (*model)->cache_plan();
  SetEncoderDefaults(plan, info, &config);
  out << absl::StrCat("model ", info.name, ": ", info.model_type, ", ", info.num_layers, " layers, ",
                      info.num_parameters, " parameters for ", DTypeName(info.dtype), " on ", info.device, "\n",
                      "weights: ", FormatByteSize(info.weight_bytes), " (", info.weight_bytes, " bytes)\n");

  const Scheduler::Options& scheduler = config.engine.scheduler;
  const int64_t max_tokens = MaxSequenceTokens(scheduler, info);
  const absl::StatusOr<int64_t> arena_bytes = SizeArena(config, **model, max_tokens);
  if (!arena_bytes.ok()) return arena_bytes.status();
  const int64_t accepted = LongestSequenceIn(plan, *arena_bytes, scheduler, max_tokens);
  for (const std::string& line : DescribeCache(plan, *arena_bytes, accepted, scheduler)) out << line << "\n";
  return absl::OkStatus();
}

}  // namespace berth
