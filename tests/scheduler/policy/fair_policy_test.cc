// The choices of FairPolicy, made for sequences that no scheduler owns.
#include "scheduler/policy/fair_policy.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/scheduler/scheduler_harness.h"

namespace berth {
namespace {

// Plays the scheduler: it admits what the policy picks, and computes what it is told.
struct Stage {
  explicit Stage(FairPolicy::Options options = {}) : policy(std::move(options)) {}

  Sequence* Add(const std::string& tenant, int64_t prompt = 10, int64_t priority = 0) {
    Request request;
    request.key = ++last_key;
    request.prompt.assign(prompt, 1);
    request.max_tokens = 100;
    request.cache_salt = tenant;
    request.priority = priority;
    request.arrival = now;
    waiting.push_back(std::make_unique<Sequence>(std::move(request)));
    policy.OnArrival(*waiting.back());
    return waiting.back().get();
  }
  // Admits the next one.
  Sequence* Admit() {
    policy.OnPlan({.now = now, .num_tokens = 100, .chunk_tokens = 100, .free_sequences = 100}, running);
    const Sequence* picked = policy.PickToAdmit(waiting);
    const auto at = std::find_if(waiting.begin(), waiting.end(), [&](const auto& s) { return s.get() == picked; });
    policy.OnAdmit(*picked);
    running.push_back(std::move(*at));
    waiting.erase(at);
    return running.back().get();
  }
  void End(const Sequence* sequence) {
    policy.OnEnd(*sequence);
    const auto is_it = [&](const std::unique_ptr<Sequence>& s) { return s.get() == sequence; };
    std::erase_if(waiting, is_it);
    std::erase_if(running, is_it);
  }
  // As if the step had computed a sequence's prompt, and `decode` tokens of its output.
  void Compute(const Sequence* sequence, int64_t decode) {
    policy.OnComputed(*sequence, {.prefill = sequence->prompt_length});
    if (decode > 0) policy.OnComputed(*sequence, {.decode = decode});
  }
  double Counter(const std::string& tenant) {
    const Sequence* probe = Add(tenant);
    const double counter = probe->turn.account->counter;
    End(probe);
    return counter;
  }

