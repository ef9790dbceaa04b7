#include "client/status_view.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"

namespace berth::cli {
namespace {

constexpr int kBarWidth = 40;

std::string DrawModel(const StatusView& view) {
  const v1::GetModelInfoResponse& model = view.model;
  std::string text = absl::StrFormat("model    %s (%s): %d layers, %.1f M parameters, %s of %s weights on %s\n",
                                     model.name(), model.model_type(), model.num_layers(), model.num_parameters() / 1e6,
                                     FormatBytes(model.weight_bytes()), model.dtype(), model.device());
  const v1::Limits& limits = model.limits();
  absl::StrAppendFormat(&text, "limits   %d tokens a sequence, %d running, %d queued, %d tokens a step\n",
                        limits.max_sequence_tokens(), limits.max_running(), limits.max_queue(),
                        limits.max_step_tokens());
  for (const v1::CacheGroup& group : model.cache_groups()) {
    absl::StrAppendFormat(&text, "cache    %-10s %d layers: ", group.kind(), group.layers_size());
    if (group.bytes_per_sequence() > 0) {
      absl::StrAppend(&text, FormatBytes(group.bytes_per_sequence()), " a sequence\n");
    } else {
      absl::StrAppend(&text, FormatBytes(group.bytes_per_token()), " a token (", group.dtype(), "), ",
                      group.block_tokens(), " tokens a block");
      if (group.window() > 0) absl::StrAppend(&text, ", window ", group.window());
      if (group.sink_tokens() > 0) absl::StrAppend(&text, " and the first ", group.sink_tokens());
      if (group.chunk() > 0) absl::StrAppend(&text, ", chunks of ", group.chunk());
      absl::StrAppend(&text, "\n");
    }
  }
  return text;
}

// Fields that DrawLoad writes out in words.
constexpr absl::string_view kWordedFields[] = {"running", "waiting", "waiting_tokens", "prompt_tokens",
                                               "generation_tokens"};

std::string DrawLoad(const StatusView& view) {
  const v1::GetLoadResponse& load = view.load;
  std::string text = absl::StrFormat("load     %d running, %d waiting (%d tokens)%s\n", load.running(), load.waiting(),
                                     load.waiting_tokens(), load.draining() ? ", DRAINING" : "");
  absl::StrAppendFormat(&text, "tokens   %d prompt, %d generated", load.prompt_tokens(), load.generation_tokens());
  if (view.tokens_per_second >= 0) absl::StrAppendFormat(&text, ", %.1f generated/s", view.tokens_per_second);
  return absl::StrCat(text, "\n");
}

// The tenants with the largest shares, one a line.
std::string DrawTenants(const v1::GetLoadResponse& load) {
  std::string text;
  for (const v1::TenantShare& tenant : load.tenant_shares()) {
    absl::StrAppendFormat(&text, "%-8s %-22s %5.1f %% of the last work", text.empty() ? "tenants" : "",
                          tenant.tenant().empty() ? "(none)" : tenant.tenant(), 100 * tenant.share());
    if (tenant.wait_seconds() > 0) {
      absl::StrAppendFormat(&text, ", waits for %.1f s, %.0f tokens behind", tenant.wait_seconds(),
                            tenant.deficit_tokens());
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

// All other numbers of the load that are not 0, one a line: the name of the field, and the value. So a field that is
// added to control.proto shows up without a line here.
std::string DrawNumbers(const v1::GetLoadResponse& load) {
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  load.GetReflection()->ListFields(load, &fields);  // those that are set, by number
  std::sort(fields.begin(), fields.end(), [](const auto* a, const auto* b) { return a->index() < b->index(); });
  std::string text;
  for (const google::protobuf::FieldDescriptor* field : fields) {
    absl::string_view name = field->name();
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_INT64) continue;
    if (absl::c_linear_search(kWordedFields, name)) continue;
    const int64_t value = load.GetReflection()->GetInt64(load, field);
    const bool bytes = absl::ConsumeSuffix(&name, "_bytes");
    absl::StrAppendFormat(&text, "%-8s %-22s %12s\n", text.empty() ? "numbers" : "",
                          absl::StrReplaceAll(name, {{"_", " "}}), bytes ? FormatBytes(value) : absl::StrCat(value));
  }
  return text;
}

std::string DrawCache(const v1::CacheOccupancy& cache) {
  std::string text = absl::StrFormat("arena    %s, %s free, %d leases, room for one sequence of %d tokens\n",
                                     FormatBytes(cache.arena_bytes()), FormatBytes(cache.free_bytes()),
                                     cache.num_leases(), cache.largest_admissible_tokens());
  for (const v1::PoolOccupancy& pool : cache.pools()) {
    const int64_t held = pool.live_bytes() + pool.shared_bytes();
    const int64_t kept = held + pool.cached_bytes();
    absl::StrAppendFormat(&text, "%-10s [%s] %5.1f %%  %s held, %s of it shared, %s cached, %d %s\n", pool.kind(),
                          DrawBar(held, kept, cache.arena_bytes(), kBarWidth),
                          cache.arena_bytes() > 0 ? 100.0 * held / cache.arena_bytes() : 0.0, FormatBytes(held),
                          FormatBytes(pool.shared_bytes()), FormatBytes(pool.cached_bytes()), pool.live_tokens(),
                          pool.kind() == "recurrent" || pool.kind() == "checkpoint" ? "sequences" : "tokens");
  }
  if (cache.pools_size() > 0)
    absl::StrAppend(&text, "           # held by sequences   - cached prefixes   . other bytes\n");
  return text;
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string DrawBar(int64_t live, int64_t held, int64_t total, int width) {
  const auto cells = [&](int64_t bytes) {
    if (bytes <= 0 || total <= 0) return 0;
    const double exact = static_cast<double>(bytes) / static_cast<double>(total) * width;
    return std::clamp(static_cast<int>(std::lround(exact)), 1, width);
  };
  const int live_cells = cells(live);
  const int held_cells = held > live ? std::max(cells(held), std::min(live_cells + 1, width)) : live_cells;
  return absl::StrCat(std::string(live_cells, '#'), std::string(held_cells - live_cells, '-'),
                      std::string(width - held_cells, '.'));
}

std::string DrawStatus(const StatusView& view) {
  const v1::GetServerInfoResponse& info = view.info;
  return absl::StrCat(
      absl::StrFormat("server   %s, version %s, up %s, %d threads (%s), LibTorch %s\n", view.server, info.version(),
                      absl::FormatDuration(absl::Seconds(std::floor(info.uptime_seconds()))), info.num_threads(),
                      info.cpu_capability(), info.libtorch_version()),
      absl::StrFormat("health   live: %s, ready: %s\n", view.live, view.ready), DrawModel(view), DrawLoad(view),
      DrawTenants(view.load), DrawNumbers(view.load), DrawCache(view.load.cache()));
}

}  // namespace berth::cli
