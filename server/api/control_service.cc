#include "server/api/control_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/api/field_checks.h"
#include "server/api/grpc_status.h"

namespace berth {
namespace {

constexpr char kService[] = "berth.v1.Control";
constexpr int kMaxAbortIds = 1024;

v1::CacheGroup ToProto(const CacheGroup& group, int64_t block_tokens) {
  v1::CacheGroup out;
  out.set_kind(std::string(CacheKindName(group.kind)));
  out.mutable_layers()->Add(group.layers.begin(), group.layers.end());
  out.set_unit_bytes(group.unit_bytes);
  if (group.kind == CacheKind::kRecurrent) {
    out.set_bytes_per_sequence(group.unit_bytes);
  } else if (group.kind == CacheKind::kCheckpoint) {
    out.set_dtype(std::string(DTypeName(DType::kInt8)));
  } else {
    out.set_bytes_per_token(group.unit_bytes / block_tokens);
    out.set_window(group.kv.window);
    out.set_sink_tokens(group.kv.sink_tokens);
    out.set_chunk(group.kv.chunk);
    out.set_dtype(std::string(DTypeName(group.kv.dtype)));
    out.set_block_tokens(block_tokens);
  }
  return out;
}

v1::GetModelInfoResponse MakeModelInfo(const ControlService::Options& options) {
  const ModelInfo& model = options.model;
  v1::GetModelInfoResponse out;
  out.set_name(model.name);
  out.set_model_type(model.model_type);
  out.set_dtype(std::string(DTypeName(model.dtype)));
  out.set_device(model.device);
  out.set_vocab_size(model.vocab_size);
  out.set_num_layers(model.num_layers);
  out.set_hidden_size(model.hidden_size);
  out.set_num_parameters(model.num_parameters);
  out.set_weight_bytes(model.weight_bytes);
  out.mutable_eos_token_ids()->Add(model.eos_token_ids.begin(), model.eos_token_ids.end());
  out.set_has_chat_template(options.has_chat_template);
  for (const CacheGroup& group : options.plan.groups)
    *out.add_cache_groups() = ToProto(group, options.plan.block_tokens);
  *out.mutable_limits() = options.limits;
  return out;
}

void Fill(const Occupancy& occupancy, v1::CacheOccupancy* out) {
  out->set_arena_bytes(occupancy.arena_bytes);
  out->set_free_bytes(occupancy.unassigned_free_bytes);
  out->set_overhead_bytes(occupancy.unassigned_overhead_bytes);
  out->set_largest_hole_bytes(occupancy.largest_hole_bytes);
  out->set_num_leases(occupancy.num_leases);
  out->set_largest_admissible_tokens(occupancy.largest_admissible_tokens);
  for (const PoolOccupancy& pool : occupancy.pools) {
    v1::PoolOccupancy* to = out->add_pools();
    to->set_kind(std::string(CacheKindName(pool.kind)));
    to->set_unit_bytes(pool.unit_bytes);
    to->set_live_units(pool.live_units);
    to->set_shared_units(pool.shared_units);
    to->set_cached_units(pool.cached_units);
    to->set_free_units(pool.free_units);
    to->set_live_bytes(pool.bytes(pool.live_units));
    to->set_shared_bytes(pool.bytes(pool.shared_units));
    to->set_cached_bytes(pool.bytes(pool.cached_units));
    to->set_free_bytes(pool.bytes(pool.free_units));
    to->set_live_tokens(pool.live_tokens);
    to->set_cached_tokens(pool.cached_tokens);
    to->set_evicted_units(pool.evicted_units);
    to->set_compacted_bytes(pool.compacted_bytes);
  }
}

absl::Status CheckAbort(const v1::AbortRequest& request) {
  if (request.request_ids_size() > kMaxAbortIds) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_ids: ", request.request_ids_size(), " entries are over the limit of ", kMaxAbortIds));
  }
  for (int i = 0; i < request.request_ids_size(); ++i) {
    absl::Status s = CheckRequestId(absl::StrCat("request_ids[", i, "]"), request.request_ids(i));
    if (!s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace

ControlService::ControlService(Options options)
    : options_(std::move(options)), model_info_(MakeModelInfo(options_)), start_(options_.now()) {}

grpc::ServerUnaryReactor* ControlService::GetModelInfo(grpc::CallbackServerContext* context,
                                                       const v1::GetModelInfoRequest*,
                                                       v1::GetModelInfoResponse* response) {
  const absl::Time start = options_.now();
  *response = model_info_;
  return Reply(context, "GetModelInfo", start);
}

grpc::ServerUnaryReactor* ControlService::GetServerInfo(grpc::CallbackServerContext* context,
                                                        const v1::GetServerInfoRequest*,
                                                        v1::GetServerInfoResponse* response) {
  const absl::Time start = options_.now();
  *response = options_.server;
  response->set_uptime_seconds(absl::ToDoubleSeconds(start - start_));
  response->set_draining(draining_.load(std::memory_order_relaxed));
  return Reply(context, "GetServerInfo", start);
}

grpc::ServerUnaryReactor* ControlService::GetLoad(grpc::CallbackServerContext* context, const v1::GetLoadRequest*,
                                                  v1::GetLoadResponse* response) {
  const absl::Time start = options_.now();
  const EngineLoad load = options_.engine->GetLoad();
  response->set_running(load.counts.num_running);
  response->set_waiting(load.counts.num_waiting);
  response->set_waiting_tokens(load.counts.waiting_tokens);
  response->set_preemptions(load.counts.num_preemptions);
  response->set_suspensions(load.counts.num_suspensions);
  response->set_host_tier_bytes(load.host_tier.sequence_bytes);
  response->set_host_tier_limit_bytes(load.host_tier.limit_bytes);
  response->set_host_tier_prefix_bytes(load.host_tier.prefix_bytes);
  response->set_disk_tier_bytes(load.prefix_tier.disk_bytes);
  response->set_disk_tier_limit_bytes(load.disk_tier_limit_bytes);
  response->set_tier_hits(load.prefix_tier.num_hits);
  response->set_tier_disk_reads(load.prefix_tier.num_disk_reads);
  response->set_tier_restored_tokens(load.prefix_tier.restored_tokens);
  response->set_prompt_tokens(load.counts.prompt_tokens);
  response->set_prefix_queried_tokens(load.counts.prefix_queried_tokens);
  response->set_prefix_hit_tokens(load.counts.prefix_hit_tokens);
  response->set_prefix_replayed_tokens(load.counts.prefix_replayed_tokens);
  response->set_draft_tokens(load.counts.draft_tokens);
  response->set_accepted_draft_tokens(load.counts.accepted_draft_tokens);
  response->set_generation_tokens(load.counts.generation_tokens);
  response->set_draining(draining_.load(std::memory_order_relaxed));
  Fill(load.occupancy, response->mutable_cache());
  return Reply(context, "GetLoad", start);
}

grpc::ServerUnaryReactor* ControlService::Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                                v1::AbortResponse* response) {
  const absl::Time start = options_.now();
  absl::Status status = CheckAbort(*request);
  if (status.ok()) {
    for (const std::string& id : request->request_ids()) {
      if (options_.registry->Cancel(id, EndCause::kAborted)) response->add_aborted(id);
    }
  }
  return Reply(context, "Abort", start, status);
}

grpc::ServerUnaryReactor* ControlService::Reply(grpc::CallbackServerContext* context, const char* method,
                                                absl::Time start, const absl::Status& status) {
  if (options_.metrics != nullptr) {
    options_.metrics->OnRpc(kService, method, ToGrpcStatus(status).error_code(), options_.now() - start);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace berth
