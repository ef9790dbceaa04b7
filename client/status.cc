#include "client/status.h"

#include <grpcpp/client_context.h>

#include <chrono>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "base/mutex.h"
#include "berth/v1/control.grpc.pb.h"
#include "client/command.h"
#include "client/connection.h"
#include "client/health.h"
#include "client/proto_json.h"
#include "client/status_view.h"

namespace berth::cli {
namespace {

constexpr char kIntro[] = R"(berth-cli status [flags]

Shows the server's health, model, cache groups and load, and how much of the arena each kind of
cache holds. --watch repeats this every second until Ctrl-C. With --json: prints one JSON object each
time, with the responses of berth/v1/control.proto under "model", "server" and "load".
)";

constexpr absl::Duration kPeriod = absl::Seconds(1);
constexpr absl::Duration kCallTimeout = absl::Seconds(10);

struct StatusOptions {
  ConnectionOptions connection;
  bool watch = false;
  bool json = false;

  void AddTo(FlagSet* flags) {
    flags->AddGroup("Output");
    flags->Add("watch", &watch, "", "Repeat every second until Ctrl-C.");
    flags->Add("json", &json, "", "Print one JSON object each time.");
    connection.AddTo(flags);
  }
};

// Reads the state of one server, any number of times.
class StatusReader {
 public:
  StatusReader(std::string server, std::shared_ptr<grpc::Channel> channel)
      : server_(std::move(server)), channel_(std::move(channel)), stub_(v1::Control::NewStub(channel_)) {}

  grpc::Status Read(StatusView* view) {
    view->server = server_;
    grpc::Status status = Call(&v1::Control::Stub::GetModelInfo, v1::GetModelInfoRequest(), &view->model);
    if (status.ok()) status = Call(&v1::Control::Stub::GetServerInfo, v1::GetServerInfoRequest(), &view->info);
    if (status.ok()) status = Call(&v1::Control::Stub::GetLoad, v1::GetLoadRequest(), &view->load);
    if (!status.ok()) return status;
    view->live = CheckHealth(channel_, "", kCallTimeout);
    view->ready = CheckHealth(channel_, "readiness", kCallTimeout);
    const auto now = std::chrono::steady_clock::now();
    if (last_look_) {
      const double seconds = absl::ToDoubleSeconds(absl::FromChrono(now - *last_look_));
      view->tokens_per_second = (view->load.generation_tokens() - last_tokens_) / seconds;
    }
    last_look_ = now;
    last_tokens_ = view->load.generation_tokens();
    return grpc::Status::OK;
  }

 private:
  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(kCallTimeout));
    return (stub_.get()->*method)(&context, request, response);
  }

  std::string server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Control::Stub> stub_;
  std::optional<std::chrono::steady_clock::time_point> last_look_;
  int64_t last_tokens_ = 0;
};

std::string ViewToJson(const StatusView& view) {
  const nlohmann::ordered_json json = {{"address", view.server},
                                       {"health", {{"live", view.live}, {"ready", view.ready}}},
                                       {"model", ToJson(view.model)},
                                       {"server", ToJson(view.info)},
                                       {"load", ToJson(view.load)}};
  return json.dump() + "\n";
}

void PrintView(const StatusOptions& options, const StatusView& view, Environment& environment) {
  if (options.json) {
    environment.out << ViewToJson(view);
  } else {
    const bool redraw = options.watch && environment.out_is_terminal;
    environment.out << (redraw ? "\x1b[H\x1b[2J" : "") << DrawStatus(view) << (options.watch && !redraw ? "\n" : "");
  }
  environment.out.flush();
}

// A wait that Ctrl-C ends.
class Pause {
 public:
  // Waits for `period` or for End. True: End was called.
  bool Wait(absl::Duration period) {
    const absl::Time end = absl::Now() + period;
    MutexLock lock(&mutex_);
    while (!ended_ && absl::Now() < end) condition_.WaitFor(&mutex_, end - absl::Now());
    return ended_;
  }
  void End() {
    MutexLock lock(&mutex_);
    ended_ = true;
    condition_.SignalAll();
  }

 private:
  Mutex mutex_;
  CondVar condition_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

int RunStatus(absl::Span<const std::string> args, Environment& environment) {
  StatusOptions options;
  FlagSet flags;
  options.AddTo(&flags);
  const CommandLine command_line = {.command = "status", .intro = kIntro};
  if (const auto code = ParseArguments(command_line, flags, args, environment, nullptr)) return *code;

  Pause pause;
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Connect(options.connection);
  if (!channel.ok()) return Fail("status", channel.status().message(), environment, kExitUsage);
  StatusReader reader(options.connection.server, *std::move(channel));
  std::optional<Interrupt::Scope> scope;
  if (options.watch) scope.emplace(&environment.interrupt, [&pause] { pause.End(); });
  do {
    StatusView view;
    const grpc::Status status = reader.Read(&view);
    if (!status.ok()) return Fail("status", DescribeError(options.connection.server, status), environment);
    PrintView(options, view, environment);
  } while (options.watch && !pause.Wait(kPeriod));
  return kExitOk;
}

}  // namespace berth::cli
