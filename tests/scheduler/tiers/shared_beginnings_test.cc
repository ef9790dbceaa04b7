// How much of the prompts of agents is found in the cache, for each kind of recurrent model: the scheduler and the
// cache are real, the model is not. Counts only; docs/caching.md defines what could be shared.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

using Tokens = std::vector<int32_t>;

// Tokens that templates write; contents have others.
constexpr int32_t kMessageEnd = 99;
constexpr int32_t kMessageStart = 98;
constexpr int32_t kThink = 97;
constexpr int kTurns = 24;

struct Model {
  std::string name;
  std::vector<LayerCacheSpec> layers;
  int64_t tight_arena = 0;  // holds a conversation of kTurns turns, but not much more
  bool checkpoints = false;
};

std::vector<Model> Models() {
  return {{"states alone", {RecurrentLayer(), RecurrentLayer()}, 40},
          {"states and keys", {RecurrentLayer(), StaticLayer()}, 400},
          {"states and a window", {RecurrentLayer(), SlidingLayer(20)}, 400},
          {"states of prompts", {PromptAwareLayer(), StaticLayer()}, 400},
          {"every kind", HybridLayers(), 1300},
          {"quantised states", WithWideStates(HybridLayers()), 1500, /*checkpoints=*/true}};
}

class SharedBeginningsTest : public ::testing::Test {
 protected:
  void Start(const Model& model, int64_t arena_size, double state_share = 0.5) {
    Scheduler::Options options;
    options.max_running = 4;
    options.max_step_tokens = 128;
    options.prefill_chunk_tokens = 64;
    options.max_sequence_tokens = 10000;
    options.share_prefixes = true;
    options.state_checkpoint_tokens = checkpoint_tokens_;
    h_.emplace(model.layers, arena_size, options, /*piece_bytes=*/256, model.checkpoints, state_share);
    random_.seed(5);
    seen_.clear();
    could_share_ = shared_ = 0;
  }

  Tokens Text(int64_t count) {
    Tokens tokens(count);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random_() % 90);
    return tokens;
  }
  static void Append(const Tokens& more, Tokens* to) { to->insert(to->end(), more.begin(), more.end()); }
  // A message as templates write it.
  static void AppendMessage(const Tokens& content, Tokens* to) {
    to->push_back(kMessageStart);
    Append(content, to);
    to->push_back(kMessageEnd);
  }

  // Runs a request, and counts what it shares. Returns its output.
  Tokens Serve(const Tokens& prompt, int64_t max_tokens) {
    Request request = h_->MakeRequest(1, max_tokens);
    request.prompt = prompt;
    for (size_t i = 0; i + 1 < prompt.size(); ++i) {
      if (prompt[i] == kMessageEnd) request.message_ends.push_back(static_cast<int32_t>(i + 1));
    }
    int64_t common = 0;
    for (const Tokens& tokens : seen_) {
      const auto end = std::mismatch(prompt.begin(), prompt.end(), tokens.begin(), tokens.end()).first;
      common = std::max<int64_t>(common, end - prompt.begin());
    }
    const RequestKey key = h_->Add(std::move(request));
    h_->RunToEnd();
    if (!seen_.empty()) {
      could_share_ += std::min<int64_t>(common, static_cast<int64_t>(prompt.size()) - 1);
      shared_ += h_->records[key].num_cached;
    }
    Tokens tokens = prompt;
    // What a model computes differently in prompts is not for other prompts.
    if (!h_->tiny.cache->plan().share_prompts_only) Append(h_->records[key].tokens, &tokens);
    seen_.push_back(std::move(tokens));
    return h_->records[key].tokens;
  }
  int64_t NumEvicted() const {
    int64_t count = 0;
    for (const PoolOccupancy& pool : h_->GetOccupancy().pools) count += pool.evicted_units;
    return count;
  }
  double Share() const { return static_cast<double>(shared_) / static_cast<double>(could_share_); }

 public:  // tests take their addresses
  // The workloads. Each turn appends a message and asks for an answer.
  void Grow() {
    Tokens conversation;
    AppendMessage(Text(150), &conversation);
    for (int turn = 0; turn < kTurns; ++turn) Turn(&conversation);
  }
  void Turn(Tokens* conversation) {
    AppendMessage(Text(20 + random_() % 40), conversation);
    conversation->push_back(kMessageStart);
    Append(Serve(*conversation, 10 + static_cast<int64_t>(random_() % 30)), conversation);
    conversation->push_back(kMessageEnd);
  }
  // A clock stands in the system's message, after a few tokens.
  void Front() {
    const Tokens head = Text(30);
    Tokens rest = Text(120);
    rest.push_back(kMessageEnd);
    for (int turn = 0; turn < kTurns; ++turn) {
      Tokens prompt = {kMessageStart};
      Append(head, &prompt);
      Append({91, 92 + turn / 10, 91 + turn % 10 / 2, turn % 10}, &prompt);
      Append(rest, &prompt);
      Tokens conversation = rest;
      AppendMessage(Text(20 + random_() % 40), &conversation);
      Append({conversation.begin() + static_cast<int64_t>(rest.size()), conversation.end()}, &prompt);
      prompt.push_back(kMessageStart);
      Append(Serve(prompt, 20), &conversation);
      conversation.push_back(kMessageEnd);
      rest = conversation;
    }
  }
  // The template opens the answer's reasoning, and leaves the reasoning of earlier answers out.
  void Strip() {
    Tokens conversation;
    AppendMessage(Text(150), &conversation);
    for (int turn = 0; turn < kTurns; ++turn) {
      AppendMessage(Text(20 + random_() % 40), &conversation);
      Tokens prompt = conversation;
      Append({kMessageStart, kThink}, &prompt);
      const Tokens output = Serve(prompt, 40);
      AppendMessage({output.begin() + 25, output.end()}, &conversation);
    }
  }
  // Between the turns come short requests that have nothing in common with them.
  void Side() {
    Tokens conversation;
    AppendMessage(Text(150), &conversation);
    for (int turn = 0; turn < kTurns; ++turn) {
      Turn(&conversation);
      for (int i = 0; i < 3; ++i) {
        Tokens prompt;
        AppendMessage(Text(20 + random_() % 20), &prompt);
        AppendMessage(Text(10 + random_() % 40), &prompt);
        prompt.push_back(kMessageStart);
        Serve(prompt, 8);
      }
    }
  }

 protected:
  int64_t checkpoint_tokens_ = Scheduler::Options::kAutoCheckpoints;
  std::optional<SchedulerHarness> h_;
  std::mt19937 random_;
  std::vector<Tokens> seen_;  // prompts, with what was generated after them
  int64_t could_share_ = 0;
  int64_t shared_ = 0;
};

