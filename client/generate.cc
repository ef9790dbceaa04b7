#include "client/generate.h"

#include <grpcpp/client_context.h>

#include <optional>

#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "berth/v1/inference.grpc.pb.h"
#include "client/answer.h"
#include "client/command.h"
#include "client/connection.h"
#include "client/proto_json.h"
#include "client/request_flags.h"
#include "client/retry.h"

namespace berth::cli {
namespace {

constexpr char kIntro[] = R"(berth-cli generate [flags]

Sends one prompt and prints the text as it arrives. The prompt is raw text; berth-cli chat applies
a chat template. Without --prompt, the prompt is read from standard input, without its last newline.
With --logprobs: prints one line per token, with the n most likely tokens at its position. With
--prompt_logprobs: prints such lines for the prompt first.
With --n, --best_of or --num_beams: prints all outputs at the end, the best first if they are ranked,
each under a line "--- 0", "--- 1", ...
With --json: prints one JSON object per message, with the fields of berth/v1/inference.proto.
)";

struct GenerateOptions {
  ConnectionOptions connection;
  std::optional<std::string> prompt;
  v1::GenerateRequest request;
  bool json = false;
  bool stats = false;
  Retries retries;

  void AddTo(FlagSet* flags) {
    flags->AddGroup("Prompt");
    flags->Add("prompt", &prompt, "text", "The prompt. Default: standard input.");
    AddRequestFlags(/*left_out=*/{}, &request, flags);
    flags->AddRenamed("keep_special_tokens", "skip_special_tokens=false");
    flags->AddGroup("Output");
    flags->Add("json", &json, "", "Print the messages as JSON, one per line.");
    flags->Add("stats", &stats, "", "Print a summary to stderr: tokens, time to first token, tokens per second.");
    connection.AddTo(flags);
    retries.AddTo(flags);
  }
  bool several() const {
    return (request.has_n() && request.n() != 1) || request.has_best_of() || request.has_beam_search();
  }
};

// '"text"' with its control characters visible.
std::string Quoted(const std::string& text) { return nlohmann::json(text).dump(); }

void PrintLogprobs(const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& tokens, std::ostream& out) {
  for (const v1::TokenLogprobs& token : tokens) {
    out << absl::StreamFormat("%8d %9.4f  %s", token.token_id(), token.logprob(), Quoted(token.text()));
    for (const v1::TopLogprob& top : token.top()) {
      out << absl::StreamFormat("  %s %.4f", Quoted(top.text()), top.logprob());
    }
    out << "\n";
  }
}

void PrintMessage(const GenerateOptions& options, const v1::GenerateResponse& message, std::ostream& out) {
  if (options.json) {
    out << ToJson(message).dump() << "\n";
  } else {
    PrintLogprobs(message.prompt_logprobs(), out);
    if (options.request.has_logprobs()) {
      PrintLogprobs(message.logprobs(), out);
    } else {
      out << message.text();
    }
  }
  out.flush();
}

void PrintOutput(const GenerateOptions& options, const v1::GenerateResponse& output, std::ostream& out) {
  out << "--- " << output.index() << "\n";
  PrintMessage(options, output, out);
  if (!options.request.has_logprobs()) out << "\n";
}

// Several outputs come in one answer, at the end, so there is nothing to stream. Complete is called again where a
// refusal says that a later call may succeed.
int CompleteAndPrint(GenerateOptions& options, v1::Inference::Stub* stub, Environment& environment) {
  v1::GenerateResponse response;
  grpc::Status status;
  do {
    grpc::ClientContext context;
    Interrupt::Scope scope(&environment.interrupt, [&context] { context.TryCancel(); });
    status = stub->Complete(&context, options.request, &response);
    if (scope.fired() && !status.ok()) return kExitInterrupted;
  } while (options.retries.WaitToRetry(status, &environment));
  if (options.retries.interrupted()) return kExitInterrupted;
  if (!status.ok()) return Fail("generate", DescribeError(options.connection.server, status), environment);
  if (options.json) {
    PrintMessage(options, response, environment.out);
  } else {
    PrintWarnings(response, environment.err);
    PrintOutput(options, response, environment.out);
    for (const v1::GenerateResponse& output : response.other_outputs()) PrintOutput(options, output, environment.out);
  }
  if (options.stats) {
    environment.err << response.usage().prompt_tokens() << " prompt tokens (" << response.usage().cached_tokens()
                    << " cached), " << response.usage().completion_tokens() << " output tokens" << std::endl;
  }
  return kExitOk;
}

// None: the input cannot be read.
std::optional<std::string> ReadPrompt(Environment& environment) {
  if (environment.in_is_terminal) environment.err << "berth-cli: type the prompt; Ctrl-D ends it" << std::endl;
  std::string text;
  char part[4096];
  while (environment.in.read(part, sizeof(part)) || environment.in.gcount() > 0) {
    text.append(part, static_cast<size_t>(environment.in.gcount()));
  }
  if (environment.in.bad()) return std::nullopt;
  return std::string(absl::StripSuffix(text, "\n"));
}

}  // namespace

int RunGenerate(absl::Span<const std::string> args, Environment& environment) {
  GenerateOptions options;
  FlagSet flags;
  options.AddTo(&flags);
  const CommandLine command_line = {.command = "generate", .intro = kIntro};
  if (const auto code = ParseArguments(command_line, flags, args, environment, nullptr)) return *code;

  if (options.request.has_beam_search() && !options.request.beam_search().has_num_beams()) {
    return Fail("generate", "--length_penalty and --early_stopping require --num_beams", environment, kExitUsage);
  }
  if (!options.prompt) options.prompt = ReadPrompt(environment);
  if (!options.prompt) return Fail("generate", "the prompt cannot be read from standard input", environment);
  options.request.set_prompt(*options.prompt);
  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Connect(options.connection);
  if (!channel.ok()) return Fail("generate", channel.status().message(), environment, kExitUsage);
  const auto stub = v1::Inference::NewStub(*channel);
  if (options.several()) return CompleteAndPrint(options, stub.get(), environment);

  Answer answer;
  do {
    answer = ReadAnswer(stub.get(), options.request, &environment.interrupt, [&](const v1::GenerateResponse& message) {
      if (!options.json) PrintWarnings(message, environment.err);
      PrintMessage(options, message, environment.out);
    });
  } while (answer.num_tokens == 0 && !answer.interrupted && options.retries.WaitToRetry(answer.status, &environment));
  if (!options.json && !options.request.has_logprobs() && !answer.text.empty()) environment.out << std::endl;
  if (options.stats) environment.err << Summary(answer) << std::endl;
  if (answer.interrupted || options.retries.interrupted()) return kExitInterrupted;
  if (!answer.status.ok())
    return Fail("generate", DescribeError(options.connection.server, answer.status), environment);
  return kExitOk;
}

}  // namespace berth::cli
