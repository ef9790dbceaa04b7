// Commands whose input or output fails, and answers that are large or no text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <streambuf>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "tests/client/fake_server.h"

namespace berth::cli {
namespace {

// Takes nothing and gives nothing, as a full disk and a folder.
struct FailingBuffer : std::streambuf {
  int overflow(int) override { return traits_type::eof(); }
  int underflow() override { throw std::ios_base::failure("cannot be read"); }
};

struct StreamsTest : ::testing::Test {
  int Run(std::vector<std::string> args, std::istream& input, std::ostream& output) {
    Interrupt interrupt([] { FAIL() << "nobody fires"; });
    Environment environment = {.in = input, .out = output, .err = err, .interrupt = interrupt};
    args.push_back(absl::StrCat("--server=", server.address()));
    return RunCli(args, environment);
  }

  FakeServer server{{.edit = [this](int, std::vector<v1::GenerateResponse>* messages) {
    if (edit) edit(&messages->front());
  }}};
  std::function<void(v1::GenerateResponse*)> edit;
  std::istringstream in;
  std::ostringstream out, err;
  FailingBuffer failing;
};

TEST_F(StreamsTest, OutputThatCannotBeWrittenFailsTheCommand) {
  for (const char* command : {"generate", "status", "flush"}) {
    std::ostream full(&failing);
    std::vector<std::string> args = {command};
    if (args[0] == "generate") args.push_back("--prompt=x");
    err.str("");
    EXPECT_EQ(Run(args, in, full), kExitFailed);
    EXPECT_EQ(err.str(), absl::StrCat("berth-cli ", command, ": standard output cannot be written\n"));
  }
}

TEST_F(StreamsTest, InputThatCannotBeReadFailsTheCommand) {
  std::istream folder(&failing);
  EXPECT_EQ(Run({"generate"}, folder, out), kExitFailed);
  EXPECT_EQ(err.str(), "berth-cli generate: the prompt cannot be read from standard input\n");
  std::istream other_folder(&failing);
  EXPECT_EQ(Run({"chat"}, other_folder, out), kExitFailed);
  EXPECT_THAT(err.str(), ::testing::HasSubstr("berth-cli chat: standard input cannot be read\n"));
  EXPECT_TRUE(server.requests().empty());
}

TEST_F(StreamsTest, JsonHasBytesInBase64) {
  edit = [](v1::GenerateResponse* message) {
    v1::TokenLogprobs* token = message->add_logprobs();
    token->set_bytes("\xf0\x9f");
    token->add_top()->set_bytes("\x80");
  };
  ASSERT_EQ(Run({"generate", "--prompt=x", "--logprobs=1", "--json"}, in, out), kExitOk) << err.str();
  const nlohmann::json message = nlohmann::json::parse(out.str().substr(0, out.str().find('\n')));
  const nlohmann::json& token = message["logprobs"].back();
  EXPECT_EQ(token["bytes"], "8J8=");
  EXPECT_EQ(token["top"][0]["bytes"], "gA==");
}

TEST_F(StreamsTest, AnAnswerMayBeLarge) {
  edit = [](v1::GenerateResponse* message) { message->set_text(std::string(5 << 20, 'x')); };
  EXPECT_EQ(Run({"generate", "--prompt=x"}, in, out), kExitOk) << err.str();
  EXPECT_GT(out.str().size(), size_t{5} << 20);
}

}  // namespace
}  // namespace berth::cli
