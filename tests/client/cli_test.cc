// The commands, end to end against a fake server, on string streams.
#include "client/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/client/fake_server.h"
#include "tests/testing/wait_until.h"

namespace berth::cli {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

struct Outcome {
  int code;
  std::string out;
  std::string err;
};

Outcome RunWith(std::vector<std::string> args, Interrupt* interrupt, const std::string& input = "") {
  std::istringstream in(input);
  std::ostringstream out, err;
  Environment environment = {.in = in, .out = out, .err = err, .interrupt = *interrupt};
  const int code = RunCli(args, environment);
  return {code, out.str(), err.str()};
}

Outcome RunCommand(std::vector<std::string> args, const std::string& input = "") {
  Interrupt interrupt([] { FAIL() << "nobody fires"; });
  return RunWith(std::move(args), &interrupt, input);
}

std::string ServerFlag(const FakeServer& server) { return absl::StrCat("--server=", server.address()); }

TEST(Cli, HelpListsTheCommands) {
  const Outcome run = RunCommand({"--help"});
  EXPECT_EQ(run.code, kExitOk);
  for (const char* command : {"generate", "chat", "status", "load", "drain", "flush", "erase"}) {
    EXPECT_THAT(run.out, HasSubstr(command));
    const Outcome help = RunCommand({command, "--help"});
    EXPECT_EQ(help.code, kExitOk);
    EXPECT_THAT(help.out, AllOf(StartsWith(absl::StrCat("berth-cli ", command)), HasSubstr("--server=")));
    EXPECT_THAT(help.out, ::testing::Not(HasSubstr("--flagfile")));
  }
  EXPECT_THAT(run.out, HasSubstr("token"));
  EXPECT_THAT(RunCommand({"token", "--help"}).out, StartsWith("berth-cli token"));
}

TEST(Cli, RefusesWhatItDoesNotKnowInOneLine) {
  EXPECT_EQ(RunCommand({}).code, kExitUsage);
  EXPECT_EQ(RunCommand({"frob"}).err, "berth-cli: unknown command 'frob'; see berth-cli --help\n");
  EXPECT_EQ(RunCommand({"--frob"}).err, "berth-cli: unknown flag --frob before the command; see berth-cli --help\n");
  const Outcome flag = RunCommand({"status", "--frob=1"});
  EXPECT_EQ(flag.code, kExitUsage);
  EXPECT_EQ(flag.err, "berth-cli status: unknown flag --frob; see berth-cli status --help\n");
  EXPECT_EQ(RunCommand({"status", "now"}).err,
            "berth-cli status: unexpected argument 'now'; see berth-cli status --help\n");
  EXPECT_THAT(RunCommand({"generate", "--logit_bias=x:1"}).err, HasSubstr("--logit_bias: x:1 is not ID:BIAS"));
  EXPECT_THAT(RunCommand({"generate", "--keep_special_tokens"}).err,
              HasSubstr("--keep_special_tokens is now --skip_special_tokens=false"));
}

TEST(Cli, AServerThatIsNotThereIsOneLineWithItsAddress) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"generate", "--prompt=x"}, {"chat", "x"}, {"status"}, {"load"}}) {
    std::vector<std::string> with_server = args;
    with_server.push_back("--server=127.0.0.1:1");
    const Outcome run = RunCommand(with_server);
    EXPECT_EQ(run.code, kExitFailed);
    EXPECT_EQ(run.err, absl::StrCat("berth-cli ", args[0], ": cannot connect to 127.0.0.1:1: Connection refused\n"));
    EXPECT_THAT(run.out, IsEmpty());
  }
}

