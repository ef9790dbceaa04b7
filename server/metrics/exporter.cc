#include "server/metrics/exporter.h"

#include <CivetServer.h>
#include <netdb.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/metrics/load_metrics.h"
#include "server/metrics/metric_families.h"
#include "server/metrics/process_metrics.h"

namespace berth {
namespace {

using Type = MetricFamilies::Type;

// A client that sends its request slowly holds a thread until the timeout.
constexpr char kNumThreads[] = "32";
constexpr char kTimeoutMs[] = "2000";

constexpr char kUnauthorized[] = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\nContent-Length: 0\r\n\r\n";

std::string Gzip(const std::string& text) {
  constexpr int kGzip = 15 + 16;  // zlib's window bits, with gzip's header
  z_stream stream = {};
  deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzip, /*memLevel=*/8, Z_DEFAULT_STRATEGY);
  std::string zipped(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(zipped.data());
  stream.avail_out = static_cast<uInt>(zipped.size());
  deflate(&stream, Z_FINISH);
  zipped.resize(stream.total_out);
  deflateEnd(&stream);
  return zipped;
}

// Connects and hangs up.
void Poke(const Address& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found) != 0) return;
  if (const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); fd >= 0) {
    [[maybe_unused]] const int refused = connect(fd, found->ai_addr, found->ai_addrlen);
    close(fd);
  }
  freeaddrinfo(found);
}

}  // namespace

std::vector<prometheus::MetricFamily> MetricsCollector::Collect() const {
  MetricFamilies families(options_.metrics->options().model_name, options_.metrics->options().vllm_aliases);
  AddTo(&families);
  return families.Take();
}

void MetricsCollector::AddTo(MetricFamilies* families) const {
  options_.metrics->Collect(families);
  CollectLoad(options_.load(), options_.plan, families);
  families->StartSection("Build and model");
  families->Start(Type::kGauge, "berth_build_info", "Versions and instruction set of the server; always 1");
  families->Add(1, {{"version", options_.version},
                    {"libtorch", options_.libtorch_version},
                    {"cpu_capability", options_.cpu_capability}});
  families->Start(Type::kGauge, "berth_model_info", "The served model; always 1");
  families->Add(1, {{"model_type", options_.model.model_type},
                    {"dtype", std::string(DTypeName(options_.model.dtype))},
                    {"device", options_.model.device},
                    {"parameters", absl::StrCat(options_.model.num_parameters)}});
  CollectProcess(families);
}

// Answers GET /metrics.
class Exporter::Handler final : public CivetHandler {
 public:
  Handler(MetricsCollector::Options options, Admit admit) : collector_(std::move(options)), admit_(std::move(admit)) {}

  bool handleGet(CivetServer* /*server*/, mg_connection* connection) override {
    const char* const authorization = mg_get_header(connection, "Authorization");
    if (admit_ && !admit_(authorization == nullptr ? std::nullopt : std::optional<absl::string_view>(authorization))) {
      mg_printf(connection, "%s", kUnauthorized);
      return true;
    }
    std::string body = prometheus::TextSerializer().Serialize(collector_.Collect());
    const char* const encodings = mg_get_header(connection, "Accept-Encoding");
    const bool zip = encodings != nullptr && absl::StrContains(encodings, "gzip");
    if (zip) body = Gzip(body);
    mg_printf(connection, "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n%s",
              zip ? "Content-Encoding: gzip\r\n" : "");
    mg_printf(connection, "Content-Length: %zu\r\n\r\n", body.size());
    mg_write(connection, body.data(), body.size());
    return true;
  }

 private:
  const MetricsCollector collector_;
  const Admit admit_;
};

Exporter::Exporter(Address address) : address_(std::move(address)) {}

absl::StatusOr<std::unique_ptr<Exporter>> Exporter::Start(const Address& address, MetricsCollector::Options options,
                                                          Admit admit) {
  auto exporter = absl::WrapUnique(new Exporter(address));
  exporter->handler_ = std::make_unique<Handler>(std::move(options), std::move(admit));
  try {
    exporter->server_ = std::make_unique<CivetServer>(std::vector<std::string>{
        "listening_ports", address.ToString(), "num_threads", kNumThreads, "request_timeout_ms", kTimeoutMs});
  } catch (const std::exception&) {  // its message names no cause
    return absl::UnavailableError(absl::StrCat("cannot listen on ", address.ToString(),
                                               ": the port is in use, or this machine does not have the address"));
  }
  exporter->server_->addHandler("/metrics", exporter->handler_.get());
  exporter->address_.port = exporter->server_->getListeningPorts().front();
  return exporter;
}

// Civetweb notices a stop when a client connects, or else after up to two seconds. So connect to it until it stops.
Exporter::~Exporter() {
  if (server_ == nullptr) return;
  std::atomic<bool> stopped{false};
  std::thread poker([this, &stopped] {
    while (!stopped.load()) {
      Poke(address_);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  server_.reset();
  stopped.store(true);
  poker.join();
}

}  // namespace berth
