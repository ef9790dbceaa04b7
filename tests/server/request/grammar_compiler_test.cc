#include "server/request/grammar_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/refusal.h"
#include "tests/testing/fake_constraint.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GrammarSpec Spec(const std::string& text) {
  GrammarSpec spec;
  spec.kind = GrammarSpec::Kind::kRegex;
  spec.text = text;
  return spec;
}

// What a compile function does that a test holds up.
class FakeCompile {
 public:
  GrammarCompiler::CompileFunction Function() {
    return [this](const GrammarSpec& spec, std::stop_token stop) { return Run(spec, stop); };
  }
  void Hold() { held_ = true; }
  void Release() {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }
  void WaitForRuns(int n) {
    WaitUntil([this, n] { return runs() >= n; }, "the compilations to begin");
  }
  int runs() {
    std::lock_guard<std::mutex> lock(mutex_);
    return runs_;
  }
  // The texts of the specs, in the order in which they came.
  std::vector<std::string> order() {
    std::lock_guard<std::mutex> lock(mutex_);
    return order_;
  }

 private:
  absl::StatusOr<CompiledGrammar> Run(const GrammarSpec& spec, const std::stop_token& stop) {
    const std::stop_callback stopped(stop, [this] {
      std::lock_guard<std::mutex> lock(mutex_);
      changed_.notify_all();
    });
    std::unique_lock<std::mutex> lock(mutex_);
    ++runs_;
    order_.push_back(spec.text);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !held_ || stop.stop_requested(); });
    if (stop.stop_requested()) return absl::CancelledError("stopped");
    if (spec.text == "(") return absl::InvalidArgumentError("missing )");
    return CompiledGrammar{std::make_shared<FakeConstraint>(FakeConstraint::Options{}), 1000};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int runs_ = 0;
  std::vector<std::string> order_;
  std::atomic<bool> held_{false};
};