TEST(Operate, SaysWhatTheServerDid) {
  const FakeServer server;
  EXPECT_EQ(RunCommand({"drain", ServerFlag(server)}).out, "the server drains: 3 requests have 30 s to end\n");
  EXPECT_EQ(RunCommand({"flush", ServerFlag(server)}).out,
            "prefixes dropped: 2 MiB of the arena, 0 B of host memory, 0 B of files\n");
  EXPECT_EQ(RunCommand({"flush", "--tenant=four", ServerFlag(server)}).out,
            "prefixes dropped: 1 MiB of the arena, 0 B of host memory, 4 B of files\n");
  EXPECT_EQ(RunCommand({"flush", "--tenant=", ServerFlag(server)}).out,
            "prefixes dropped: 1 MiB of the arena, 0 B of host memory, 0 B of files\n");
  const Outcome erased = RunCommand({"erase", "--tenant=a", ServerFlag(server)});
  EXPECT_EQ(erased.code, kExitOk);
  EXPECT_EQ(erased.out,
            "requests ended: 1\nsessions deleted: 2, 3 MiB\n"
            "prefixes dropped: 0 B of the arena, 0 B of host memory, 0 B of files\n");
  const Outcome failed = RunCommand({"erase", "--tenant=locked", ServerFlag(server)});
  EXPECT_EQ(failed.code, kExitFailed);
  EXPECT_THAT(failed.err, HasSubstr("call it again later"));
  const Outcome missing = RunCommand({"erase", ServerFlag(server)});
  EXPECT_EQ(missing.code, kExitUsage);
  EXPECT_EQ(missing.err, "berth-cli erase: --tenant must be set\n");
}

TEST(Token, IsSecretAndNew) {
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/token");
  std::filesystem::remove(path);
  const mode_t umask_before = umask(0);
  const Outcome run = RunCommand({"token", "--out=" + path});
  umask(umask_before);
  EXPECT_EQ(run.code, kExitOk) << run.err;
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::ifstream file(path);
  std::string token;
  ASSERT_TRUE(std::getline(file, token));
  EXPECT_THAT(token, ::testing::MatchesRegex("[0-9a-f]{64}"));
  std::string hash(SHA256_DIGEST_LENGTH, 0);
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  EXPECT_EQ(run.out, absl::StrCat(absl::BytesToHexString(hash), "\n"));
  const Outcome again = RunCommand({"token", "--out=" + path});
  EXPECT_EQ(again.code, kExitFailed);
  EXPECT_EQ(again.err, absl::StrCat("berth-cli token: --out: cannot create ", path, ": File exists\n"));
  EXPECT_EQ(RunCommand({"token"}).code, kExitUsage);
}

TEST(Generate, StreamsTextAndSendsTheFlags) {
  const FakeServer server;
  const Outcome run = RunCommand({"generate", ServerFlag(server), "--prompt=Hello", "--max_tokens=3", "--temperature=0",
                                  "--top_p=0.5", "--seed=7", "--stop=x,y", "--stop=z", "--stop_token_ids=1,2",
                                  "--logit_bias=5:-1.5", "--ignore_eos", "--skip_special_tokens=false", "--stats"});
  EXPECT_EQ(run.code, kExitOk);
  EXPECT_EQ(run.out, "t0 t1 t2\n");
  EXPECT_THAT(run.err,
              AllOf(StartsWith("5 prompt tokens (0 cached), 3 output tokens (length), TTFT "), EndsWith("\n")));
  const v1::GenerateRequest request = server.requests().at(0);
  EXPECT_EQ(request.prompt(), "Hello");
  EXPECT_TRUE(request.sampling().has_temperature());
  EXPECT_EQ(request.sampling().top_p(), 0.5f);
  EXPECT_FALSE(request.sampling().has_top_k());
  EXPECT_EQ(request.sampling().seed(), 7u);
  EXPECT_EQ(request.sampling().logit_bias().at(5), -1.5f);
  EXPECT_THAT(request.stopping().stop(), ::testing::ElementsAre("x,y", "z"));
  EXPECT_THAT(request.stopping().stop_token_ids(), ::testing::ElementsAre(1, 2));
  EXPECT_TRUE(request.stopping().ignore_eos());
  EXPECT_FALSE(request.skip_special_tokens());
}

TEST(Generate, ReadsThePromptFromTheInput) {
  const FakeServer server;
  EXPECT_EQ(RunCommand({"generate", ServerFlag(server)}, "two\nlines\n").code, kExitOk);
  EXPECT_EQ(server.requests().at(0).prompt(), "two\nlines");
}

