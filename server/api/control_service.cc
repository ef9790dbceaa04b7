#include "server/api/control_service.h"

#include <bit>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/metrics/load_table.h"
#include "server/request/field_checks.h"
#include "server/request/tenant_rules.h"

namespace berth {
namespace {

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

absl::Status CheckAbort(const v1::AbortRequest& request) {
  if (request.has_tenant()) {
    if (absl::Status s = CheckCacheSalt("tenant", request.tenant()); !s.ok()) return s;
  }
  if (request.all() && request.request_ids_size() > 0) return Invalid("all: request_ids must be empty");
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

// The fields of both stand in one order.
void FillStep(const StepRecord& record, v1::StepRecord* out) {
  const auto words = std::bit_cast<FlightRecorder::Words>(record);
  const google::protobuf::Descriptor& type = *v1::StepRecord::descriptor();
  for (size_t i = 0; i < words.size(); ++i) {
    out->GetReflection()->SetInt64(out, type.field(static_cast<int>(i)), words[i]);
  }
}

}  // namespace

ControlService::ControlService(Options options)
    : options_(std::move(options)), model_info_(MakeModelInfo(options_)), start_(options_.rpc.now()) {}

Rpc ControlService::NewRpc(const char* method, grpc::CallbackServerContext* context) const {
  return {options_.rpc, "berth.v1.Control", method, context};
}

grpc::ServerUnaryReactor* ControlService::GetModelInfo(grpc::CallbackServerContext* context,
                                                       const v1::GetModelInfoRequest*,
                                                       v1::GetModelInfoResponse* response) {
  Rpc rpc = NewRpc("GetModelInfo", context);
  *response = model_info_;
  return rpc.Reply();
}

grpc::ServerUnaryReactor* ControlService::GetServerInfo(grpc::CallbackServerContext* context,
                                                        const v1::GetServerInfoRequest*,
                                                        v1::GetServerInfoResponse* response) {
  Rpc rpc = NewRpc("GetServerInfo", context);
  if (rpc.identity().Has(Role::kOperator)) {
    *response = options_.server;
    response->set_uptime_seconds(absl::ToDoubleSeconds(rpc.received() - start_));
  } else {
    response->set_version(options_.server.version());
    *response->mutable_services() = options_.server.services();
  }
  response->set_draining(draining_.load(std::memory_order_relaxed));
  return rpc.Reply();
}

grpc::ServerUnaryReactor* ControlService::GetLoad(grpc::CallbackServerContext* context, const v1::GetLoadRequest*,
                                                  v1::GetLoadResponse* response) {
  Rpc rpc = NewRpc("GetLoad", context);
  FillLoad(options_.load(), response);
  response->set_draining(draining_.load(std::memory_order_relaxed));
  return rpc.Reply();
}

grpc::ServerUnaryReactor* ControlService::Abort(grpc::CallbackServerContext* context, const v1::AbortRequest* request,
                                                v1::AbortResponse* response) {
  Rpc rpc = NewRpc("Abort", context);
  const Identity identity = rpc.identity();
  const absl::Status status = AbortRequests(identity, *request, response);
  // Ending requests of one's own does not count as an operator call.
  const bool others = request->has_tenant() && !(identity.authenticated && request->tenant() == identity.tenant);
  if (others) rpc.LogOperatorCall(request->tenant(), status);
  return rpc.Reply(status);
}

absl::Status ControlService::AbortRequests(const Identity& identity, const v1::AbortRequest& request,
                                           v1::AbortResponse* response) {
  if (absl::Status s = CheckAbort(request); !s.ok()) return s;
  if (identity.authenticated && request.has_tenant() && request.tenant() != identity.tenant) {
    if (absl::Status s = RequireOperator(identity, "tenant: Abort of another tenant's requests"); !s.ok()) return s;
  }
  if (request.all()) {
    if (!identity.authenticated && !request.has_tenant()) return Invalid("all: tenant must be set");
    const std::string& tenant = request.has_tenant() ? request.tenant() : identity.tenant;
    for (std::string& id : options_.registry->CancelTenant(tenant, EndCause::kAborted)) {
      response->add_aborted(std::move(id));
    }
    return absl::OkStatus();
  }
  std::string id_space = IdSpaceOf(identity);
  if (identity.authenticated && request.has_tenant()) id_space = request.tenant();
  const std::string* const tenant = request.has_tenant() ? &request.tenant() : nullptr;
  for (const std::string& id : request.request_ids()) {
    bool found = options_.registry->Cancel(id_space, id, EndCause::kAborted, tenant);
    // Where authentication is off, calls of --gateway_listen are still those of a tenant, and so are their ids.
    if (!found && !identity.authenticated && tenant != nullptr) {
      found = options_.registry->Cancel(*tenant, id, EndCause::kAborted, tenant);
    }
    if (found) response->add_aborted(id);
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* ControlService::GetSteps(grpc::CallbackServerContext* context,
                                                   const v1::GetStepsRequest* request, v1::GetStepsResponse* response) {
  Rpc rpc = NewRpc("GetSteps", context);
  const absl::Status status = RequireOperator(rpc.identity(), "GetSteps");
  rpc.LogOperatorCall(/*tenant=*/"", status);
  if (!status.ok()) return rpc.Reply(status);
  const size_t most = request->last() == 0 ? FlightRecorder::kCapacity : request->last();
  for (const StepRecord& record : options_.engine->recorder().Latest(most)) FillStep(record, response->add_steps());
  return rpc.Reply();
}

grpc::ServerUnaryReactor* ControlService::Drain(grpc::CallbackServerContext* context, const v1::DrainRequest*,
                                                v1::DrainResponse* response) {
  Rpc rpc = NewRpc("Drain", context);
  const absl::Status status = RequireOperator(rpc.identity(), "Drain");
  rpc.LogOperatorCall(/*tenant=*/"", status);
  if (status.ok()) {
    options_.drain();
    response->set_requests(options_.registry->size());
    response->set_grace_seconds(absl::ToDoubleSeconds(options_.drain_grace));
  }
  return rpc.Reply(status);
}

template <typename Response>
void ControlService::EndOperation(Rpc rpc, grpc::ServerUnaryReactor* reactor, const std::string& tenant,
                                  const absl::StatusOr<Response>& result, Response* response) {
  if (result.ok()) *response = *result;
  rpc.LogOperatorCall(tenant, result.status());
  rpc.Finish(reactor, result.status());
}

grpc::ServerUnaryReactor* ControlService::FlushCache(grpc::CallbackServerContext* context,
                                                     const v1::FlushCacheRequest* request,
                                                     v1::FlushCacheResponse* response) {
  Rpc rpc = NewRpc("FlushCache", context);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  std::optional<std::string> tenant;
  if (request->has_tenant()) tenant = request->tenant();
  const auto end = [=, this](const absl::StatusOr<v1::FlushCacheResponse>& result) {
    EndOperation(rpc, reactor, tenant.value_or(""), result, response);
  };
  absl::Status status = RequireOperator(rpc.identity(), "FlushCache");
  if (status.ok() && tenant) status = CheckCacheSalt("tenant", *tenant);
  if (status.ok()) options_.operations->FlushCache(tenant, end);
  if (!status.ok()) end(status);
  return reactor;
}

grpc::ServerUnaryReactor* ControlService::EraseTenant(grpc::CallbackServerContext* context,
                                                      const v1::EraseTenantRequest* request,
                                                      v1::EraseTenantResponse* response) {
  Rpc rpc = NewRpc("EraseTenant", context);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const std::string tenant = request->tenant();
  const auto end = [=, this](const absl::StatusOr<v1::EraseTenantResponse>& result) {
    EndOperation(rpc, reactor, tenant, result, response);
  };
  absl::Status status = RequireOperator(rpc.identity(), "EraseTenant");
  if (status.ok() && !request->has_tenant()) status = Invalid("tenant: it must be set");
  if (status.ok()) status = CheckCacheSalt("tenant", tenant);
  if (status.ok()) options_.operations->EraseTenant(tenant, end);
  if (!status.ok()) end(status);
  return reactor;
}

}  // namespace berth