class Answer {
 public:
  GrammarCompiler::Callback Callback() {
    return [this](absl::StatusOr<CompiledGrammar> answer) { promise_.set_value(std::move(answer)); };
  }
  const absl::StatusOr<CompiledGrammar>& Wait() {
    WaitUntil([this] { return called(); }, "the compiler's answer");
    return future_.get();
  }
  bool called() const { return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

 private:
  std::promise<absl::StatusOr<CompiledGrammar>> promise_;
  std::shared_future<absl::StatusOr<CompiledGrammar>> future_ = promise_.get_future().share();
};

TEST(GrammarCompilerTest, CompilesOnceAndKeeps) {
  FakeCompile compile;
  GrammarCompiler compiler({.threads = 1, .compile = compile.Function()});
  Answer first, second, other;
  compiler.Compile(1, Spec("a"), first.Callback());
  ASSERT_TRUE(first.Wait().ok());
  compiler.Compile(2, Spec("a"), second.Callback());
  EXPECT_EQ(second.Wait()->start, first.Wait()->start);
  GrammarSpec spec = Spec("a");
  spec.begin_text = "x";
  compiler.Compile(3, spec, other.Callback());
  EXPECT_NE(other.Wait()->start, first.Wait()->start);
  const GrammarLoad load = compiler.load();
  EXPECT_EQ(load.compiled, 2);
  EXPECT_EQ(load.hits, 1);
  EXPECT_EQ(load.failed, 0);
  EXPECT_EQ(load.waiting, 0);
  EXPECT_GT(load.cache_bytes, 2000);
}

TEST(GrammarCompilerTest, WhatIsDroppedIsCompiledAgain) {
  FakeCompile compile;
  GrammarCompiler compiler({.threads = 1, .compile = compile.Function()});
  const auto get = [&](const std::string& text) {
    Answer answer;
    compiler.Compile(1, Spec(text), answer.Callback());
    ASSERT_TRUE(answer.Wait().ok());
  };
  for (const char* text : {"a", "b", "a"}) get(text);
  EXPECT_EQ(compile.runs(), 2);
  const int64_t kept_bytes = compiler.load().cache_bytes;
  EXPECT_GT(kept_bytes, 2000);
  EXPECT_EQ(compiler.DropKept(), kept_bytes);
  EXPECT_EQ(compiler.load().cache_bytes, 0);
  EXPECT_EQ(compiler.DropKept(), 0);
  for (const char* text : {"a", "b", "a"}) get(text);
  EXPECT_EQ(compile.runs(), 4);
  EXPECT_EQ(compiler.load().cache_bytes, kept_bytes);
}

TEST(GrammarCompilerTest, ThoseThatWaitForTheSameShareIt) {
  FakeCompile compile;
  GrammarCompiler compiler({.threads = 1, .compile = compile.Function()});
  compile.Hold();
  Answer first, second;
  compiler.Compile(1, Spec("a"), first.Callback());
  compile.WaitForRuns(1);
  compiler.Compile(2, Spec("a"), second.Callback());
  EXPECT_EQ(compiler.load().waiting, 2);
  compile.Release();
  ASSERT_TRUE(first.Wait().ok());
  EXPECT_EQ(second.Wait()->start, first.Wait()->start);
  EXPECT_EQ(compile.runs(), 1);
}

TEST(GrammarCompilerTest, ErrorsAreNotKept) {
  FakeCompile compile;
  GrammarCompiler compiler({.threads = 1, .compile = compile.Function()});
  for (int i = 1; i <= 2; ++i) {
    Answer answer;
    compiler.Compile(1, Spec("("), answer.Callback());
    EXPECT_EQ(answer.Wait().status(), absl::InvalidArgumentError("missing )"));
    EXPECT_EQ(compile.runs(), i);
  }
  EXPECT_EQ(compiler.load().failed, 2);
}

TEST(GrammarCompilerTest, TheLeastRecentlyUsedGoesFirst) {
  FakeCompile compile;
  GrammarCompiler compiler({.threads = 1, .cache_bytes = 2500, .compile = compile.Function()});
  const auto get = [&](const std::string& text) {
    Answer answer;
    compiler.Compile(1, Spec(text), answer.Callback());
    ASSERT_TRUE(answer.Wait().ok());
  };
  for (const char* text : {"a", "b", "a", "c"}) get(text);
  EXPECT_EQ(compile.runs(), 3);
  get("a");
  EXPECT_EQ(compile.runs(), 3);
  get("b");
  EXPECT_EQ(compile.runs(), 4);
  EXPECT_LE(compiler.load().cache_bytes, 2500);
}

TEST(GrammarCompilerTest, WhatIsLargerThanTheCacheIsNotKept) {
  FakeCompile compile;
  GrammarCompiler compiler({.threads = 1, .cache_bytes = 500, .compile = compile.Function()});
  Answer answer;
  compiler.Compile(1, Spec("a"), answer.Callback());
  EXPECT_TRUE(answer.Wait().ok());
  EXPECT_EQ(compiler.load().cache_bytes, 0);
}

// Whoever reacts to a stop runs within request_stop, so with a lock of the compiler held it could not use it.
TEST(GrammarCompilerTest, StopsACompilationWithoutALockHeld) {
  GrammarCompiler* compiler = nullptr;
  std::promise<void> begun;
  std::promise<void> stopped;
  const auto compile = [&](const GrammarSpec&, std::stop_token stop) -> absl::StatusOr<CompiledGrammar> {
    const std::stop_callback reaction(stop, [&] {
      EXPECT_EQ(compiler->load().compiled, 0);
      stopped.set_value();
    });
    begun.set_value();
    stopped.get_future().wait();
    return absl::CancelledError("stopped");
  };
  for (const bool by_time : {false, true}) {
    begun = {};
    stopped = {};
    GrammarCompiler made(
        {.threads = 1, .timeout = by_time ? absl::Milliseconds(1) : absl::Hours(1), .compile = compile});
    compiler = &made;
    std::promise<void> done;
    made.Compile(1, {}, [&](const auto& result) {
      EXPECT_FALSE(result.ok());
      done.set_value();
    });
    begun.get_future().wait();
    if (by_time) {
      done.get_future().wait();
    } else {
      EXPECT_TRUE(made.Cancel(1));
    }
  }
}

TEST(GrammarCompilerTest, RefusesWhenTooManyWait) {
  FakeCompile compile;
  GrammarCompiler compiler({.threads = 1, .max_waiting = 4, .compile = compile.Function()});
  compile.Hold();
  Answer running, waiting, refused;
  compiler.Compile(1, Spec("a"), running.Callback());
  compile.WaitForRuns(1);
  compiler.Compile(2, Spec("b"), waiting.Callback());
  compiler.Compile(3, Spec("c"), refused.Callback());
  const std::optional<Refusal> refusal = RefusalOf(refused.Wait().status());
  ASSERT_TRUE(refusal.has_value()) << refused.Wait().status();
  EXPECT_EQ(*refusal, (Refusal{.reason = RefusalReason::kGrammars, .limit = "2", .value = "3"}));
  compile.Release();
  EXPECT_TRUE(running.Wait().ok());
  EXPECT_TRUE(waiting.Wait().ok());
}

TEST(GrammarCompilerTest, RefusesWhenTooManyBytesWait) {
  FakeCompile compile;
  GrammarCompiler compiler({.threads = 1, .max_waiting_bytes = 2000, .compile = compile.Function()});
  compile.Hold();
  std::vector<Answer> answers(4);
  const auto submit = [&](RequestKey key, const std::string& client, size_t bytes) {
    compiler.Compile(key + 1, Spec(std::string(bytes, 'a')), answers[key].Callback(), {.client = client});
  };
  submit(0, "a", 1500);
  EXPECT_FALSE(answers[0].called()) << "one always fits";
  submit(1, "a", 10);
  EXPECT_EQ(answers[1].Wait().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(answers[1].Wait().status().message()), HasSubstr("1 requests with 15"));
  submit(2, "b", 100);
  EXPECT_FALSE(answers[2].called()) << "another client has room";
  submit(3, "b", 400);
  EXPECT_EQ(answers[3].Wait().status().code(), absl::StatusCode::kResourceExhausted) << "over 2,000 for all";
  compile.Release();
  for (const int i : {0, 2}) EXPECT_TRUE(answers[i].Wait().ok());
}

TEST(GrammarCompilerTest, AClientLeavesAThreadToOthers) {
  FakeCompile compile;
  compile.Hold();
  GrammarCompiler compiler({.threads = 2, .compile = compile.Function()});
  std::vector<Answer> answers(4);
  for (int i = 0; i < 3; ++i) {
    compiler.Compile(i + 1, Spec(absl::StrCat("slow", i)), answers[i].Callback(), {.client = "a"});
  }
  compile.WaitForRuns(1);
  compiler.Compile(4, Spec("other"), answers[3].Callback(), {.client = "b"});
  compile.WaitForRuns(2);
  EXPECT_THAT(compile.order(), ElementsAre("slow0", "other"));
  compile.Release();
  for (Answer& answer : answers) EXPECT_TRUE(answer.Wait().ok());
}

TEST(GrammarCompilerTest, ClientsAndTheirTenantsTakeTurns) {
  FakeCompile compile;
  compile.Hold();
  std::vector<Answer> answers(7);
  GrammarCompiler compiler({.threads = 1, .compile = compile.Function()});
  RequestKey key = 0;
  const auto submit = [&](const std::string& text, const Caller& caller) {
    compiler.Compile(key + 1, Spec(text), answers[key].Callback(), caller);
    ++key;
  };
  submit("first", {.client = "z"});
  compile.WaitForRuns(1);
  for (const char* text : {"a1", "a2"}) submit(text, {.client = "a", .tenant = "one"});
  submit("a of another tenant", {.client = "a", .tenant = "two"});
  for (const char* text : {"b1", "b2"}) submit(text, {.client = "b"});
  submit("a2", {.client = "c"});  // at its own turn, which is before the other's
  compile.Release();
  for (Answer& answer : answers) EXPECT_TRUE(answer.Wait().ok());
  EXPECT_THAT(compile.order(), ElementsAre("first", "a1", "b1", "a2", "a of another tenant", "b2"));
}

TEST(GrammarCompilerTest, AClientThatFillsItsShareLeavesRoomToOthers) {
  FakeCompile compile;
  compile.Hold();
  std::vector<Answer> answers(4);
  GrammarCompiler compiler({.threads = 2, .max_waiting = 4, .compile = compile.Function()});
  for (int i = 0; i < 3; ++i) {
    compiler.Compile(i + 1, Spec(absl::StrCat(i)), answers[i].Callback(), {.client = "a"});
  }
  EXPECT_TRUE(absl::IsResourceExhausted(answers[2].Wait().status()));
  compiler.Compile(4, Spec("other"), answers[3].Callback(), {.client = "b"});
  EXPECT_FALSE(answers[3].called());
  compile.Release();
  for (int i : {0, 1, 3}) EXPECT_TRUE(answers[i].Wait().ok());
}

TEST(GrammarCompilerTest, StopsWhatTakesTooLong) {
  FakeCompile compile;
  GrammarCompiler compiler({.threads = 1, .timeout = absl::Milliseconds(20), .compile = compile.Function()});
  compile.Hold();
  Answer answer;
  compiler.Compile(1, Spec("a"), answer.Callback());
  EXPECT_TRUE(absl::IsInvalidArgument(answer.Wait().status()));
  EXPECT_THAT(std::string(answer.Wait().status().message()), HasSubstr("over 20ms"));
  EXPECT_EQ(compiler.load().failed, 1);
  compile.Release();
  // A busy machine may take 20 ms for it, a few times.
  WaitUntil(
      [&] {
        Answer again;
        compiler.Compile(2, Spec("a"), again.Callback());
        return again.Wait().ok();
      },
      "a compilation in time");
}

TEST(GrammarCompilerTest, CancelStopsWhatNobodyWaitsFor) {
  FakeCompile compile;
  GrammarCompiler compiler({.threads = 1, .compile = compile.Function()});
  compile.Hold();
  Answer first, second, third;
  compiler.Compile(1, Spec("a"), first.Callback());
  compiler.Compile(2, Spec("a"), second.Callback());
  compile.WaitForRuns(1);
  EXPECT_TRUE(compiler.Cancel(1));
  EXPECT_EQ(compiler.load().waiting, 1);
  EXPECT_TRUE(compiler.Cancel(2));
  EXPECT_FALSE(compiler.Cancel(2));
  EXPECT_EQ(compiler.load().waiting, 0);
  // The next one does not join what was stopped.
  compiler.Compile(3, Spec("a"), third.Callback());
  compile.WaitForRuns(2);
  compile.Release();
  EXPECT_TRUE(third.Wait().ok());
  EXPECT_FALSE(first.called());
  EXPECT_FALSE(second.called());
  EXPECT_EQ(compiler.load().compiled, 1);
  EXPECT_EQ(compiler.load().cancelled, 1);
  EXPECT_EQ(compiler.load().failed, 0);
}

TEST(GrammarCompilerTest, CancelTakesAWaitingOneOut) {
  FakeCompile compile;
  GrammarCompiler compiler({.threads = 1, .compile = compile.Function()});
  compile.Hold();
  Answer running, waiting;
  compiler.Compile(1, Spec("a"), running.Callback());
  compile.WaitForRuns(1);
  compiler.Compile(2, Spec("b"), waiting.Callback());
  EXPECT_TRUE(compiler.Cancel(2));
  compile.Release();
  EXPECT_TRUE(running.Wait().ok());
  EXPECT_FALSE(waiting.called());
  EXPECT_EQ(compile.runs(), 1);
}

TEST(GrammarCompilerTest, TheEndAnswersAllThatWait) {
  FakeCompile compile;
  Answer running, waiting;
  {
    GrammarCompiler compiler({.threads = 1, .compile = compile.Function()});
    compile.Hold();
    compiler.Compile(1, Spec("a"), running.Callback());
    compile.WaitForRuns(1);
    compiler.Compile(2, Spec("b"), waiting.Callback());
  }
  EXPECT_TRUE(absl::IsUnavailable(running.Wait().status()));
  EXPECT_TRUE(absl::IsUnavailable(waiting.Wait().status()));
}

// Many threads ask and give up: every request is answered once, or was cancelled.
TEST(GrammarCompilerTest, HoldsUnderManyThreads) {
  FakeCompile compile;
  GrammarCompiler compiler({.threads = 2, .cache_bytes = 5000, .compile = compile.Function()});
  std::atomic<int> answered{0};
  std::atomic<int> cancelled{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 200; ++i) {
        const RequestKey key = t * 1000 + i;
        compiler.Compile(key, Spec(absl::StrCat((t + i) % 9)), [&](const auto& answer) { answered += answer.ok(); });
        if (i % 3 == 0) cancelled += compiler.Cancel(key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  WaitUntil([&] { return answered + cancelled == 800; }, "the answers");
  EXPECT_EQ(compiler.load().waiting, 0);
  EXPECT_EQ(answered + cancelled, 800);
}

}  // namespace
}  // namespace berth
