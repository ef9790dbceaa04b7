#include "server/delivery/held_events.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace berth {
namespace {

TokenEvent Token(int32_t token, FinishReason finish = FinishReason::kNone) {
  TokenEvent event;
  event.token = token;
  event.finish = finish;
  return event;
}
TokenEvent EndOf(FinishReason finish) { return Token(RowResult::kNoToken, finish); }
SaveEvent Saved(int64_t num_tokens, bool last = false) { return {.num_tokens = num_tokens, .last = last}; }

// The tokens that may go now; 1000 + its value for an end.
std::vector<int32_t> Drain(HeldEvents* held) {
  std::vector<int32_t> out;
  while (const std::optional<TokenEvent> event = held->Next()) {
    if (event->token >= 0) out.push_back(event->token);
    if (event->finish != FinishReason::kNone) out.push_back(1000 + static_cast<int32_t>(event->finish));
  }
  return out;
}
int32_t End(FinishReason finish) { return 1000 + static_cast<int32_t>(finish); }

using Tokens = std::vector<int32_t>;

TEST(HeldEventsTest, ATokenGoesWithItsSaveAndTheEndWithTheLast) {
  HeldEvents held;
  for (int32_t token : {1, 2, 3}) held.Add(Token(token));
  EXPECT_EQ(Drain(&held), Tokens());
  held.OnSaved(Saved(2));
  EXPECT_EQ(Drain(&held), (Tokens{1, 2}));
  held.Add(Token(4, FinishReason::kLength));
  held.OnSaved(Saved(3));
  EXPECT_EQ(Drain(&held), Tokens{3});
  held.OnSaved(Saved(4, /*last=*/true));
  EXPECT_EQ(Drain(&held), (Tokens{4, End(FinishReason::kLength)}));
}

// The engine hands a save over before it delivers the step's tokens.
TEST(HeldEventsTest, ASaveMayComeBeforeItsTokens) {
  HeldEvents held;
  held.OnSaved(Saved(2));
  EXPECT_EQ(Drain(&held), Tokens());
  for (int32_t token : {1, 2, 3}) held.Add(Token(token));
  EXPECT_EQ(Drain(&held), (Tokens{1, 2}));
  held.OnSaved(Saved(3, /*last=*/true));
  held.Add(EndOf(FinishReason::kCancelled));
  EXPECT_EQ(Drain(&held), (Tokens{3, End(FinishReason::kCancelled)}));
}

// A request that fails is not saved again.
TEST(HeldEventsTest, WhatTheLastSaveHasNotIsNeverDelivered) {
  HeldEvents held;
  for (int32_t token : {1, 2, 3}) held.Add(Token(token));
  held.OnSaved(Saved(1));
  held.Add(EndOf(FinishReason::kError));
  EXPECT_EQ(Drain(&held), Tokens{1});
  held.OnSaved(Saved(0, /*last=*/true));
  EXPECT_EQ(Drain(&held), Tokens{End(FinishReason::kError)});
}

TEST(HeldEventsTest, AFailedSaveEndsTheRequestWithItsError) {
  for (const bool last : {false, true}) {
    HeldEvents held;
    for (int32_t token : {1, 2, 3}) held.Add(Token(token));
    held.OnSaved(Saved(1));
    held.OnSaved({.key = 5, .last = last, .error = absl::ResourceExhaustedError("the disk is full")});
    held.Add(Token(4, FinishReason::kLength));
    EXPECT_EQ(held.Next()->token, 1);
    const std::optional<TokenEvent> end = held.Next();
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->key, 5u);
    EXPECT_EQ(end->token, RowResult::kNoToken);
    EXPECT_EQ(end->finish, FinishReason::kError);
    EXPECT_EQ(end->outputs_left, 1) << "the engine goes on until it is told";
    EXPECT_EQ(end->error, absl::ResourceExhaustedError("deliver_saved_only: the session was not saved, so the output "
                                                       "ends here: the disk is full"));
  }
}

TEST(HeldEventsTest, TheTokensOfAResumedSessionAreSaved) {
  HeldEvents held;
  for (int32_t token : {1, 2}) {
    held.Add(Token(token));
    TokenEvent replayed = Token(token + 10);
    replayed.replayed = true;
    HeldEvents resumed;
    resumed.Add(replayed);
    EXPECT_EQ(Drain(&resumed), Tokens{token + 10});
    resumed.Add(Token(20));
    EXPECT_EQ(Drain(&resumed), Tokens());
    resumed.OnSaved(Saved(2));
    EXPECT_EQ(Drain(&resumed), Tokens{20});
    TokenEvent end = EndOf(FinishReason::kStop);
    end.replayed = true;  // the session had ended
    resumed.Add(end);
    EXPECT_EQ(Drain(&resumed), Tokens{End(FinishReason::kStop)});
  }
}

TEST(HeldEventsTest, InAnyOrderNoTokenGoesBeforeItsSave) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    HeldEvents held;
    Tokens delivered;
    int64_t computed = 0;
    int64_t saved = 0;
    const auto drain = [&] {
      for (int32_t token : Drain(&held)) delivered.push_back(token);
      ASSERT_LE(static_cast<int64_t>(delivered.size()), saved);
    };
    while (computed < 20) {
      if (random() % 2 == 0) held.Add(Token(static_cast<int32_t>(computed++)));
      // A save of a step is handed over before the step's token is.
      if (random() % 4 == 0) {
        saved = std::max(saved, static_cast<int64_t>(random() % (computed + 1)));
        held.OnSaved(Saved(saved));
      }
      drain();
    }
    EXPECT_EQ(static_cast<int64_t>(delivered.size()), saved);
    held.OnSaved(Saved(20, /*last=*/true));
    held.Add(EndOf(FinishReason::kStop));
    for (int32_t token : Drain(&held)) delivered.push_back(token);
    ASSERT_EQ(delivered.size(), 21u);
    for (int32_t i = 0; i < 20; ++i) EXPECT_EQ(delivered[i], i);
  }
}

}  // namespace
}  // namespace berth