TEST(Generate, JsonIsOneMessageALine) {
  const FakeServer server;
  const Outcome run =
      RunCommand({"generate", ServerFlag(server), "--prompt=x", "--max_tokens=2", "--logprobs=0", "--json"});
  std::istringstream lines(run.out);
  std::string first, second, third;
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_FALSE(std::getline(lines, third));
  EXPECT_EQ(nlohmann::json::parse(first)["request_id"], "fake-0");
  const auto last = nlohmann::json::parse(second);
  EXPECT_EQ(last["finish_reason"], "FINISH_REASON_LENGTH");
  EXPECT_EQ(last["usage"]["completion_tokens"], 2);
  EXPECT_EQ(last["logprobs"][0]["logprob"], -0.5);
}

TEST(Generate, LogprobsAreOneTokenALine) {
  const FakeServer server;
  const Outcome run = RunCommand({"generate", ServerFlag(server), "--prompt=x", "--max_tokens=2", "--logprobs=0"});
  EXPECT_THAT(run.out, AllOf(HasSubstr("-0.5000  \"t0\"\n"), HasSubstr("-0.5000  \" t1\"\n")));
}

TEST(Generate, SeveralOutputsComeAtTheEnd) {
  const FakeServer server;
  const Outcome samples = RunCommand({"generate", ServerFlag(server), "--prompt=x", "--n=2", "--best_of=5", "--stats"});
  EXPECT_EQ(samples.code, kExitOk);
  EXPECT_EQ(samples.out, "--- 0\noutput 0\n--- 1\noutput 1\n");
  EXPECT_EQ(samples.err, "0 prompt tokens (0 cached), 9 output tokens\n");
  EXPECT_EQ(server.requests().at(0).n(), 2u);
  EXPECT_EQ(server.requests().at(0).best_of(), 5u);
  EXPECT_FALSE(server.requests().at(0).has_beam_search());
  const Outcome beams = RunCommand({"generate", ServerFlag(server), "--prompt=x", "--num_beams=3",
                                    "--length_penalty=0.7", "--early_stopping=never", "--json"});
  EXPECT_EQ(nlohmann::json::parse(beams.out)["text"], "output 0");
  const v1::BeamSearch search = server.requests().at(1).beam_search();
  EXPECT_EQ(search.num_beams(), 3u);
  EXPECT_EQ(search.length_penalty(), 0.7);
  EXPECT_EQ(search.early_stopping(), v1::EARLY_STOPPING_NEVER);
  EXPECT_FALSE(server.requests().at(1).has_n());
  EXPECT_THAT(RunCommand({"generate", "--num_beams=3", "--early_stopping=x"}).err,
              HasSubstr("--early_stopping: x is not one of false, true, never"));
  EXPECT_THAT(RunCommand({"generate", "--early_stopping=true"}).err, HasSubstr("require --num_beams"));
}

TEST(Generate, AnErrorOfTheServerIsOneLine) {
  const FakeServer server(
      {.refuse = [](int) { return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "top_p is 2; at most 1"); }});
  const Outcome run = RunCommand({"generate", ServerFlag(server), "--prompt=x", "--top_p=2"});
  EXPECT_EQ(run.code, kExitFailed);
  EXPECT_EQ(run.err, "berth-cli generate: INVALID_ARGUMENT: top_p is 2; at most 1\n");
}

// RESOURCE_EXHAUSTED with this delay in its RetryInfo.
grpc::Status Busy(absl::Duration delay) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(delay));
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(delay % absl::Seconds(1))));
  google::rpc::Status details;
  details.add_details()->PackFrom(google::rpc::ErrorInfo());
  details.add_details()->PackFrom(retry);
  return {grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full", details.SerializeAsString()};
}

TEST(Generate, ShowsTheDelayOfARefusal) {
  const FakeServer server({.refuse = [](int) { return Busy(absl::Milliseconds(1500)); }});
  const Outcome run = RunCommand({"generate", ServerFlag(server), "--prompt=x"});
  EXPECT_EQ(run.code, kExitFailed);
  EXPECT_EQ(run.err, "berth-cli generate: RESOURCE_EXHAUSTED: the queue is full (retry in 1.5s)\n");
  EXPECT_THAT(server.requests(), SizeIs(1));
}

