#include "server/auth/server_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace berth {
namespace {

absl::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

void AddProperties(const grpc_auth_context* context, const char* name, std::vector<absl::string_view>* values) {
  grpc_auth_property_iterator at = grpc_auth_context_find_properties_by_name(context, name);
  while (const grpc_auth_property* property = grpc_auth_property_iterator_next(&at)) {
    values->emplace_back(property->value, property->value_length);
  }
}

// One listener's processor. gRPC owns it.
struct Processor {
  const char* flag = "";                         // that names the listener
  const Authenticator* authenticator = nullptr;  // null: health alone
  Audit* audit = nullptr;
  bool gateway_listener = false;
  bool in_clear = false;
  // With TLS.
  const CertificateFiles* files = nullptr;
  std::shared_ptr<const CertificateFiles::Reading> reading;  // that gRPC has

  grpc::Status Admit(absl::string_view method, const ShownCredentials& shown) const;
};

grpc::Status Processor::Admit(absl::string_view method, const ShownCredentials& shown) const {
  if (authenticator == nullptr) {
    const bool health = absl::StartsWith(method, "/grpc.health.v1.Health/");
    return health ? grpc::Status::OK : grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
  }
  Identity caller;
  grpc::Status status = authenticator->Admit(method, shown, &caller);
  const grpc::StatusCode code = status.error_code();
  if (code == grpc::StatusCode::UNAUTHENTICATED || code == grpc::StatusCode::PERMISSION_DENIED) {
    audit->OnRefused({.peer = flag, .method = method, .credential = caller.credential, .tenant = caller.tenant},
                     absl::Status(static_cast<absl::StatusCode>(code), status.error_message()));
  }
  return status;
}

void Process(void* state, grpc_auth_context* context, const grpc_metadata* metadata, size_t num_metadata,
             grpc_process_auth_metadata_done_cb done, void* user_data) {
  const auto* const processor = static_cast<const Processor*>(state);
  absl::string_view method;
  ShownCredentials shown = {.gateway_listener = processor->gateway_listener, .in_clear = processor->in_clear};
  for (size_t i = 0; i < num_metadata; ++i) {
    const absl::string_view key = View(metadata[i].key);
    const absl::string_view value = View(metadata[i].value);
    if (key == ":path") method = value;
    if (key == "authorization") shown.authorizations.push_back(value);
    if (key == "berth-tenant") shown.tenants.push_back(value);
  }
  AddProperties(context, GRPC_X509_CN_PROPERTY_NAME, &shown.common_names);
  AddProperties(context, GRPC_X509_SAN_PROPERTY_NAME, &shown.sans);
  const grpc::Status status = processor->Admit(method, shown);
  const std::string message = status.error_message();
  done(user_data, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.error_code()),
       status.ok() ? nullptr : message.c_str());
}

// gRPC calls it for each connection. gRPC keeps the former pair if it cannot use the new one.
grpc_ssl_certificate_config_reload_status FetchCertificates(void* state, grpc_ssl_server_certificate_config** config) {
  auto* const processor = static_cast<Processor*>(state);
  std::shared_ptr<const CertificateFiles::Reading> current = processor->files->current();
  if (current == processor->reading) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  const grpc_ssl_pem_key_cert_pair pair = {.private_key = current->key.c_str(), .cert_chain = current->cert.c_str()};
  // gRPC asserts that there are CAs. They are not used where no client is asked for a certificate.
  const std::string& client_ca = current->client_ca.empty() ? current->cert : current->client_ca;
  *config = grpc_ssl_server_certificate_config_create(client_ca.c_str(), &pair, 1);
  processor->reading = std::move(current);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

class ListenerCredentials final : public grpc::ServerCredentials {
 public:
  using Make = std::function<grpc_server_credentials*(Processor*)>;

  ListenerCredentials(Processor processor, Make make) : processor_(std::move(processor)), make_(std::move(make)) {}

  // The listener's own processor is the only one.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    auto processor = std::make_unique<Processor>(processor_);
    grpc_server_credentials* const credentials = make_(processor.get());
    if (credentials == nullptr) return 0;
    grpc_server_credentials_set_auth_metadata_processor(
        credentials, {.process = &Process,
                      .destroy = [](void* state) { delete static_cast<Processor*>(state); },
                      .state = processor.release()});
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  const Processor processor_;
  const Make make_;
};

grpc_server_credentials* MakeTls(Processor* processor, grpc_ssl_client_certificate_request_type request) {
  return grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(request, &FetchCertificates, processor));
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> PlaintextCredentials(const Authenticator* authenticator, Audit* audit,
                                                              bool local) {
  return std::make_shared<ListenerCredentials>(
      Processor{.flag = "--listen", .authenticator = authenticator, .audit = audit, .in_clear = !local},
      [](Processor*) { return grpc_insecure_server_credentials_create(); });
}

std::shared_ptr<grpc::ServerCredentials> TlsCredentials(const Authenticator* authenticator, Audit* audit,
                                                        const CertificateFiles* files, bool certificate_required) {
  grpc_ssl_client_certificate_request_type request = GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
  if (files->has_client_ca()) {
    request = certificate_required ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                   : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  return std::make_shared<ListenerCredentials>(
      Processor{.flag = "--listen", .authenticator = authenticator, .audit = audit, .files = files},
      [request](Processor* processor) { return MakeTls(processor, request); });
}

std::shared_ptr<grpc::ServerCredentials> GatewayCredentials(const Authenticator* authenticator, Audit* audit,
                                                            const Address& address) {
  const grpc_local_connect_type type = address.IsUnix() ? UDS : LOCAL_TCP;
  return std::make_shared<ListenerCredentials>(
      Processor{.flag = "--gateway_listen", .authenticator = authenticator, .audit = audit, .gateway_listener = true},
      [type](Processor*) { return grpc_local_server_credentials_create(type); });
}

std::shared_ptr<grpc::ServerCredentials> HealthCredentials() {
  return std::make_shared<ListenerCredentials>(Processor{.flag = "--health_listen"},
                                               [](Processor*) { return grpc_insecure_server_credentials_create(); });
}

}  // namespace berth
