// Every way in which a call can end, in every state that it can be in: it ends once, and gives everything back.
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <variant>
#include <vector>

#include "server/metrics/metric_families.h"
#include "tests/server/api/held_call.h"
#include "tests/server/api/test_server.h"
#include "tests/server/metrics/metrics_text.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

enum class End {
  kClientLeaves,
  kDeadline,
  kAbort,
  kDrain,      // the call continues if the engine has it
  kGraceOver,  // of a drain
  kStopString,
  kMaxTokens,
  kDeadEnd,  // of its structure
  kFailedSave,
  kFailedStep,
  kDeviceLost,
  kUnread,  // it was paused for too long
};
constexpr int kNumEnds = 12;
constexpr const char* kEndNames[kNumEnds] = {"ClientLeaves", "Deadline",   "Abort",      "Drain",
                                             "GraceOver",    "StopString", "MaxTokens",  "DeadEnd",
                                             "FailedSave",   "FailedStep", "DeviceLost", "Unread"};
constexpr int kNumStates = 12;
constexpr const char* kStateNames[kNumStates] = {"WaitsForText", "Tokenises",       "Loads",  "Compiles",
                                                 "Submits",      "SubmitsCompiled", "Queued", "Runs",
                                                 "Delivers",     "Holds",           "Saves",  "Paused"};
constexpr int kNumKinds = 7;
constexpr const char* kKindNames[kNumKinds] = {"Generate",    "GenerateSaved", "Complete", "Resume",
                                               "ResumeSaved", "Vllm",          "Beams"};

// What the client gets; or why the call cannot end so in that state.
using Outcome = std::variant<grpc::StatusCode, const char*>;

constexpr auto kOk = grpc::StatusCode::OK;
constexpr auto kCancelled = grpc::StatusCode::CANCELLED;
constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
constexpr auto kLate = grpc::StatusCode::DEADLINE_EXCEEDED;
constexpr auto kExhausted = grpc::StatusCode::RESOURCE_EXHAUSTED;
constexpr auto kInternal = grpc::StatusCode::INTERNAL;
constexpr auto kUnavailable = grpc::StatusCode::UNAVAILABLE;
constexpr auto kDataLoss = grpc::StatusCode::DATA_LOSS;
constexpr const char* kNoId = "Abort knows requests by their ids, and its id is registered later";
constexpr const char* kNoToken = "nothing is generated yet";
constexpr const char* kNoSave = "nothing of it is being saved";
constexpr const char* kNoStep = "no step has it";
constexpr const char* kStill = "a paused request generates nothing; when its client reads, it runs";
constexpr const char* kRead = "nothing waits for its client to read";

// By state, in the order of End.
const Outcome kOutcomes[kNumStates][kNumEnds] = {
    // WaitsForText
    {kCancelled, kLate, kNoId, kUnavailable, kUnavailable, kNoToken, kNoToken, kNoToken, kNoSave, kNoStep, kUnavailable,
     kRead},
    // Tokenises
    {kCancelled, kLate, kNoId, kUnavailable, kUnavailable, kNoToken, kNoToken, kNoToken, kNoSave, kNoStep, kUnavailable,
     kRead},
    // Loads
    {kCancelled, kLate, kNoId, kUnavailable, kUnavailable, kNoToken, kNoToken, kNoToken, kNoSave, kNoStep, kUnavailable,
     kRead},
    // Compiles
    {kCancelled, kLate, kOk, kUnavailable, kUnavailable, kNoToken, kNoToken, kNoToken, kNoSave, kNoStep, kUnavailable,
     kRead},
    // Submits
    {kCancelled, kLate, kOk, kUnavailable, kUnavailable, kNoToken, kNoToken, kNoToken, kNoSave, kNoStep, kUnavailable,
     kRead},
    // SubmitsCompiled
    {kCancelled, kLate, kOk, kUnavailable, kUnavailable, kNoToken, kNoToken, kNoToken, kNoSave, kNoStep, kUnavailable,
     kRead},
    // Queued
    {kCancelled, kLate, kOk, kOk, kUnavailable, kNoToken, kNoToken, kNoToken, kNoSave, kNoStep, kUnavailable, kRead},
    // Runs
    {kCancelled, kLate, kOk, kOk, kUnavailable, kOk, kOk, kInvalid, kNoSave, kInternal, kDataLoss, kRead},
    // Delivers
    {kCancelled, kLate, kOk, kOk, kUnavailable, kOk, kOk, kInvalid, kNoSave, kInternal, kDataLoss, kRead},
    // Holds
    {kCancelled, kLate, kOk, kOk, kUnavailable, kOk, kOk, kInvalid, kNoSave, kInternal, kDataLoss, kRead},
    // Saves
    {kCancelled, kLate, kOk, kOk, kUnavailable, kOk, kOk, kInvalid, kExhausted, kInternal, kDataLoss, kRead},
    // Paused
    {kCancelled, kLate, kOk, kOk, kUnavailable, kStill, kStill, kStill, kNoSave, kNoStep, kUnavailable, kExhausted},
};