TEST(Generate, RetriesAsOftenAsAskedAndNoMore) {
  const FakeServer server(
      {.refuse = [](int number) { return number < 2 ? Busy(absl::Milliseconds(2)) : grpc::Status::OK; }});
  EXPECT_EQ(RunCommand({"generate", ServerFlag(server), "--prompt=x", "--retries=1"}).code, kExitFailed);
  EXPECT_THAT(server.requests(), SizeIs(2));

  const FakeServer other(
      {.refuse = [](int number) { return number < 2 ? Busy(absl::Milliseconds(2)) : grpc::Status::OK; }});
  const Outcome run = RunCommand({"chat", ServerFlag(other), "x", "--retries=5"});
  EXPECT_EQ(run.code, kExitOk);
  EXPECT_EQ(run.out, "t0 t1 t2 t3\n");
  EXPECT_EQ(run.err,
            "berth-cli: the server is busy; trying again in 2ms\nberth-cli: the server is busy; trying again in 2ms\n");
  EXPECT_THAT(other.requests(), SizeIs(3));
}

TEST(Generate, DoesNotRetryWhatIsHopelessOrTakesLong) {
  const grpc::Status refusals[] = {Busy(absl::Seconds(31)), {grpc::StatusCode::RESOURCE_EXHAUSTED, "too large alone"}};
  for (const grpc::Status& refusal : refusals) {
    const FakeServer server({.refuse = [&](int) { return refusal; }});
    EXPECT_EQ(RunCommand({"generate", ServerFlag(server), "--prompt=x", "--retries=9"}).code, kExitFailed);
    EXPECT_THAT(server.requests(), SizeIs(1));
  }
}

// What is written to a stream, and whether some of it was flushed.
class FlushedText : public std::stringbuf {
 public:
  bool flushed() const { return flushed_; }

 private:
  int sync() override {
    flushed_ = true;
    return 0;
  }

  std::atomic<bool> flushed_ = false;
};

TEST(Generate, CtrlCEndsTheWaitForARetry) {
  static constexpr absl::Duration kDelay = absl::Seconds(30);
  const FakeServer server({.refuse = [](int) { return Busy(kDelay); }});
  Interrupt interrupt([] {});
  std::istringstream in;
  std::ostringstream out;
  FlushedText text;
  std::ostream err(&text);
  Environment environment = {.in = in, .out = out, .err = err, .interrupt = interrupt};
  std::atomic<bool> ended = false;
  absl::Time start;
  std::thread user([&] {
    WaitUntil([&] { return text.flushed() || ended; }, "the command to say that it waits");
    start = absl::Now();
    for (; !ended; absl::SleepFor(absl::Milliseconds(1))) interrupt.Fire();
  });
  const std::vector<std::string> args = {"generate", ServerFlag(server), "--prompt=x", "--retries=9"};
  const int code = RunCli(args, environment);
  const absl::Time end = absl::Now();
  ended = true;
  user.join();
  EXPECT_EQ(code, kExitInterrupted);
  EXPECT_THAT(text.str(), HasSubstr("trying again in 30s"));
  EXPECT_LT(end - start, kDelay);
  EXPECT_THAT(server.requests(), SizeIs(1));
}

TEST(Generate, CtrlCCancels) {
  const FakeServer server({.hang = true});
  Interrupt interrupt([] {});
  std::thread user([&] {
    server.AwaitInFlight(1);
    interrupt.Fire();
  });
  const Outcome run = RunWith({"generate", ServerFlag(server), "--prompt=x"}, &interrupt);
  user.join();
  EXPECT_EQ(run.code, kExitInterrupted);
  EXPECT_THAT(run.err, IsEmpty());
}

TEST(Chat, OneTurnWithASystemMessage) {
  const FakeServer server;
  const Outcome run = RunCommand({"chat", ServerFlag(server), "--system=Be brief.", "Hello"});
  EXPECT_EQ(run.code, kExitOk);
  EXPECT_EQ(run.out, "t0 t1 t2 t3\n");
  const v1::Chat chat = server.requests().at(0).chat();
  ASSERT_EQ(chat.messages_size(), 2);
  EXPECT_EQ(chat.messages(0).role(), "system");
  EXPECT_EQ(chat.messages(1).content(), "Hello");
}