TEST_F(SharedBeginningsTest, TheSecondRequestHits) {
  for (const Model& model : Models()) {
    SCOPED_TRACE(model.name);
    Start(model, 512);
    Tokens system;
    AppendMessage(Text(149), &system);
    for (int i = 0; i < 3; ++i) {
      Tokens prompt = system;
      AppendMessage(Text(30), &prompt);
      Serve(prompt, 5);
      EXPECT_EQ(could_share_, i * (static_cast<int64_t>(system.size()) + 1));  // the next message's first token too
      EXPECT_GE(shared_, i * static_cast<int64_t>(system.size()));
    }
  }
}

TEST_F(SharedBeginningsTest, AgentsShareNearlyAll) {
  for (const Model& model : Models()) {
    SCOPED_TRACE(model.name);
    for (const auto& [name, workload] :
         {std::pair{"grow", &SharedBeginningsTest::Grow}, std::pair{"front", &SharedBeginningsTest::Front},
          std::pair{"strip", &SharedBeginningsTest::Strip}}) {
      Start(model, /*arena_size=*/4096);
      (this->*workload)();
      RecordProperty(model.name + " " + name, std::to_string(Share()));
      EXPECT_GE(Share(), 0.95) << name << ": " << shared_ << " of " << could_share_;
    }
  }
}

TEST_F(SharedBeginningsTest, OtherRequestsBetweenTheTurnsTakeNothingFromThem) {
  for (const Model& model : Models()) {
    SCOPED_TRACE(model.name);
    Start(model, model.tight_arena);
    Side();
    RecordProperty(model.name + " side", std::to_string(Share()));
    EXPECT_GE(Share(), 0.95) << shared_ << " of " << could_share_;
    EXPECT_GT(NumEvicted(), 100) << "the arena held all: the test is too easy";
  }
}

TEST_F(SharedBeginningsTest, AFixedGridKeepsNoEndsOfMessages) {
  checkpoint_tokens_ = 512;
  Start(Models()[1], 512);
  Tokens system;
  AppendMessage(Text(149), &system);
  std::vector<int64_t> shared;
  for (int i = 0; i < 3; ++i) {
    Tokens prompt = system;
    AppendMessage(Text(30), &prompt);
    const int64_t before = shared_;
    Serve(prompt, 5);
    shared.push_back(shared_ - before);
  }
  EXPECT_EQ(shared[1], 0);
  EXPECT_GE(shared[2], 151);
}

// Keeping states costs copies, but no step.
TEST_F(SharedBeginningsTest, KeptStatesTakeNoSteps) {
  std::vector<int64_t> steps;
  for (const int64_t tokens : {int64_t{0}, int64_t{Scheduler::Options::kAutoCheckpoints}}) {
    checkpoint_tokens_ = tokens;
    Start(Models()[1], 4096);
    Tokens prompt;
    for (int i = 0; i < 20; ++i) AppendMessage(Text(37), &prompt);
    Serve(prompt, 5);
    steps.push_back(h_->num_steps);
  }
  EXPECT_EQ(steps[0], steps[1]);
}

}  // namespace
}  // namespace berth
