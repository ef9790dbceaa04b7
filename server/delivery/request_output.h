// Turns the engine's events of one request into messages for its client. Each output of the request has messages of its
// own. Without streaming they become one message at the end. If more outputs were computed than asked for, it has only
// the best.
//
// At most one write is in flight; what comes meanwhile is coalesced into the next. So a slow reader slows only itself.
// What it leaves unread is bounded by Options::max_undelivered_bytes, and by kSmallBacklogBytes while the server holds
// more than its limit. At a quarter of the bound the request is paused, and at an eighth it continues. A stream over
// the bound ends, and the engine ends one that is paused for too long. What is unread when the request ends is the
// writer's to bound (OutputWriter::SetUnread). Without streaming, a request ends when its
// message grows over kMaxMessageBytes.
//
// Held by shared_ptr: by the dispatcher and the registry until the request ends, by the RPC until it is done. So an
// event never meets a freed request. Only the delivery thread calls OnEvent; everything else is thread-safe. No method
// blocks.
//
// Invariants:
//   - the writer is called for one message at a time, and exactly once with End, after which it is never touched;
//   - OutputOwner::Cancel may be called any number of times;
//   - OutputOwner::OnEnded is called exactly once, before the writer's End, unless the request is refused.
#ifndef BERTH_SERVER_DELIVERY_REQUEST_OUTPUT_H_
#define BERTH_SERVER_DELIVERY_REQUEST_OUTPUT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/mutex.h"
#include "berth/v1/inference.pb.h"
#include "scheduler/request.h"
#include "server/delivery/held_events.h"
#include "server/delivery/output_assembler.h"
#include "server/delivery/undelivered.h"

namespace berth {

// Writes one request's messages to its client. Called from any thread, and never from two at once, except for
// SetUnread.
class OutputWriter {
 public:
  // Starts a write; RequestOutput::OnWritten says that it is done, and `message` lives until then.
  virtual void Write(const v1::GenerateResponse* message) = 0;
  // Takes the embedding of a request for one. Before End, and once.
  virtual void SetEmbedding(std::vector<float> /*embedding*/) {}
  // The request is over, and this many bytes of its messages wait for its client, who may take hours. Before End, and
  // at most once; a write may be in flight, or begin meanwhile.
  virtual void SetUnread(int64_t /*bytes*/) {}
  // The last call. `last`, which may be null, is to go out before the status and lives as long as the output.
  virtual void End(v1::GenerateResponse* last, const absl::Status& status) = 0;

 protected:
  ~OutputWriter() = default;
};

// Why a request was ended from outside. The first cause stands.
enum class EndCause : uint8_t {
  kNone,
  kAborted,     // Control.Abort: the stream ends with what there is, status OK
  kClientGone,  // cancelled by the client, or its connection is lost
  kDeadline,    // the client's deadline has passed
  kShutdown,    // the server's grace time is over
};

// What is known of a request when it ends, for the log and the metrics.
struct EndedRequest {
  RequestKey key = 0;
  std::string_view request_id;
  FinishReason reason = FinishReason::kNone;
  int64_t num_prompt_tokens = 0;
  int64_t num_tokens = 0;    // of all outputs
  int64_t num_replayed = 0;  // of these: were there before the session resumed
  int64_t num_outputs = 1;
  RequestTimes times;
  absl::Status status;  // of the RPC
};

// What a request's output asks for, and tells. Called from any thread.
class OutputOwner {
 public:
  virtual ~OutputOwner() = default;

  // Tells the engine that the request is over for its client. May come more than once.
  virtual void Cancel(RequestKey key, FinishReason reason) = 0;
  // Tells it that one output of several is.
  virtual void CancelOutput(RequestKey key, int32_t output, FinishReason reason) = 0;
  // Makes the engine pause the request, or continue it. Called with a lock held.
  virtual void SetPaused(RequestKey key, bool paused) = 0;

  virtual void OnFirstToken(const RequestTimes& times) = 0;
  virtual void OnInterToken(absl::Duration gap) = 0;
  // The request is over: gives back what it holds. Called once, unless the request is refused.
  virtual void OnEnded(const EndedRequest& request) = 0;
};

class RequestOutput {
 public:
  struct Options {
    RequestKey key = 0;
    std::string request_id;
    std::string id_space;  // the tenant that the id belongs to, see IdSpaceOf in caller.h
    std::string tenant;    // the request's cache_salt
    absl::Time arrival;
    OutputOptions output;
    int64_t num_prompt_tokens = 0;
    std::vector<int32_t> prompt_token_ids;              // empty unless they are to be returned
    bool stream = true;                                 // false: one message, at the end
    std::shared_ptr<Undelivered> undelivered;           // counts what all streams leave unread; never null
    int64_t max_undelivered_bytes = int64_t{16} << 20;  // of memory, that messages of this stream may take
    std::shared_ptr<OutputOwner> owner;                 // never null
  };

  // A stream with less to deliver is not ended for what others leave unread.
  static constexpr int64_t kSmallBacklogBytes = int64_t{64} << 10;
  // Limit of one message on the wire. gRPC refuses larger ones than 16 MiB.
  static constexpr int64_t kMaxMessageBytes = (int64_t{16} << 20) - (int64_t{64} << 10);

  // `codec` and `writer` must outlive the output's use of them: the codec its end, the writer its End.
  RequestOutput(Options options, const TextCodec* codec, OutputWriter* writer);
  ~RequestOutput();
  RequestOutput(const RequestOutput&) = delete;
  RequestOutput& operator=(const RequestOutput&) = delete;