TEST(Chat, EachTurnCarriesTheConversation) {
  const FakeServer server;
  const Outcome run = RunCommand({"chat", ServerFlag(server), "--max_tokens=1"}, "one\n\ntwo\n");
  EXPECT_EQ(run.code, kExitOk);
  EXPECT_EQ(run.out, "t0\nt0\n");
  ASSERT_THAT(server.requests(), SizeIs(2));
  const v1::Chat chat = server.requests().at(1).chat();
  ASSERT_EQ(chat.messages_size(), 3);
  EXPECT_EQ(chat.messages(1).role(), "assistant");
  EXPECT_EQ(chat.messages(1).content(), "t0");
  EXPECT_EQ(chat.messages(2).content(), "two");
}

TEST(Chat, CtrlCCancelsTheAnswerAndAFailedScriptEnds) {
  const FakeServer server({.hang = true});
  Interrupt interrupt([] {});
  std::thread user([&] {
    server.AwaitInFlight(1);
    interrupt.Fire();
  });
  const Outcome run = RunWith({"chat", ServerFlag(server)}, &interrupt, "one\ntwo\n");
  user.join();
  EXPECT_EQ(run.code, kExitInterrupted);
  EXPECT_THAT(server.requests(), SizeIs(1));
}

TEST(Status, DrawsHealthModelAndPools) {
  const FakeServer server;
  const Outcome run = RunCommand({"status", ServerFlag(server)});
  EXPECT_EQ(run.code, kExitOk);
  EXPECT_THAT(run.out, HasSubstr("live: SERVING, ready: NOT_SERVING"));
  EXPECT_THAT(run.out, HasSubstr("fake (fake_hybrid): 4 layers, 2.5 M parameters"));
  EXPECT_THAT(run.out, HasSubstr("2.0 KiB a token (int8), 16 tokens a block, window 512"));
  EXPECT_THAT(run.out, HasSubstr("[##########----------....................]  25.0 %"));
}

TEST(Status, JsonKeepsNumbers) {
  const FakeServer server;
  const auto json = nlohmann::json::parse(RunCommand({"status", ServerFlag(server), "--json"}).out);
  EXPECT_EQ(json["health"]["ready"], "NOT_SERVING");
  EXPECT_EQ(json["load"]["generation_tokens"], 1 << 20);
  EXPECT_EQ(json["model"]["cache_groups"][1]["bytes_per_sequence"], 1 << 20);
  EXPECT_EQ(json["server"]["version"], "0.0.0-fake");
}

TEST(Status, WatchEndsWithCtrlC) {
  const FakeServer server;
  Interrupt interrupt([] {});
  std::thread user([&] {
    WaitUntil([&] { return interrupt.num_scopes() > 0; }, "the command to watch");
    interrupt.Fire();
  });
  const Outcome run = RunWith({"status", ServerFlag(server), "--watch"}, &interrupt);
  user.join();
  EXPECT_EQ(run.code, kExitOk);
  EXPECT_THAT(run.out, HasSubstr("live: SERVING"));
}

TEST(Load, ReportsAsTextAndJson) {
  const FakeServer server;
  const Outcome run =
      RunCommand({"load", ServerFlag(server), "--concurrency=4", "--requests=20", "--prompt_tokens=uniform:1:9",
                  "--output_tokens=fixed:5", "--verify", "--verify_prompts=6", "--limit_e2e=1h", "--json_out=-"});
  EXPECT_EQ(run.code, kExitOk) << run.err;
  EXPECT_THAT(run.err, HasSubstr("verified   20 streams against 6 sent alone: 0 with faults"));
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_EQ(json["requests"]["ok"], 20);
  EXPECT_EQ(json["throughput"]["output_tokens"], 100);
  EXPECT_EQ(json["latency_seconds"]["itl"]["count"], 80);
  EXPECT_EQ(json["goodput"]["requests_within_limits"], 20);
  EXPECT_EQ(json["run"]["prompts"], "uniform:1:9");
  EXPECT_THAT(server.requests(), SizeIs(26));
}

