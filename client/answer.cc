#include "client/answer.h"

#include <grpcpp/client_context.h>

#include <chrono>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace berth::cli {

Answer ReadAnswer(v1::Inference::Stub* stub, const v1::GenerateRequest& request, Interrupt* interrupt,
                  absl::FunctionRef<void(const v1::GenerateResponse&)> on_message) {
  Answer answer;
  grpc::ClientContext context;
  Interrupt::Scope scope(interrupt, [&context] { context.TryCancel(); });
  const auto start = std::chrono::steady_clock::now();
  const std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader = stub->Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    if (message.token_ids_size() > 0) {
      answer.last_token = absl::FromChrono(std::chrono::steady_clock::now() - start);
      if (answer.num_tokens == 0) answer.first_token = answer.last_token;
      answer.num_tokens += message.token_ids_size();
    }
    answer.text += message.text();
    answer.usage = message.usage();
    answer.finish_reason = message.finish_reason();
    on_message(message);
  }
  answer.status = reader->Finish();
  answer.interrupted = scope.fired() && !answer.status.ok();
  return answer;
}

void PrintWarnings(const v1::GenerateResponse& message, std::ostream& err) {
  for (const std::string& warning : message.warnings()) err << "berth-cli: warning: " << warning << std::endl;
}

std::string Summary(const Answer& answer) {
  std::string line = absl::StrFormat("%d prompt tokens (%d cached), %d output tokens", answer.usage.prompt_tokens(),
                                     answer.usage.cached_tokens(), answer.num_tokens);
  if (answer.finish_reason != v1::FINISH_REASON_UNSPECIFIED) {
    absl::string_view reason = v1::FinishReason_Name(answer.finish_reason);
    absl::ConsumePrefix(&reason, "FINISH_REASON_");
    absl::StrAppend(&line, " (", absl::AsciiStrToLower(reason), ")");
  }
  if (answer.num_tokens > 0) {
    absl::StrAppendFormat(&line, ", TTFT %.1f ms", absl::ToDoubleMilliseconds(answer.first_token));
  }
  const absl::Duration decoding = answer.last_token - answer.first_token;
  if (answer.num_tokens > 1 && decoding > absl::ZeroDuration()) {
    absl::StrAppendFormat(&line, ", %.1f tokens/s after it", (answer.num_tokens - 1) / absl::ToDoubleSeconds(decoding));
  }
  return line;
}

}  // namespace berth::cli
