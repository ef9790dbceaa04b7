// What subscribers hear of an engine's prefixes, with a model without weights.
#include "server/vllm/kv_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/internal/raw_logging.h"
#include "base/steady_clock.h"
#include "tests/testing/fake_model_runner.h"
#include "tests/testing/recording_sink.h"
#include "tests/testing/tiny_cache.h"
#include "tests/testing/wait_until.h"

namespace berth {
namespace {

namespace common = ::smg::grpc::common;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr size_t kPlenty = 1 << 20;

std::vector<int32_t> Tokens(int count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A subscriber that reads when the test says so.
class Reader {
 public:
  Reader(KvEvents* events, const std::string& tenant, uint64_t start = 0, size_t max_bytes = kPlenty)
      : events_(events),
        subscription_(std::make_shared<KvSubscription>(
            [this] {
              MutexLock lock(&mutex_);
              ready_ = true;
              changed_.SignalAll();
            },
            max_bytes)) {
    events_->Subscribe(tenant, start, subscription_);
  }
  ~Reader() {
    subscription_->End(absl::CancelledError("the test is over"));
    events_->Unsubscribe(subscription_);
  }

  // Waits for a batch, up to kHangLimit. Null: the subscription has ended.
  KvBatch Next() {
    KvBatch batch;
    while (true) {
      if (!taking_) WaitUntilReady();
      taking_ = true;
      switch (subscription_->Take(&batch)) {
        case KvSubscription::Next::kBatch:
          Take(*batch);
          return batch;
        case KvSubscription::Next::kEnd:
          return nullptr;
        case KvSubscription::Next::kNothing:
          taking_ = false;
      }
    }
  }
  // Reads until this number of blocks is stored.
  void ReadUntil(size_t num_blocks) {
    while (blocks_.size() != num_blocks) ASSERT_NE(Next(), nullptr) << subscription_->status();
  }
  absl::Status status() const { return subscription_->status(); }
  uint64_t sequence() const { return sequence_; }
  const std::map<int64_t, std::vector<uint32_t>>& blocks() const { return blocks_; }

 private:
  void WaitUntilReady() {
    const absl::Time until = SteadyNow() + kHangLimit;
    MutexLock lock(&mutex_);
    while (!ready_ && SteadyNow() < until) changed_.WaitFor(&mutex_, until - SteadyNow());
    if (!ready_) ABSL_RAW_LOG(FATAL, "no batch came");
    ready_ = false;
  }
  void Take(const common::KvEventBatch& batch) {
    EXPECT_TRUE(sequence_ == 0 || batch.sequence_number() == sequence_ + 1) << batch.sequence_number();
    sequence_ = batch.sequence_number();
    for (const common::KvCacheEvent& event : batch.events()) {
      if (event.has_cleared()) blocks_.clear();
      for (int64_t hash : event.removed().block_hashes()) EXPECT_EQ(blocks_.erase(hash), 1u);
      const common::KvBlocksStored& stored = event.stored();
      if (stored.has_parent_block_hash()) {
        EXPECT_EQ(blocks_.count(stored.parent_block_hash()), 1u) << "stored before its parent";
      }
      for (const common::KvBlock& block : stored.blocks()) {
        blocks_[block.block_hash()] = {block.token_ids().begin(), block.token_ids().end()};
      }
    }
  }

  KvEvents* const events_;
  Mutex mutex_;
  CondVar changed_;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  bool taking_ = false;  // until Take says that there is nothing
  const std::shared_ptr<KvSubscription> subscription_;
  uint64_t sequence_ = 0;
  std::map<int64_t, std::vector<uint32_t>> blocks_;
};

class KvEventsTest : public ::testing::Test {
 protected:
  void SetUp() override { Make({StaticLayer(), RecurrentLayer()}); }
  void TearDown() override { EXPECT_EQ(runner_->mismatch(), ""); }
  void Make(const std::vector<LayerCacheSpec>& layers) {
    events_.reset();
    engine_.reset();
    tiny_.emplace(layers, /*size=*/400);
    runner_.emplace(tiny_->cache.get());
    Engine::Options options;
    options.scheduler.share_prefixes = true;
    options.scheduler.max_sequence_tokens = 200;
    options.check_integrity = true;
    engine_ = *Engine::Create(tiny_->cache.get(), &*runner_, &sink_, options);
    engine_->Start();
    options_.engine = engine_.get();
    options_.plan = tiny_->cache->plan();
    options_.now = [this] { return absl::FromUnixSeconds(now_); };
    MakeEvents();
  }
  void MakeEvents() { events_ = std::make_unique<KvEvents>(options_); }
  // Generates one token after `tokens`.
  void Serve(const std::vector<int32_t>& tokens, const std::string& tenant = "") {
    Request request;
    request.key = ++last_key_;
    request.prompt = tokens;
    request.max_tokens = 1;
    request.cache_salt = tenant;
    ASSERT_TRUE(engine_->Submit(request).ok());
    ASSERT_EQ(sink_.WaitFor(request.key).num_ends, 1);
  }

  std::atomic<int64_t> now_{1800000000};  // seconds
  RecordingSink sink_;
  std::optional<TinyCache> tiny_;
  std::optional<FakeModelRunner> runner_;
  std::unique_ptr<Engine> engine_;
  KvEvents::Options options_;
  std::unique_ptr<KvEvents> events_;
  RequestKey last_key_ = 0;
};

TEST_F(KvEventsTest, ASnapshotComesFirstAndThenWhatChanges) {
  Reader reader(events_.get(), "");
  const KvBatch snapshot = reader.Next();
  ASSERT_NE(snapshot, nullptr);
  EXPECT_EQ(snapshot->snapshot().count(), 1u);
  EXPECT_EQ(snapshot->snapshot().blocks(), 0u);
  ASSERT_THAT(snapshot->events(), SizeIs(1));
  EXPECT_TRUE(snapshot->events(0).has_cleared());
  Serve(Tokens(10));
  const KvBatch batch = reader.Next();
  EXPECT_FALSE(batch->has_snapshot());
  EXPECT_EQ(batch->sequence_number(), snapshot->sequence_number() + 1);
  EXPECT_EQ(batch->timestamp(), 1.8e9);
  ASSERT_THAT(batch->events(), SizeIs(1));
  EXPECT_EQ(batch->events(0).event_id(), 1u);
  const common::KvBlocksStored& stored = batch->events(0).stored();
  EXPECT_FALSE(stored.has_parent_block_hash());
  EXPECT_EQ(stored.group_idx(), 0u);
  EXPECT_EQ(stored.kv_cache_spec_kind(), "full_attention");
  ASSERT_THAT(stored.blocks(), SizeIs(2));
  EXPECT_THAT(stored.blocks(1).token_ids(), testing::ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(stored.blocks(1).block_size(), 4);
}

TEST_F(KvEventsTest, BlocksOfAModelWithoutAttentionStandForItsStates) {
  Make({RecurrentLayer()});
  Reader reader(events_.get(), "");
  reader.Next();
  Serve(Tokens(10));
  const KvBatch batch = reader.Next();
  EXPECT_FALSE(batch->events(0).stored().has_group_idx());
  EXPECT_FALSE(batch->events(0).stored().has_kv_cache_spec_kind());
  EXPECT_THAT(batch->events(0).stored().blocks(), SizeIs(2));
}

TEST_F(KvEventsTest, ALateSubscriberGetsAllInPartsAndThenTheSameAsOthers) {
  options_.batch_blocks = 3;
  MakeEvents();
  Reader first(events_.get(), "");
  Serve(Tokens(21));
  Serve(Tokens(9, 40));
  first.ReadUntil(7);
  Reader late(events_.get(), "");
  const KvBatch part = late.Next();
  EXPECT_EQ(part->snapshot().count(), 3u);
  EXPECT_EQ(part->snapshot().blocks(), 7u);
  EXPECT_EQ(part->events(1).event_id(), 0u);
  EXPECT_EQ(late.Next()->snapshot().index(), 1u);
  EXPECT_EQ(late.Next()->snapshot().index(), 2u);
  EXPECT_EQ(late.blocks(), first.blocks());
  EXPECT_EQ(late.sequence(), first.sequence());
  Serve(Tokens(9, 80));
  EXPECT_EQ(first.Next(), late.Next());
}

TEST_F(KvEventsTest, WhatIsFlushedIsRemoved) {
  Reader reader(events_.get(), "");
  Serve(Tokens(21));
  reader.ReadUntil(5);
  engine_->DropPrefixes(std::nullopt, [](const FreedBytes&, const absl::Status&) {});
  reader.ReadUntil(0);
}

TEST_F(KvEventsTest, EachTenantHearsOfItsOwnPrefixes) {
  Reader a(events_.get(), "a");
  Reader b(events_.get(), "b");
  Serve(Tokens(9), "a");
  Serve(Tokens(13, 50), "b");
  Serve(Tokens(17, 80), "c");
  a.ReadUntil(2);
  b.ReadUntil(3);
  for (const auto& [hash, tokens] : b.blocks()) EXPECT_GE(tokens[0], 50u);
  EXPECT_LT(a.blocks().begin()->second[0], 50u);
}

TEST_F(KvEventsTest, ASubscriberGoesOnWhereItWas) {
  Reader other(events_.get(), "");
  uint64_t sequence = 0;
  {
    Reader reader(events_.get(), "");
    Serve(Tokens(9));
    reader.ReadUntil(2);
    sequence = reader.sequence();
  }
  Serve(Tokens(9, 40));
  other.ReadUntil(4);
  Reader back(events_.get(), "", sequence);
  EXPECT_EQ(back.Next()->sequence_number(), sequence) << "which it has already";
  EXPECT_EQ(back.Next()->events(0).stored().blocks(0).token_ids(0), 40u);
  Reader next(events_.get(), "", other.sequence() + 1);
  Serve(Tokens(9, 80));
  EXPECT_EQ(next.Next()->events(0).stored().blocks(0).token_ids(0), 80u);
}

// A part of a snapshot has the number of a batch that is kept.
TEST_F(KvEventsTest, NoneGoesOnWithinASnapshot) {
  options_.batch_blocks = 3;
  MakeEvents();
  Reader first(events_.get(), "");
  for (int i = 0; i < 4; ++i) Serve(Tokens(9, 20 * i));
  first.ReadUntil(8);
  uint64_t sequence = 0;
  {
    Reader late(events_.get(), "");
    EXPECT_EQ(late.Next()->snapshot().count(), 3u);
    sequence = late.Next()->sequence_number();
  }
  for (const uint64_t start : {sequence, sequence + 1}) {
    Reader back(events_.get(), "", start);
    EXPECT_EQ(back.Next(), nullptr);
    EXPECT_TRUE(absl::IsOutOfRange(back.status())) << back.status();
  }
  Reader whole(events_.get(), "", first.sequence() + 1);
  Serve(Tokens(9, 85));
  EXPECT_NE(whole.Next(), nullptr) << "a subscriber that has read everything continues";
}

TEST_F(KvEventsTest, APlaceThatIsNotKeptIsOutOfRange) {
  Reader other(events_.get(), "");
  other.Next();
  for (const uint64_t start : {uint64_t{1}, other.sequence() + 2, ~uint64_t{0}}) {
    Reader reader(events_.get(), "", start);
    EXPECT_EQ(reader.Next(), nullptr);
    EXPECT_TRUE(absl::IsOutOfRange(reader.status())) << reader.status();
  }
}

TEST_F(KvEventsTest, ATenantIsFollowedForAWhileAfterItsLastSubscriber) {
  uint64_t sequence = 0;
  const auto visit = [&] {
    Reader reader(events_.get(), "");
    reader.Next();
    sequence = reader.sequence();
  };
  visit();
  {
    Reader back(events_.get(), "", sequence + 1);
    Serve(Tokens(9));
    EXPECT_NE(back.Next(), nullptr);
  }
  options_.linger = absl::ZeroDuration();
  MakeEvents();
  visit();
  ++now_;
  {
    Reader other(events_.get(), "other");
    EXPECT_NE(other.Next(), nullptr);  // by now, the one before it has left
  }
  Reader back(events_.get(), "", sequence + 1);
  EXPECT_EQ(back.Next(), nullptr);
  EXPECT_TRUE(absl::IsOutOfRange(back.status())) << back.status();
}

TEST_F(KvEventsTest, ASubscriberThatDoesNotReadEndsAlone) {
  Reader slow(events_.get(), "", 0, /*max_bytes=*/300);
  Reader reader(events_.get(), "");
  size_t num_blocks = 0;
  for (int i = 0; i < 10; ++i) {
    Serve(Tokens(9, 10 * i));
    reader.ReadUntil(num_blocks += 2);
  }
  EXPECT_EQ(slow.Next(), nullptr);
  EXPECT_TRUE(absl::IsDataLoss(slow.status()));
  EXPECT_THAT(slow.status().message(), HasSubstr("with start_sequence_number 0"));
}

TEST_F(KvEventsTest, NothingIsMissedWhenTheLogOverflows) {
  options_.log_words = 64;
  MakeEvents();
  Reader reader(events_.get(), "");
  size_t num_blocks = 0;
  for (int i = 0; i < 4; ++i) {
    Serve(Tokens(17, 20 * i));
    reader.ReadUntil(num_blocks += 4);
  }
  engine_->DropPrefixes(std::nullopt, [](const FreedBytes&, const absl::Status&) {});
  reader.ReadUntil(0);
}

TEST_F(KvEventsTest, ThereAreLimitsAndAnEnd) {
  options_.max_subscribers = 2;
  MakeEvents();
  Reader reader(events_.get(), "");
  reader.Next();
  {
    Reader second(events_.get(), "");
    Reader third(events_.get(), "");
    EXPECT_EQ(third.Next(), nullptr);
    EXPECT_TRUE(absl::IsResourceExhausted(third.status())) << third.status();
  }
  Reader fourth(events_.get(), "");
  EXPECT_NE(fourth.Next(), nullptr) << "the others left";
  events_->Stop();
  EXPECT_EQ(reader.Next(), nullptr);
  EXPECT_TRUE(absl::IsUnavailable(reader.status())) << reader.status();
  Reader last(events_.get(), "");
  EXPECT_EQ(last.Next(), nullptr);
  EXPECT_TRUE(absl::IsUnavailable(last.status()));
}

}  // namespace
}  // namespace berth