  // Delivery thread only. `now`: when the engine handed the event over. False: the request has ended, and further
  // events are to be dropped.
  bool OnEvent(const TokenEvent& event, absl::Time now);
  // Takes the end of a save, and delivers what waits for it.
  bool OnSaved(const SaveEvent& save, absl::Time now);

  // The write in flight is done. `ok` false: the client is out of reach.
  void OnWritten(bool ok) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the request for `cause` as soon as the engine has let go of it.
  void Cancel(EndCause cause) ABSL_LOCKS_EXCLUDED(mutex_);
  // After Engine::Submit or GrammarCompiler::Compile: repeats a Cancel that came before these knew the request.
  void OnSubmitted() ABSL_LOCKS_EXCLUDED(mutex_);

  // Before Engine::Submit: what the first message warns of.
  void Warn(std::vector<std::string> warnings) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends a request that the engine refused after its call had begun, without OutputOwner::OnEnded. REQUIRES: the
  // dispatcher does not know the output any more.
  void Refuse(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);

  RequestKey key() const { return options_.key; }
  const std::string& request_id() const { return options_.request_id; }
  const std::string& id_space() const { return options_.id_space; }
  const std::string& tenant() const { return options_.tenant; }

 private:
  // Delivery thread only.
  struct Output {
    OutputAssembler assembler;
    absl::Time last_token = absl::InfinitePast();
    double logprob_sum = 0;
    bool ended = false;
    bool failed = false;  // it ended with an error of its own
  };

  // A message that waits to be written, and the bytes it takes: of memory in a stream, else on the wire.
  struct Waiting {
    v1::GenerateResponse message;
    int64_t bytes = 0;
    int64_t sudden_bytes = 0;  // of these: came all at once
  };

  bool DeliverSaved(absl::Time now);
  bool Deliver(const TokenEvent& event, absl::Time now);
  void ReportTimes(const TokenEvent& event, absl::Time now);
  // The event's token and end, as far as there are any. The status is not OK where it ends the whole request.
  absl::Status Take(const TokenEvent& event);
  // Ends the output's text if a stop string is reached.
  absl::Status AddToken(const TokenEvent& event) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes the engine's end of one output, or of all outputs that still run. Completes their last messages, or returns
  // the status that replaces them. An output's own error replaces them only if every other output had one too.
  absl::Status Finish(const TokenEvent& event) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns OK if the client keeps its output when the engine ends it so.
  absl::Status StatusOfEnd(const TokenEvent& event) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(FinishReason reason, absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // The message that the output's next tokens and text go to.
  Waiting* Pending(size_t output) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts what the last token added to the message. `sudden`: the token is one of many that come at once.
  // RESOURCE_EXHAUSTED: the client leaves too much unread; OUT_OF_RANGE: the answer becomes too large.
  absl::Status Count(Waiting* waiting, bool sudden) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The most bytes that the client may leave unread now, beside what came all at once.
  int64_t UndeliveredLimit() const;
  // The owner is called under the lock, so that the engine gets pauses and their ends in order.
  void SetPaused(bool paused) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts that the request ends because of what is unread.
  absl::Status UnreadError() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool flows() const { return options_.stream && !options_.output.deliver_at_end; }  // messages go out as tokens come
  void AddUndelivered(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets the writer count what is unread from here on. Returns how much that is.
  int64_t HandOverUnread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropPending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the output's message its last.
  void Complete(size_t output, v1::GenerateResponse* message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Joins the messages of all outputs, or of the best, into one.
  void JoinPending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Which outputs are returned, in this order.
  std::vector<size_t> Ranking() const;
  // Starts what can be started: a write or the end.
  void Pump() ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  OutputWriter* const writer_;

  // Delivery thread only.
  std::vector<Output> outputs_;
  HeldEvents held_;  // with OutputOptions::saved_only
  RequestTimes times_;
  int64_t num_replayed_ = 0;
  int64_t num_tokens_ = 0;  // of all outputs; changed under mutex_, so that others may read it there
  bool over_ = false;
  bool over_limit_ = false;  // ended for what is unread, or for the size of its message; what waits is dropped

  Mutex mutex_;
  std::deque<Waiting> pending_ ABSL_GUARDED_BY(mutex_);
  int64_t undelivered_ ABSL_GUARDED_BY(mutex_) = 0;      // bytes of pending_ and in_flight_
  int64_t in_flight_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of in_flight_
  int64_t sudden_bytes_ ABSL_GUARDED_BY(mutex_) = 0;     // of undelivered_: came all at once
  int64_t in_flight_sudden_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool handed_over_ ABSL_GUARDED_BY(mutex_) = false;  // the writer counts undelivered_ now
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool first_ ABSL_GUARDED_BY(mutex_) = true;         // no message made yet
  bool unreachable_ ABSL_GUARDED_BY(mutex_) = false;  // a write failed
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool end_sent_ ABSL_GUARDED_BY(mutex_) = false;
  EndCause cause_ ABSL_GUARDED_BY(mutex_) = EndCause::kNone;
  std::vector<std::string> warnings_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);

  // The message of the write in flight. Only the writer touches it until the write is done.
  v1::GenerateResponse in_flight_;
};

}  // namespace berth

#endif  // BERTH_SERVER_DELIVERY_REQUEST_OUTPUT_H_