// Why a call of that kind is never in that state; "": it may be.
std::string WhyNever(CallKind kind, CallState state) {
  const bool resumes = kind == CallKind::kResume || kind == CallKind::kResumeSaved;
  const bool saved_only = kind == CallKind::kGenerateSaved || kind == CallKind::kResumeSaved;
  switch (state) {
    case CallState::kWaitsForText:
    case CallState::kTokenises:
      return resumes ? "a session has its prompt's tokens" : "";
    case CallState::kLoads:
      return resumes ? "" : "only Resume reads a session";
    case CallState::kRuns:
      return saved_only ? "its tokens are held: Holds" : "";
    case CallState::kDelivers:
      return kind == CallKind::kBeams ? "it delivers nothing before its end" : "";
    case CallState::kHolds:
    case CallState::kSaves:
      return saved_only ? "" : "it does not wait for saves";
    case CallState::kPaused:
      return kind == CallKind::kComplete || kind == CallKind::kBeams
                 ? "one message at the end fits the flow control, or is an error"
                 : "";
    default:
      return "";
  }
}

// A search has no stop strings.
bool MayEnd(CallKind kind, End end) { return kind != CallKind::kBeams || end != End::kStopString; }

struct Case {
  CallKind kind;
  CallState state;
  End end;
  grpc::StatusCode code;
};

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (int kind = 0; kind < kNumKinds; ++kind) {
    for (int state = 0; state < kNumStates; ++state) {
      if (!WhyNever(static_cast<CallKind>(kind), static_cast<CallState>(state)).empty()) continue;
      for (int end = 0; end < kNumEnds; ++end) {
        const auto* code = std::get_if<grpc::StatusCode>(&kOutcomes[state][end]);
        if (code == nullptr || !MayEnd(static_cast<CallKind>(kind), static_cast<End>(end))) continue;
        cases.push_back({static_cast<CallKind>(kind), static_cast<CallState>(state), static_cast<End>(end), *code});
      }
    }
  }
  return cases;
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  return std::string(kKindNames[static_cast<int>(info.param.kind)]) + "_" +
         kStateNames[static_cast<int>(info.param.state)] + "_" + kEndNames[static_cast<int>(info.param.end)];
}

class CallEndings : public ::testing::TestWithParam<Case> {
 protected:
  // Tokens of the output. A long one ends within the steps below only if something ended the call. An end has two
  // minutes to take effect, or 16 s on a search (StepGate::AllowUntil).
  static constexpr uint32_t kLong = 9000;
  static constexpr uint32_t kLongBeams = 1000;  // the arena has to hold them all
  static constexpr uint32_t kShort = 40;
  static constexpr int64_t kLongSteps = 6000;
  static constexpr int64_t kLongBeamSteps = 900;