TEST(Load, WritesJsonToAFile) {
  const FakeServer server;
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/report.json";
  const Outcome run =
      RunCommand({"load", ServerFlag(server), "--rate=1000", "--requests=5", "--json_out", path, "--progress"});
  EXPECT_EQ(run.code, kExitOk);
  EXPECT_THAT(run.out, HasSubstr("open loop, 1000 arrivals/s"));
  EXPECT_THAT(run.err, HasSubstr("5 of 5 done"));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["run"]["loop"], "open");
  EXPECT_TRUE(json["verification"].is_null());
  EXPECT_EQ(RunCommand({"load", ServerFlag(server), "--requests=1", "--json_out=/nonesuch/x"}).code, kExitFailed);
}

TEST(Load, SendsTheLinesOfAFile) {
  const FakeServer server;
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/prompts.txt";
  std::ofstream(path) << "one\n\ntwo\n";
  const Outcome run = RunCommand({"load", ServerFlag(server), "--requests=3", "--prompt_file", path, "--verify"});
  EXPECT_EQ(run.code, kExitOk) << run.out << run.err;
  EXPECT_EQ(server.requests().at(1).prompt(), "two");
  EXPECT_EQ(server.requests().at(2).prompt(), "one");
}

TEST(Load, FailedRequestsFailTheCommandUnlessAllowed) {
  const auto refuse = [](int number) {
    return number % 2 == 1 ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full") : grpc::Status::OK;
  };
  const FakeServer server({.refuse = refuse});
  const Outcome run = RunCommand({"load", ServerFlag(server), "--requests=10"});
  EXPECT_EQ(run.code, kExitFailed);
  EXPECT_THAT(run.out, AllOf(HasSubstr("5 ok, 5 failed"), HasSubstr("5 RESOURCE_EXHAUSTED: the queue is full")));
  EXPECT_EQ(RunCommand({"load", ServerFlag(server), "--requests=10", "--allow_errors"}).code, kExitOk);
}

TEST(Load, ALostTokenUnderLoadFailsTheCommandThoughErrorsAreAllowed) {
  const auto drop = [](int number, std::vector<v1::GenerateResponse>* messages) {
    if (number == 9) messages->erase(messages->begin() + 2);
  };
  const FakeServer server({.edit = drop});
  const Outcome run = RunCommand({"load", ServerFlag(server), "--requests=8", "--concurrency=4", "--verify",
                                  "--verify_prompts=4", "--output_tokens=fixed:6", "--allow_errors"});
  EXPECT_EQ(run.code, kExitFailed);
  EXPECT_THAT(run.out, AllOf(HasSubstr("1 with faults"), HasSubstr("lost tokens")));
}

TEST(Load, AFaultyReferenceIsNamed) {
  const auto repeat = [](int number, std::vector<v1::GenerateResponse>* messages) {
    if (number == 1) messages->insert(messages->begin() + 1, (*messages)[1]);
  };
  const FakeServer server({.edit = repeat});
  const Outcome run = RunCommand({"load", ServerFlag(server), "--requests=8", "--verify"});
  EXPECT_EQ(run.code, kExitFailed);
  EXPECT_THAT(run.err, AllOf(HasSubstr("request 1, sent alone"), HasSubstr("repeated tokens")));
}

TEST(Load, CtrlCReportsWhatThereIs) {
  const FakeServer server({.hang = true});
  Interrupt interrupt([] {});
  std::thread user([&] {
    server.AwaitInFlight(3);
    interrupt.Fire();
  });
  const Outcome run = RunWith({"load", ServerFlag(server), "--concurrency=3", "--duration=1h"}, &interrupt);
  user.join();
  EXPECT_EQ(run.code, kExitInterrupted);
  EXPECT_THAT(run.out, HasSubstr("0 ok, 0 failed, 3 cancelled"));
}

TEST(Load, RefusesFlagsThatExcludeEachOther) {
  EXPECT_THAT(RunCommand({"load", "--rate=1", "--concurrency=1"}).err, HasSubstr("exclude each other"));
  EXPECT_THAT(RunCommand({"load", "--rate=0"}).err, HasSubstr("--rate: 0 is not above 0"));
  EXPECT_THAT(RunCommand({"load", "--prompt_tokens=fixed:0"}).err,
              HasSubstr("--prompt_tokens: fixed:0 is not valid: length '0' is not a whole number from 1"));
  EXPECT_THAT(RunCommand({"load", "--duration=-1s"}).err, HasSubstr("--duration: -1s is not above 0s"));
}

}  // namespace
}  // namespace berth::cli