  FairPolicy policy;
  WaitingSequences waiting;
  std::vector<std::unique_ptr<Sequence>> running;
  absl::Time now = absl::UnixEpoch();
  RequestKey last_key = 0;
};

TEST(FairPolicy, AdmitsTheTenantThatGotLeast) {
  Stage stage;
  Sequence* const a1 = stage.Add("a");
  Sequence* const a2 = stage.Add("a");
  Sequence* const a3 = stage.Add("a");
  Sequence* const b1 = stage.Add("b");
  EXPECT_EQ(stage.Admit(), a1);
  EXPECT_EQ(stage.Admit(), b1) << "a has paid for a prompt";
  Sequence* const b2 = stage.Add("b");
  stage.Compute(a1, 1);
  EXPECT_EQ(stage.Admit(), b2);
  EXPECT_EQ(stage.Admit(), a2);
  EXPECT_EQ(stage.Admit(), a3);
}

TEST(FairPolicy, ChargesEachTokenOnce) {
  Stage stage({.weights = {.by_tenant = {{"half", 0.5}}}, .prefill_token_cost = 1, .decode_token_cost = 2});
  const Sequence* const a = stage.Add("a", 10);
  stage.Add("a");
  EXPECT_EQ(stage.Admit(), a);
  const TenantAccount& account = *a->turn.account;
  EXPECT_EQ(account.counter, 10) << "its prefill is paid in advance";
  stage.policy.OnComputed(*a, {.prefill = 6});
  EXPECT_EQ(account.counter, 10);
  stage.policy.OnPreempt(*a);
  EXPECT_EQ(account.counter, 6) << "what it has not computed is paid back";
  stage.End(a);
  EXPECT_EQ(account.counter, 6);
  const Sequence* const next = stage.Admit();
  EXPECT_EQ(account.counter, 16);
  stage.policy.OnComputed(*next, {.prefill = 10, .again = 0});
  stage.policy.OnComputed(*next, {.decode = 3});
  EXPECT_EQ(account.counter, 22);
  stage.policy.OnComputed(*next, {.prefill = 13, .again = 12});
  EXPECT_EQ(account.counter, 23) << "twelve of them were computed before a preemption";

  stage.Add("half", 10);
  const double lifted = stage.waiting.back()->turn.account->counter;
  const Sequence* const half = stage.Admit();
  EXPECT_EQ(half->turn.account->counter, lifted + 20);
}

TEST(FairPolicy, LiftsATenantThatBeginsToWait) {
  Stage stage;
  for (int i = 0; i < 3; ++i) stage.Add("busy");
  stage.Compute(stage.Admit(), 500);
  const double busy = stage.waiting[0]->turn.account->counter;
  const Sequence* const late = stage.Add("late");
  EXPECT_EQ(late->turn.account->counter, busy) << "the time before its first request earns nothing";
  // One that is above keeps its debt.
  stage.Compute(late, 1000);
  stage.End(late);
  EXPECT_EQ(stage.Counter("late"), busy + 1000 * 2 + 10);
}

TEST(FairPolicy, ForgetsWhatWasUsedWhileNobodyWaited) {
  Stage stage;
  Sequence* const a = stage.Add("a");
  Sequence* const b = stage.Add("b");
  stage.Admit();
  stage.Admit();
  stage.Compute(a, 10000);
  stage.Compute(b, 1);
  // No tenant waited while a used that.
  stage.Add("b");
  stage.Add("a");
  EXPECT_EQ(stage.waiting[0]->turn.account->counter, stage.waiting[1]->turn.account->counter);
}

TEST(FairPolicy, PriorityMovesTheArrivalAndWaitingMakesUpForIt) {
  Stage stage({.ageing = absl::Seconds(2)});
  Sequence* const low = stage.Add("t", 10, -1);
  Sequence* const normal = stage.Add("t");
  Sequence* const high = stage.Add("t", 10, 5);
  stage.now += absl::Seconds(9);
  Sequence* const late = stage.Add("t", 10, 4);  // one second too late to overtake
  Sequence* const later = stage.Add("t", 10, 5);
  for (const Sequence* expected : {high, later, normal, late, low}) EXPECT_EQ(stage.Admit(), expected);
}

TEST(FairPolicy, AClockSetBackChangesNoOrder) {
  Stage stage;
  Sequence* const first = stage.Add("t");
  stage.now -= absl::Hours(1);
  Sequence* const second = stage.Add("t");
  EXPECT_EQ(stage.Admit(), first);
  EXPECT_EQ(stage.Admit(), second);
}

// New tenants come all the time, each with nothing on its counter, and one that has used much waits behind them.
TEST(FairPolicy, BoundsTheWaitWhateverArrives) {
  constexpr int64_t kOthers = 20;
  Stage stage({.max_wait = absl::Seconds(30)});
  const auto add_new = [&] { stage.Add(absl::StrCat("new ", stage.last_key)); };
  Sequence* const first = stage.Add("old");
  for (int64_t i = 0; i < kOthers; ++i) add_new();
  stage.Admit();
  stage.Compute(first, 1'000'000);
  const Sequence* const old = stage.Add("old");
  int64_t num_admissions = 0;
  int64_t num_overdue = 0;  // admissions after it was overdue
  const absl::Time arrival = stage.now;
  while (num_overdue < 1000) {
    add_new();
    const Sequence* const admitted = stage.Admit();
    ++num_admissions;
    if (stage.now - arrival > absl::Seconds(30)) ++num_overdue;
    if (admitted == old) break;
    stage.Compute(admitted, 1);
    stage.End(admitted);
    stage.now += absl::Milliseconds(100);
  }
  EXPECT_GT(num_admissions, 300) << "its debt counts until it is overdue";
  EXPECT_LE(num_overdue, (kOthers + 1) * FairPolicy::kOverdueTurn);
}

TEST(FairPolicy, OverdueTenantsGetNoMoreThanTheirTurns) {
  Stage stage({.weights = {.by_tenant = {{"small", 0.0001}}}, .max_wait = absl::Seconds(1)});
  int64_t num_small = 0;
  for (int i = 0; i < 300; ++i) {
    stage.Add("small");
    stage.Add("large");
  }
  for (int i = 0; i < 200; ++i) {
    const Sequence* const admitted = stage.Admit();
    num_small += admitted->request.cache_salt == "small" ? 1 : 0;
    stage.Compute(admitted, 5);
    stage.now += absl::Milliseconds(500);
  }
  EXPECT_GE(num_small, 200 / FairPolicy::kOverdueTurn - 1);
  EXPECT_LE(num_small, 200 / FairPolicy::kOverdueTurn + 2);
}

TEST(FairPolicy, KeepsFewAccounts) {
  Stage stage({.max_idle_tenants = 100});
  stage.Add("steady", 1000);
  stage.Add("steady", 1000);
  Sequence* const steady = stage.Admit();
  for (int i = 0; i < 100'000; ++i) {
    Sequence* const once = stage.Add(absl::StrCat("tenant ", i));
    stage.policy.OnAdmit(*once);  // it overtakes, so that its account is above the floor when it ends
    stage.Compute(once, i % 50);
    stage.End(once);
    ASSERT_LE(stage.policy.accounts().num_accounts(), 100u + 2);
  }
  EXPECT_EQ(stage.policy.accounts().num_accounts(), 100u + 1);
  EXPECT_EQ(stage.policy.accounts().num_busy(), 1u);
  stage.End(steady);
  stage.End(stage.waiting[0].get());
  EXPECT_EQ(stage.policy.accounts().num_accounts(), 100u);
  EXPECT_EQ(stage.policy.accounts().num_busy(), 0u);
}

TEST(FairPolicy, GivesPrefillToTheTenantsFurthestBehindFirst) {
  Stage stage;
  for (const char* tenant : {"first", "heavy", "heavy", "light"}) stage.Add(tenant, 60);
  stage.Add("next", 20);
  std::vector<Sequence*> running;
  for (int i = 0; i < 4; ++i) {
    Sequence* const sequence = stage.waiting.front().get();
    stage.policy.OnAdmit(*sequence);
    stage.running.push_back(std::move(stage.waiting.front()));
    stage.waiting.pop_front();
    running.push_back(sequence);
  }
  // The first gets its chunk anyway. 62 are left: 20 for the next admission, 40 for light, and what then remains.
  stage.policy.OnPlan({.now = stage.now, .num_tokens = 102, .chunk_tokens = 40, .free_sequences = 1}, stage.running);
  EXPECT_EQ(stage.policy.TokenLimit(*running[1], TokenUse::kPrefill, 62), 2);
  EXPECT_EQ(stage.policy.TokenLimit(*running[2], TokenUse::kPrefill, 60), 0);
  EXPECT_EQ(stage.policy.TokenLimit(*running[3], TokenUse::kPrefill, 60), 40);
  EXPECT_EQ(stage.policy.TokenLimit(*running[0], TokenUse::kDrafts, 20), 0);
  EXPECT_EQ(stage.policy.TokenLimit(*stage.waiting[0], TokenUse::kAdmission, 20), 20);
  // None is kept for an admission when nothing can be admitted.
  stage.policy.OnPlan({.now = stage.now, .num_tokens = 102, .chunk_tokens = 40, .free_sequences = 0}, stage.running);
  EXPECT_EQ(stage.policy.TokenLimit(*running[1], TokenUse::kPrefill, 62), 22);
  EXPECT_EQ(stage.policy.TokenLimit(*running[3], TokenUse::kPrefill, 40), 40);
  EXPECT_EQ(stage.policy.TokenLimit(*running[0], TokenUse::kDrafts, 20), 20);
  // Nor when there was no room for it a moment ago.
  stage.policy.PickToAdmit(stage.waiting);
  stage.policy.OnPlan({.now = stage.now, .num_tokens = 102, .chunk_tokens = 40, .free_sequences = 1}, stage.running);
  EXPECT_EQ(stage.policy.TokenLimit(*running[1], TokenUse::kPrefill, 62), 22);
}

// What one sequence leaves of its tenant's part of a step is for the tenant's others.
TEST(FairPolicy, ASequenceTakesAtMostAChunkOfItsTenantsTokens) {
  Stage stage;
  std::vector<Sequence*> running;
  for (const auto& [tenant, tokens] :
       std::vector<std::pair<std::string, int64_t>>{{"first", 1}, {"a", 600}, {"a", 600}, {"a", 600}, {"b", 2000}}) {
    stage.Add(tenant, tokens);
    running.push_back(stage.Admit());
  }
  const auto plan = [&] {
    stage.policy.OnPlan({.now = stage.now, .num_tokens = 501, .chunk_tokens = 256}, stage.running);
  };
  plan();  // the first takes a token; b has been charged more
  EXPECT_EQ(stage.policy.TokenLimit(*running[1], TokenUse::kPrefill, 500), 500);
  EXPECT_EQ(stage.policy.TokenLimit(*running[2], TokenUse::kPrefill, 244), 244);
  EXPECT_EQ(stage.policy.TokenLimit(*running[4], TokenUse::kPrefill, 0), 0);
  running[1]->parked = true;  // it takes none until its group's first member is there
  plan();
  EXPECT_EQ(stage.policy.TokenLimit(*running[1], TokenUse::kPrefill, 500), 500);
  EXPECT_EQ(stage.policy.TokenLimit(*running[2], TokenUse::kPrefill, 500), 500);
  EXPECT_EQ(stage.policy.TokenLimit(*running[3], TokenUse::kPrefill, 244), 244);
}

// This holds in steps of the scheduler.
TEST(FairPolicy, TheStepsOfTwoTenantsAreFull) {
  FairPolicy policy({});
  Scheduler::Options options = {.max_running = 8,
                                .max_step_tokens = 64,
                                .prefill_chunk_tokens = 32,
                                .max_sequence_tokens = 1000,
                                .policy = &policy};
  SchedulerHarness h({StaticLayer()}, 2000, options);
  const auto add = [&](const char* tenant, int64_t prompt, int64_t output) {
    Request request = h.MakeRequest(prompt, output);
    request.cache_salt = tenant;
    return h.Add(std::move(request));
  };
  add("first", 4, 200);
  h.Step();
  add("a", 300, 2);
  add("a", 300, 2);
  h.Step();
  add("b", 900, 2);  // from its admission on it has been charged more
  for (int i = 0; i < 8; ++i) {
    h.Step();
    int64_t tokens = 0;
    for (const RowShape& row : h.shapes) tokens += row.num_tokens;
    EXPECT_EQ(tokens, options.max_step_tokens) << "step " << i;
  }
  h.RunToEnd();
  h.ExpectAllEnded();
}

// Sequences with leases of these many tokens, in order of admission.
struct Holders {
  Holders(Stage* stage, const std::vector<std::pair<std::string, int64_t>>& wanted) : tiny({StaticLayer()}, 200) {
    for (const auto& [tenant, tokens] : wanted) {
      stage->Add(tenant, tokens);
      stage->policy.OnAdmit(*stage->waiting.back());
      stage->waiting.back()->lease = tiny.cache->NewLease();
      EXPECT_TRUE(stage->waiting.back()->lease.Grow(tokens).ok());
      sequences.push_back(std::move(stage->waiting.back()));
      stage->waiting.pop_back();
    }
    stage->policy.OnStep(sequences, absl::Seconds(1));
  }
  size_t Pick(Stage* stage, size_t beneficiary) {
    const RunningSequences candidates = absl::MakeConstSpan(sequences).subspan(beneficiary + 1);
    const size_t picked = stage->policy.PickToPreempt(candidates, *sequences[beneficiary]);
    return picked == SchedulingPolicy::kItself ? beneficiary : beneficiary + 1 + picked;
  }

