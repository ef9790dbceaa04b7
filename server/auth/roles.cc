#include "server/auth/roles.h"

#include <utility>
#include <vector>

#include "absl/strings/str_join.h"

namespace berth {
namespace {

constexpr std::pair<absl::string_view, Role> kRoles[] = {
    {"user", Role::kUser},       {"operator", Role::kOperator}, {"metrics", Role::kMetrics},
    {"gateway", Role::kGateway}, {"peer", Role::kPeer},
};

template <typename... Roles>
constexpr uint32_t AnyOf(Roles... roles) {
  return (static_cast<uint32_t>(roles) | ...);
}

// Who makes requests.
constexpr uint32_t kRequesters = AnyOf(Role::kUser, Role::kGateway);
// Who acts on requests. An operator acts on those of every tenant; the services see to the rest.
constexpr uint32_t kRequestersAndOperators = kRequesters | AnyOf(Role::kOperator);
// Who watches the server as a whole.
constexpr uint32_t kWatchers = AnyOf(Role::kOperator, Role::kMetrics, Role::kGateway, Role::kPeer);
constexpr uint32_t kEveryRole = kRequesters | kWatchers;

struct MethodRoles {
  absl::string_view method;
  uint32_t roles;
};

constexpr MethodRoles kMethods[] = {
    {"/berth.v1.Inference/Generate", kRequesters},
    {"/berth.v1.Inference/Complete", kRequesters},
    {"/berth.v1.Inference/Embed", kRequesters},
    {"/berth.v1.Inference/Tokenize", kRequesters},
    {"/berth.v1.Inference/Detokenize", kRequesters},
    {"/berth.v1.Sessions/Save", kRequesters},
    {"/berth.v1.Sessions/Resume", kRequesters},
    {"/berth.v1.Sessions/Delete", kRequestersAndOperators},
    {"/berth.v1.Sessions/List", kRequestersAndOperators},
    {"/berth.v1.Control/GetModelInfo", kEveryRole},
    {"/berth.v1.Control/GetServerInfo", kEveryRole},
    {"/berth.v1.Control/GetLoad", kWatchers},
    {"/berth.v1.Control/Abort", kRequestersAndOperators},
    {"/berth.v1.Control/GetSteps", AnyOf(Role::kOperator)},
    {"/berth.v1.Control/Drain", AnyOf(Role::kOperator)},
    {"/berth.v1.Control/FlushCache", AnyOf(Role::kOperator)},
    {"/berth.v1.Control/EraseTenant", AnyOf(Role::kOperator)},
    {"/vllm.grpc.engine.VllmEngine/Generate", kRequesters},
    {"/vllm.grpc.engine.VllmEngine/Embed", kRequesters},
    {"/vllm.grpc.engine.VllmEngine/GetTokenizer", kRequesters},
    {"/vllm.grpc.engine.VllmEngine/HealthCheck", kEveryRole},
    {"/vllm.grpc.engine.VllmEngine/GetModelInfo", kEveryRole},
    {"/vllm.grpc.engine.VllmEngine/GetServerInfo", kEveryRole},
    {"/vllm.grpc.engine.VllmEngine/GetLoads", kWatchers},
    {"/vllm.grpc.engine.VllmEngine/Abort", kRequestersAndOperators},
    {"/vllm.grpc.engine.VllmEngine/FlushCache", AnyOf(Role::kOperator)},
    {"/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", AnyOf(Role::kGateway)},
    {"/grpc.health.v1.Health/Check", kEveryRole},
    {"/grpc.health.v1.Health/Watch", kEveryRole},
    {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", kRequestersAndOperators},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kRequestersAndOperators},
};

}  // namespace

std::optional<Role> ParseRole(absl::string_view name) {
  for (const auto& [role_name, role] : kRoles) {
    if (role_name == name) return role;
  }
  return std::nullopt;
}

std::string RoleNames(uint32_t roles) {
  std::vector<absl::string_view> names;
  for (const auto& [name, role] : kRoles) {
    if ((roles & static_cast<uint32_t>(role)) != 0) names.push_back(name);
  }
  return names.empty() ? "no role" : absl::StrJoin(names, ", ");
}

uint32_t RolesOfMethod(absl::string_view method) {
  for (const MethodRoles& row : kMethods) {
    if (row.method == method) return row.roles;
  }
  return 0;
}

}  // namespace berth