  // False: the deadline came before the call was in its state.
  bool Run(absl::Time deadline) {
    const Case& c = GetParam();
    const bool paused = c.state == CallState::kPaused;
    HeldCall::Options options = {
        .kind = c.kind, .state = c.state, .max_tokens = paused || !EndsByItself() ? LongTokens() : kShort};
    options.has_stop_string = c.end == End::kStopString;
    options.has_dead_end = c.end == End::kDeadEnd;
    if (c.end == End::kUnread) options.unread_timeout = absl::Milliseconds(1);
    HeldCall call(options);
    const bool reached = call.Begin(deadline);
    // What comes while the delivery holds the output waits for it.
    std::future<void> ending = std::async(std::launch::async, [&] {
      EndIt(&call, deadline);
      if (reached && EndsInItsState()) WaitUntil([&] { return call.gone(); }, "the call to end in its state");
    });
    if (c.state != CallState::kDelivers) ending.wait();
    call.Release();
    ending.get();
    StepGate& gate = call.server().gate;
    if (!paused) {
      const int64_t most = c.kind == CallKind::kBeams ? kLongBeamSteps : kLongSteps;
      EXPECT_LT(gate.AllowUntil([&] { return HasNone(&call.server()); }, most), most) << "it ran on";
    }
    gate.Open();
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), c.code) << status.error_message();
    ExpectNothingLeft(&call.server());
    return reached;
  }

  static uint32_t LongTokens() { return GetParam().kind == CallKind::kBeams ? kLongBeams : kLong; }
  static bool EndsByItself() {
    const End end = GetParam().end;
    return end == End::kDrain || end == End::kStopString || end == End::kMaxTokens || end == End::kDeadEnd;
  }
  static bool HasNone(TestServer* server) {
    return server->registry.size() == 0 && server->engine->WaitUntilIdle(absl::ZeroDuration());
  }
  // Whether the end needs nothing that the state holds up.
  static bool EndsInItsState() {
    const CallState state = GetParam().state;
    const bool on_its_way = state == CallState::kWaitsForText || state == CallState::kTokenises;
    const bool waits = on_its_way || state == CallState::kCompiles || state == CallState::kPaused;
    const End end = GetParam().end;
    return waits && (end == End::kClientLeaves || end == End::kDeadline || end == End::kGraceOver ||
                     end == End::kUnread || (end == End::kAbort && !on_its_way));
  }

  static void EndIt(HeldCall* call, absl::Time deadline) {
    TestServer& server = call->server();
    switch (GetParam().end) {
      case End::kClientLeaves: {
        const int64_t before = call->clock_reads();
        call->context().TryCancel();
        WaitUntil([&] { return call->clock_reads() > before; }, "the server to hear that its client has left");
        break;
      }
      case End::kDeadline:
        absl::SleepFor(deadline - absl::Now());
        break;
      case End::kAbort:
        Abort(call);
        break;
      case End::kDrain:
        server.engine->Drain();
        break;
      case End::kGraceOver:
        server.engine->Drain();
        server.intake->EndAll();
        break;
      case End::kFailedSave:
        call->FailSaves();
        break;
      case End::kFailedStep:
        server.step_status = absl::InternalError("the step failed");
        break;
      case End::kDeviceLost:
        if (server.engine->GetLoad().counts.num_running == 0) call->StartOther();
        server.step_status = absl::DataLossError("the device is lost");
        server.gate.Open();
        WaitUntil([&] { return !server.engine->healthy(); }, "the engine to stop");
        break;
      default:
        break;  // by its tokens, or by what it does not read
    }
  }

  static void Abort(HeldCall* call) {
    grpc::ClientContext context;
    if (GetParam().kind == CallKind::kVllm) {
      ::vllm::grpc::engine::AbortRequest request;
      request.add_request_ids(HeldCall::kId);
      ::vllm::grpc::engine::AbortResponse response;
      EXPECT_TRUE(call->vllm().Abort(&context, request, &response).ok());
      return;
    }
    v1::AbortRequest request;
    request.add_request_ids(HeldCall::kId);
    v1::AbortResponse response;
    EXPECT_TRUE(call->server().control_stub->Abort(&context, request, &response).ok());
    EXPECT_EQ(response.aborted_size(), 1);
  }

  static void ExpectNothingLeft(TestServer* server) {
    WaitUntil([&] { return server->registry.size() == 0; }, "every id to be free");
    WaitUntil(
        [&] {
          Admission::Totals held = server->admission.totals();
          held.accounts = 0;
          return held == Admission::Totals();
        },
        "every ticket to be given back");
    WaitUntil([&] { return server->texts.load().waiting + server->texts.load().running == 0; }, "the texts to end");
    WaitUntil([&] { return server->grammars->load().waiting == 0; }, "the grammars to be dropped");
    WaitUntil([&] { return IsSessionFree(server); }, "the session to be let go of");
    WaitUntil([&] { return server->registry.undelivered()->load().bytes == 0; }, "the messages to be freed");
    EXPECT_TRUE(server->engine->WaitUntilIdle(kHangLimit));
    const EngineLoad load = server->engine->GetLoad();
    EXPECT_EQ(load.counts.num_running + load.counts.num_waiting + load.counts.num_paused, 0);
    EXPECT_EQ(load.occupancy.num_leases, 0);
    for (const PoolOccupancy& pool : load.occupancy.pools) EXPECT_EQ(pool.live_units, 0);
    EXPECT_EQ(load.occupancy.TotalBytes(), load.occupancy.arena_bytes);
    WaitUntil(
        [&] { return Sum(server, "berth_requests_finished_total") == Sum(server, "berth_requests_accepted_total"); },
        "each accepted request to have ended once");
  }
  static bool IsSessionFree(TestServer* server) {
    v1::SessionFile file;
    file.mutable_request()->set_session_id(HeldCall::kSession);
    const RequestKey key = server->registry.NewKey();
    if (!server->sessions->Begin(key, file).ok()) return false;
    server->sessions->Withdraw(key);
    return true;
  }
  static double Sum(TestServer* server, const std::string& counter) {
    MetricFamilies families("m", /*vllm_aliases=*/false);
    server->metrics.Collect(&families);
    double sum = 0;
    for (const auto& [series, value] : ReadSeries(ToText(families.Take()))) {
      if (series.starts_with(counter)) sum += value;
    }
    return sum;
  }
};

TEST_P(CallEndings, GiveEverythingBack) {
  if (GetParam().end != End::kDeadline) {
    Run(absl::InfiniteFuture());
    return;
  }
  TryLonger([this](absl::Duration time) { return Run(absl::Now() + time); }, "the call to be in its state in time");
}

INSTANTIATE_TEST_SUITE_P(All, CallEndings, ::testing::ValuesIn(AllCases()), NameOf);

}  // namespace
}  // namespace berth
