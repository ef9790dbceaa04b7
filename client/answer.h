// One streamed answer, read on the calling thread, and its figures. Thread-compatible.
#ifndef BERTH_CLIENT_ANSWER_H_
#define BERTH_CLIENT_ANSWER_H_

#include <grpcpp/support/status.h>

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "berth/v1/inference.grpc.pb.h"
#include "client/interrupt.h"

namespace berth::cli {

struct Answer {
  grpc::Status status;
  bool interrupted = false;  // by Ctrl-C; the status is then not OK
  std::string text;
  int64_t num_tokens = 0;
  v1::Usage usage;  // of the last message
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  absl::Duration first_token = absl::InfiniteDuration();  // since sending
  absl::Duration last_token = absl::ZeroDuration();       // since sending
};

// Sends `request` and calls `on_message` for each message until the stream ends or `interrupt` fires. Blocks.
Answer ReadAnswer(v1::Inference::Stub* stub, const v1::GenerateRequest& request, Interrupt* interrupt,
                  absl::FunctionRef<void(const v1::GenerateResponse&)> on_message);

// Prints the message's warnings, a line each.
void PrintWarnings(const v1::GenerateResponse& message, std::ostream& err);

// One line: tokens, time to first token, tokens per second after the first.
std::string Summary(const Answer& answer);

}  // namespace berth::cli

#endif  // BERTH_CLIENT_ANSWER_H_
