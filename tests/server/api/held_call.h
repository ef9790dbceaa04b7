// Brings one call into a state that a call can be in, and holds it there while a test ends it.
#ifndef BERTH_TESTS_SERVER_API_HELD_CALL_H_
#define BERTH_TESTS_SERVER_API_HELD_CALL_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "tests/server/api/test_server.h"
#include "text/encode_bounds.h"
#include "vllm/engine.grpc.pb.h"

namespace berth {

// Saved: with deliver_saved_only. Beams: a beam search with more beams than outputs.
enum class CallKind { kGenerate, kGenerateSaved, kComplete, kResume, kResumeSaved, kVllm, kBeams };

enum class CallState {
  kWaitsForText,     // behind another text
  kTokenises,        // on the text pool's thread
  kLoads,            // waits for the thread that reads its session
  kCompiles,         // waits for its grammar
  kSubmits,          // is registered, and the engine does not know it yet
  kSubmitsCompiled,  // the same with a grammar, on the compiler's thread
  kQueued,           // behind another request
  kRuns,             // is in a step
  kDelivers,         // its first token is on the way to its first write
  kHolds,            // has tokens, and none is to be saved yet
  kSaves,            // has tokens whose save is not reported yet
  kPaused,           // its client does not read, and a write is in flight
};

// While it is closed, holds up the first thread that comes. Thread-safe.
class Hold {
 public:
  void Close() { closed_ = true; }
  void Open() { closed_ = false; }
  bool holds() const { return holds_; }
  // Returns when the hold is open, or `stop` says so.
  void Pass(const StopCheck& stop = nullptr) {
    if (!closed_ || holds_.exchange(true)) return;
    while (closed_ && !(stop && stop())) absl::SleepFor(absl::Milliseconds(1));
    closed_ = false;
    holds_ = false;
  }

 private:
  std::atomic<bool> closed_{false};
  std::atomic<bool> holds_{false};
};

class HeldCall {
 public:
  struct Options {
    CallKind kind = CallKind::kGenerate;
    CallState state = CallState::kRuns;
    uint32_t max_tokens = 1;
    bool has_stop_string = false;  // one that comes after the token that is there in the state
    bool has_dead_end = false;     // the same of a dead end of its structure
    absl::Duration unread_timeout = absl::Hours(1);
  };
  static constexpr char kId[] = "r";
  static constexpr char kSession[] = "s";

  explicit HeldCall(const Options& options);
  ~HeldCall();

  // Starts the call. Returns true once it is in the state, and false if its deadline came first.
  bool Begin(absl::Time deadline);
  // Starts another request, and returns once the engine holds a step with it.
  void StartOther();
  // Lets what is held continue, and ends other requests.
  void Release();
  // Reads to the end.
  grpc::Status Finish();
  // Makes each later report of a save an error.
  void FailSaves() { saves_fail_ = true; }

  TestServer& server() { return *server_; }
  grpc::ClientContext& context() { return context_; }
  ::vllm::grpc::engine::VllmEngine::Stub& vllm() { return *vllm_; }
  // How often the services have looked at the clock. They do so when they hear of a cancellation.
  int64_t clock_reads() const { return clock_reads_; }
  // Whether the call was let go of, because it ended or because it was released.
  bool gone();

 private:
  bool resumes() const { return options_.kind == CallKind::kResume || options_.kind == CallKind::kResumeSaved; }
  bool saved_only() const {
    return options_.kind == CallKind::kGenerateSaved || options_.kind == CallKind::kResumeSaved;
  }
  void StartServer();
  void SaveSession();
  void Start();
  v1::GenerateRequest MakeRequest() const;
  // Has steps run until the engine pauses the call for what its client leaves unread.
  bool PauseIt();
  bool Await(const std::function<bool()>& condition) const;

  const Options options_;
  const std::string folder_;
  std::atomic<int64_t> clock_reads_{0};
  std::atomic<bool> saves_fail_{false};
  std::atomic<int64_t> num_delivered_{0};  // tokens that became text
  absl::Time deadline_ = absl::InfiniteFuture();
  Hold encode_;
  Hold compile_;
  Hold submit_;
  Hold delivery_;
  Hold save_;
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<::vllm::grpc::engine::VllmEngine::Stub> vllm_;
  grpc::ClientContext context_;
  std::function<grpc::Status()> finish_;  // ends with the call
  grpc::ClientContext other_text_context_;
  std::future<void> other_text_;
  std::unique_ptr<Call> other_;
};

}  // namespace berth

#endif  // BERTH_TESTS_SERVER_API_HELD_CALL_H_