  TinyCache tiny;
  std::vector<std::unique_ptr<Sequence>> sequences;
};

TEST(FairPolicy, PreemptsTheYoungestOfTheTenantThatHoldsMost) {
  Stage stage({.weights = {.by_tenant = {{"large", 10}}}});
  Holders holders(&stage, {{"light", 8}, {"heavy", 40}, {"large", 100}, {"heavy", 4}, {"light", 8}});
  EXPECT_EQ(holders.Pick(&stage, 0), 3u) << "heavy's youngest; large has ten times the weight";
}

TEST(FairPolicy, PreemptsTheLowestPriorityOfATenant) {
  Stage stage;
  Holders holders(&stage, {{"t", 8}, {"t", 8}, {"t", 8}});
  holders.sequences[1]->turn.due += absl::Seconds(5);
  EXPECT_EQ(holders.Pick(&stage, 0), 1u);
}

TEST(FairPolicy, PreemptsTheOneThatGrowsInsteadOfATenantWithinItsShare) {
  {
    Stage stage;
    Holders holders(&stage, {{"heavy", 20}, {"heavy", 20}, {"light", 12}, {"heavy", 4}});
    EXPECT_EQ(holders.Pick(&stage, 1), 3u) << "heavy has a younger one";
  }
  {
    Stage stage;
    Holders holders(&stage, {{"heavy", 20}, {"heavy", 20}, {"light", 12}});
    EXPECT_EQ(holders.Pick(&stage, 1), 1u);
  }
  {
    Stage stage;
    Holders holders(&stage, {{"heavy", 40}, {"light", 12}});
    EXPECT_EQ(holders.Pick(&stage, 0), 0u);
    stage.policy.OnPlan({.now = stage.now}, holders.sequences);
    EXPECT_EQ(holders.Pick(&stage, 0), 1u) << "the first running request is never preempted";
  }
  {
    Stage stage;
    Holders holders(&stage, {{"a", 20}, {"b", 20}});
    EXPECT_EQ(holders.Pick(&stage, 0), 1u) << "the younger one of two equals";
  }
}

TEST(FairPolicy, ChargesForTheCacheThatIsHeld) {
  Stage stage({.cache_gib_second_cost = static_cast<double>(1 << 30)});  // one for a byte and second
  stage.Add("waits");
  Holders holders(&stage, {{"a", 8}, {"b", 4}});
  // Blocks of four tokens have 128 bytes.
  EXPECT_EQ(holders.sequences[0]->turn.account->counter, 8 + 256);
  EXPECT_EQ(holders.sequences[1]->turn.account->counter, 4 + 128);
  holders.sequences[0]->hit.num_tokens = 4;  // it shares half of them
  stage.policy.OnStep(holders.sequences, absl::Seconds(2));
  EXPECT_EQ(holders.sequences[0]->turn.account->counter, 8 + 256 + 2 * 128);
  stage.policy.OnStep(holders.sequences, -absl::Hours(1));
  EXPECT_EQ(holders.sequences[1]->turn.account->counter, 4 + 128 + 2 * 128) << "a clock set back pays nothing back";
}

}  // namespace
}  // namespace berth
