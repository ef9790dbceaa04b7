#include "client/chat.h"

#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "berth/v1/inference.grpc.pb.h"
#include "client/answer.h"
#include "client/command.h"
#include "client/connection.h"
#include "client/request_flags.h"
#include "client/retry.h"

namespace berth::cli {
namespace {

// Fields for a raw prompt, for several outputs, and for one request that is saved.
constexpr absl::string_view kLeftOut[] = {"add_special_tokens",
                                          "return_prompt_token_ids",
                                          "logprobs",
                                          "prompt_logprobs",
                                          "n",
                                          "best_of",
                                          "beam_search",
                                          "session_id",
                                          "autosave_tokens",
                                          "deliver_saved_only"};

constexpr char kIntro[] = R"(berth-cli chat [flags] ["message"]

With a message: prints the model's answer and exits. Without one: holds a conversation, one line of
standard input per turn. Ctrl-C cancels the current answer; Ctrl-D ends the conversation. What
arrived of a cancelled answer stays in the conversation; a failed turn is removed from it.
)";

struct ChatOptions {
  ConnectionOptions connection;
  std::string system;
  v1::GenerateRequest request;
  bool stats = false;
  Retries retries;

  void AddTo(FlagSet* flags) {
    flags->AddGroup("Conversation");
    flags->Add("system", &system, "text", "System message before the first turn.");
    AddRequestFlags(kLeftOut, &request, flags);
    flags->AddRenamed("keep_special_tokens", "skip_special_tokens=false");
    flags->AddGroup("Output");
    flags->Add("stats", &stats, "", "Print a summary to stderr after each answer.");
    connection.AddTo(flags);
    retries.AddTo(flags);
  }
};

// The messages so far. Invariant: `request_` holds whole turns only, between calls of Turn().
class Conversation {
 public:
  Conversation(const ChatOptions& options, const std::shared_ptr<grpc::Channel>& channel, Environment* environment)
      : options_(options),
        request_(options.request),
        environment_(environment),
        stub_(v1::Inference::NewStub(channel)) {
    request_.mutable_chat();
    if (!options.system.empty()) AddMessage("system", options.system);
  }

  // Sends `text`, streams the answer. Returns an exit code.
  int Turn(const std::string& text) {
    AddMessage("user", text);
    std::ostream& out = environment_->out;
    Retries retries = options_.retries;  // of each turn
    Answer answer;
    do {
      answer = ReadAnswer(stub_.get(), request_, &environment_->interrupt, [&](const v1::GenerateResponse& message) {
        PrintWarnings(message, environment_->err);
        out << message.text() << std::flush;
      });
    } while (answer.num_tokens == 0 && !answer.interrupted && retries.WaitToRetry(answer.status, environment_));
    if (!answer.text.empty() || answer.status.ok()) out << std::endl;
    if (options_.stats) environment_->err << Summary(answer) << std::endl;
    if (answer.status.ok() || (answer.interrupted && !answer.text.empty())) {
      AddMessage("assistant", answer.text);
    } else {
      request_.mutable_chat()->mutable_messages()->RemoveLast();
    }
    if (answer.interrupted || retries.interrupted()) return kExitInterrupted;
    if (!answer.status.ok())
      return Fail("chat", DescribeError(options_.connection.server, answer.status), *environment_);
    return kExitOk;
  }

 private:
  void AddMessage(const std::string& role, const std::string& content) {
    v1::ChatMessage* message = request_.mutable_chat()->add_messages();
    message->set_role(role);
    message->set_content(content);
  }

  const ChatOptions& options_;
  v1::GenerateRequest request_;
  Environment* environment_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// False at the end of the input.
bool ReadLine(Environment& environment, std::string* line) {
  if (!environment.in_is_terminal) return static_cast<bool>(std::getline(environment.in, *line));
  const Interrupt::Scope scope(&environment.interrupt,
                               [&] { environment.err << "\n(Ctrl-D leaves)\n> " << std::flush; });
  environment.err << "> " << std::flush;
  if (std::getline(environment.in, *line)) return true;
  environment.err << std::endl;
  return false;
}

// On a terminal a failed turn leaves the choice to the user; a script ends there.
int Converse(Conversation* conversation, Environment& environment) {
  std::string line;
  while (ReadLine(environment, &line)) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const int code = conversation->Turn(line);
    if (code != kExitOk && !environment.in_is_terminal) return code;
  }
  return environment.in.bad() ? Fail("chat", "standard input cannot be read", environment) : kExitOk;
}

}  // namespace

int RunChat(absl::Span<const std::string> args, Environment& environment) {
  ChatOptions options;
  FlagSet flags;
  options.AddTo(&flags);
  std::vector<std::string> positional;
  const CommandLine command_line = {.command = "chat", .intro = kIntro, .max_positional = 1};
  if (const auto code = ParseArguments(command_line, flags, args, environment, &positional)) return *code;

  const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Connect(options.connection);
  if (!channel.ok()) return Fail("chat", channel.status().message(), environment, kExitUsage);
  Conversation conversation(options, *channel, &environment);
  return positional.empty() ? Converse(&conversation, environment) : conversation.Turn(positional[0]);
}

}  // namespace berth::cli
