// What the mirror says of the prefix index, against what sequences then find there.
#include "cache/prefix_mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/prefix_log.h"
#include "tests/testing/tiny_cache.h"

namespace berth {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr char kSalt[] = "a";
constexpr int64_t kBlock = kTinyBlockTokens;
// In no prompt.
constexpr int32_t kOther = 999;

// What a subscriber makes of the changes.
class Subscriber {
 public:
  void Take(const PrefixMirror::Changes& changes) {
    for (uint64_t hash : changes.removed) {
      ASSERT_EQ(blocks_.count(hash), 1u) << "removed without having been stored";
      by_content_.erase(blocks_[hash]);
      blocks_.erase(hash);
    }
    Store(changes.stored);
  }
  void Store(const std::vector<PrefixMirror::Chain>& chains) {
    for (const PrefixMirror::Chain& chain : chains) {
      uint64_t parent = chain.parent_hash;
      ASSERT_EQ(chain.tokens.size(), chain.hashes.size() * kBlock);
      for (size_t i = 0; i < chain.hashes.size(); ++i) {
        ASSERT_TRUE(parent == 0 || blocks_.count(parent) > 0) << "stored before its parent";
        const auto begin = chain.tokens.begin() + static_cast<int64_t>(i) * kBlock;
        const Content content = {parent, {begin, begin + kBlock}};
        ASSERT_TRUE(blocks_.emplace(chain.hashes[i], content).second) << "stored twice";
        ASSERT_TRUE(by_content_.emplace(content, chain.hashes[i]).second);
        parent = chain.hashes[i];
      }
    }
  }
  // The first blocks of `tokens` that are stored.
  int64_t Count(const std::vector<int32_t>& tokens) const {
    uint64_t hash = 0;
    for (size_t at = 0; at + kBlock <= tokens.size(); at += kBlock) {
      const auto begin = tokens.begin() + static_cast<int64_t>(at);
      const auto found = by_content_.find({hash, {begin, begin + kBlock}});
      if (found == by_content_.end()) return static_cast<int64_t>(at) / kBlock;
      hash = found->second;
    }
    return static_cast<int64_t>(tokens.size()) / kBlock;
  }
  bool operator==(const Subscriber& other) const { return blocks_ == other.blocks_; }
  size_t size() const { return blocks_.size(); }

 private:
  using Content = std::pair<uint64_t, std::vector<int32_t>>;
  std::map<uint64_t, Content> blocks_;
  std::map<Content, uint64_t> by_content_;
};

std::vector<int32_t> Tokens(int count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// A cache whose prefixes of kSalt are watched.
class Watched {
 public:
  explicit Watched(const std::vector<LayerCacheSpec>& layers, int64_t size = 64, bool checkpoints = false,
                   double state_share = 1, int64_t multiple = 1, size_t log_words = 1 << 12)
      : tiny_(layers, size, 256, checkpoints, state_share),
        log_(std::make_shared<PrefixLog>(log_words)),
        mirror_(tiny_.cache->plan(), multiple) {
    mirror_.Reset(tiny_.cache->WatchPrefixes(kSalt, log_));
  }

  Cache& cache() { return *tiny_.cache; }
  PrefixMirror& mirror() { return mirror_; }
  const Subscriber& subscriber() const { return subscriber_; }
  const std::shared_ptr<PrefixLog>& log() const { return log_; }
  int num_losses() const { return num_losses_; }

  // Takes what the cache has published.
  PrefixMirror::Changes Read() {
    tiny_.cache->PublishPrefixLog();
    std::vector<int32_t> words;
    if (!log_->Take(&words)) {
      ++num_losses_;
      mirror_.Reset(tiny_.cache->WatchPrefixes(kSalt, log_));
    } else {
      absl::Span<const int32_t> left = words;
      while (!left.empty()) mirror_.Apply(PrefixLog::Read(&left));
    }
    PrefixMirror::Changes changes = mirror_.TakeChanges();
    subscriber_.Take(changes);
    EXPECT_EQ(static_cast<size_t>(mirror_.num_usable()), subscriber_.size());
    return changes;
  }

  // A sequence that adopts what it can, computes the rest and tells the index, with states at `mark` tokens too.
  void Serve(const std::vector<int32_t>& tokens, bool checkpoint = true, int64_t mark = 0,
             const std::string& salt = kSalt) {
    SequenceLease lease = tiny_.cache->NewLease();
    std::vector<int32_t> more = tokens;
    more.push_back(kOther);
    const int64_t hit = lease.Adopt(salt, more).num_tokens;
    const int64_t rest = static_cast<int64_t>(tokens.size()) - hit;
    if (rest > 0) {
      ASSERT_TRUE(lease.Grow(rest).ok());
      if (mark > hit && mark < static_cast<int64_t>(tokens.size())) lease.MarkStates(mark);
    }
    lease.Publish(tokens, checkpoint);
  }
  int64_t Hit(std::vector<int32_t> tokens, int64_t multiple = 1) {
    tokens.push_back(kOther);
    SequenceLease lease = tiny_.cache->NewLease();
    return lease.Adopt(kSalt, tokens, multiple).num_tokens;
  }

 private:
  TinyCache tiny_;
  std::shared_ptr<PrefixLog> log_;
  PrefixMirror mirror_;
  Subscriber subscriber_;
  int num_losses_ = 0;
};

TEST(PrefixMirrorTest, KeysAreUsableToTheLastWholeBlock) {
  Watched watched({StaticLayer()});
  watched.Serve(Tokens(10));
  const PrefixMirror::Changes changes = watched.Read();
  ASSERT_THAT(changes.stored, SizeIs(1));
  EXPECT_EQ(changes.stored[0].parent_hash, 0u);
  EXPECT_EQ(changes.stored[0].tokens, Tokens(8));
  EXPECT_THAT(changes.removed, IsEmpty());
  watched.Serve(Tokens(13));
  const PrefixMirror::Changes more = watched.Read();
  ASSERT_THAT(more.stored, SizeIs(1));
  EXPECT_EQ(more.stored[0].parent_hash, changes.stored[0].hashes[1]);
  EXPECT_EQ(more.stored[0].tokens, Tokens(4, 8));
  watched.Serve(Tokens(13));
  EXPECT_TRUE(watched.Read().empty()) << "nothing new";
}

TEST(PrefixMirrorTest, ARecurrentModelsBlocksAreUsableUpToItsStates) {
  for (const auto& layers : {std::vector<LayerCacheSpec>{RecurrentLayer()}, {RecurrentLayer(), StaticLayer()}}) {
    Watched watched(layers);
    watched.Serve(Tokens(22), /*checkpoint=*/false, /*mark=*/9);
    const PrefixMirror::Changes changes = watched.Read();
    ASSERT_THAT(changes.stored, SizeIs(1));
    EXPECT_EQ(changes.stored[0].tokens, Tokens(8)) << "the blocks after the states are there, and of no use";
    watched.Serve(Tokens(22));
    EXPECT_EQ(watched.Read().stored[0].tokens, Tokens(12, 8));
  }
}

TEST(PrefixMirrorTest, BlocksAreNoLongerUsableOnceTheirStatesAreEvicted) {
  Watched watched({RecurrentLayer(), StaticLayer()}, /*size=*/64, /*checkpoints=*/false, /*state_share=*/0.005);
  watched.Serve(Tokens(9));
  const std::vector<uint64_t> hashes = watched.Read().stored[0].hashes;
  watched.Serve(Tokens(9, 100));  // there is room for one state
  const PrefixMirror::Changes changes = watched.Read();
  EXPECT_THAT(changes.removed, testing::UnorderedElementsAreArray(hashes));
  EXPECT_EQ(changes.stored[0].tokens, Tokens(8, 100));
}

TEST(PrefixMirrorTest, PathsThatPartAreChainsOfTheirOwn) {
  Watched watched({StaticLayer()});
  watched.Serve(Tokens(12));
  watched.Serve({0, 1, 2, 3, 50, 51, 52, 53});
  const PrefixMirror::Changes changes = watched.Read();
  ASSERT_THAT(changes.stored, SizeIs(2));
  EXPECT_EQ(changes.stored[1].parent_hash, changes.stored[0].hashes[0]);
  Subscriber late;
  late.Store(watched.mirror().GetAll());
  EXPECT_EQ(late, watched.subscriber());
}

TEST(PrefixMirrorTest, OtherTenantsAreNotSeen) {
  Watched watched({StaticLayer()});
  watched.Serve(Tokens(12), true, 0, "b");
  EXPECT_TRUE(watched.Read().empty());
}

TEST(PrefixMirrorTest, AForgottenPrefixIsRemovedAndMayComeBack) {
  Watched watched(HybridLayers());
  watched.Serve(Tokens(12));
  const std::vector<uint64_t> hashes = watched.Read().stored[0].hashes;
  watched.cache().ForgetPrefixes(std::nullopt);
  EXPECT_THAT(watched.Read().removed, testing::UnorderedElementsAreArray(hashes));
  watched.Serve(Tokens(12));
  EXPECT_EQ(watched.Read().stored[0].hashes, hashes) << "the same tokens have the same hash";
  watched.cache().ForgetPrefixes(std::nullopt);
  watched.Serve(Tokens(12));
  EXPECT_TRUE(watched.Read().empty()) << "gone and back between two reads";
}

TEST(PrefixMirrorTest, AfterALossOnlyWhatDiffersIsToldOf) {
  Watched watched({StaticLayer()}, /*size=*/64, false, 1, 1, /*log_words=*/256);
  watched.Serve(Tokens(12));
  watched.Read();
  ASSERT_EQ(watched.num_losses(), 0);
  for (int i = 1; i < 9; ++i) watched.Serve(Tokens(12, 100 * i));
  watched.cache().ForgetPrefixes("b");
  const PrefixMirror::Changes changes = watched.Read();
  EXPECT_EQ(watched.num_losses(), 1);
  EXPECT_THAT(changes.stored, SizeIs(8));
  EXPECT_THAT(changes.removed, IsEmpty());
  watched.Serve(Tokens(4, 2000));
  EXPECT_THAT(watched.Read().stored, SizeIs(1)) << "the log goes on after a loss";
}

TEST(PrefixMirrorTest, NothingIsLoggedThatNobodyWatches) {
  Watched watched({StaticLayer()});
  watched.cache().UnwatchPrefixes(kSalt);
  watched.cache().UnwatchPrefixes("never watched");
  watched.Serve(Tokens(12));
  EXPECT_TRUE(watched.Read().empty());
  EXPECT_TRUE(watched.cache().CheckIntegrity().ok()) << watched.cache().CheckIntegrity();
}

// The index evicts sinks last, so random schedules do not come here.
TEST(PrefixMirrorTest, ASequenceNeedsTheSinksToo) {
  const CachePlan plan = *BuildCachePlan({SlidingLayer(/*window=*/5, /*sink_tokens=*/4)}, kBlock);
  PrefixMirror mirror(plan);
  std::vector<int32_t> words;
  PrefixLog::Write({.node = 1}, &words);
  for (uint64_t node = 2; node <= 9; ++node) {
    const std::vector<int32_t> tokens = Tokens(kBlock, static_cast<int32_t>(node) * 10);
    PrefixLog::Write({.node = node, .parent = node - 1, .tokens = tokens}, &words);
    if (node == 2 || node >= 7) PrefixLog::Write({.kind = PrefixLog::Kind::kUnit, .node = node}, &words);
  }
  mirror.Reset(words);
  const PrefixMirror::Changes changes = mirror.TakeChanges();
  ASSERT_THAT(changes.stored, SizeIs(1)) << "the sinks and the window are there";
  EXPECT_THAT(changes.stored[0].hashes, SizeIs(8));
  mirror.Apply({.kind = PrefixLog::Kind::kUnitGone, .node = 2});
  EXPECT_THAT(mirror.TakeChanges().removed, SizeIs(8));
}

// Random prompts with many prefixes in common, in an arena that is too small for them. After each batch of operations,
// the blocks that are told of as usable are those up to which some prompt finds its prefix.
struct Case {
  std::vector<LayerCacheSpec> layers;
  int64_t size = 40;
  bool checkpoints = false;
  double state_share = 1;
  int64_t multiple = 1;
};

class Prompts {
 public:
  explicit Prompts(std::mt19937* random) : random_(*random) {
    while (all_.size() < 24) {
      std::vector<int32_t> tokens;
      if (!all_.empty()) {
        tokens = all_[Below(static_cast<int>(all_.size()))];
        tokens.resize(Below(static_cast<int>(tokens.size())));
      }
      for (int n = 6 + Below(24); n > 0; --n) tokens.push_back(Below(3));
      tokens.resize(std::min<size_t>(tokens.size(), 48));
      all_.push_back(std::move(tokens));
    }
  }
  int Below(int n) { return static_cast<int>(random_() % n); }
  const std::vector<std::vector<int32_t>>& all() const { return all_; }
  std::vector<int32_t> Some() {
    std::vector<int32_t> tokens = all_[Below(static_cast<int>(all_.size()))];
    tokens.resize(1 + Below(static_cast<int>(tokens.size())));
    return tokens;
  }

 private:
  std::mt19937& random_;
  std::vector<std::vector<int32_t>> all_;
};

// The blocks at the start of `tokens` that a sequence uses which has them in common.
int64_t Expected(const std::vector<int32_t>& tokens, const Prompts& prompts, const std::vector<int64_t>& hits) {
  int64_t most = 0;
  for (size_t i = 0; i < hits.size(); ++i) {
    const std::vector<int32_t>& other = prompts.all()[i];
    const int64_t end = static_cast<int64_t>(std::min(tokens.size(), other.size()));
    const int64_t common = std::mismatch(tokens.begin(), tokens.begin() + end, other.begin()).first - tokens.begin();
    most = std::max(most, std::min(common, hits[i]) / kBlock);
  }
  return most;
}

void Check(const Case& c, int seed, size_t log_words, int* num_losses, int64_t* num_usable) {
  std::mt19937 random(seed);
  Prompts prompts(&random);
  Watched watched(c.layers, c.size, c.checkpoints, c.state_share, c.multiple, log_words);
  const int num_rounds = std::getenv("BERTH_FULL") != nullptr ? 4000 : 250;
  for (int round = 0; round < num_rounds; ++round) {
    for (int n = prompts.Below(5); n >= 0; --n) {
      const std::vector<int32_t> tokens = prompts.Some();
      const int mark = prompts.Below(static_cast<int>(tokens.size()) + 1);
      watched.Serve(tokens, prompts.Below(2) == 0, mark / c.multiple * c.multiple, prompts.Below(8) == 0 ? "b" : kSalt);
      if (prompts.Below(60) == 0) watched.cache().ForgetPrefixes(kSalt);
      if (prompts.Below(60) == 0) watched.cache().EvictAll();
      if (prompts.Below(60) == 0) watched.mirror().Reset(watched.cache().WatchPrefixes(kSalt, watched.log()));
    }
    watched.Read();
    ASSERT_FALSE(testing::Test::HasFatalFailure()) << "round " << round;
    std::vector<int64_t> hits;
    for (const auto& tokens : prompts.all()) hits.push_back(watched.Hit(tokens, c.multiple));
    for (const auto& tokens : prompts.all()) {
      const int64_t expected = Expected(tokens, prompts, hits);
      ASSERT_EQ(watched.subscriber().Count(tokens), expected) << "round " << round << ", seed " << seed;
      *num_usable += expected;
    }
    const absl::Status status = watched.cache().CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status;
  }
  Subscriber late;
  late.Store(watched.mirror().GetAll());
  EXPECT_EQ(late, watched.subscriber());
  *num_losses += watched.num_losses();
}

TEST(PrefixMirrorTest, WhatItTellsOfIsWhatPromptsFind) {
  const Case cases[] = {
      {.layers = {StaticLayer()}, .size = 24},
      {.layers = {StaticLayer()}, .size = 24, .multiple = 8},
      {.layers = {StaticLayer(), SlidingLayer(6)}},
      {.layers = {SlidingLayer(6)}, .size = 20},
      {.layers = {SlidingLayer(5, 6), StaticLayer()}},
      {.layers = {SlidingLayer(5, 6)}, .size = 14},
      {.layers = {ChunkedLayer(12), OtherStaticLayer()}},
      {.layers = HybridLayers(), .size = 60},
      {.layers = {RecurrentLayer()}, .size = 20, .state_share = 0.2},
      {.layers = {RecurrentLayer(), SlidingLayer(6)}, .state_share = 0.1},
      {.layers = {RecurrentLayer(), StaticLayer()}, .size = 30, .multiple = 8},
      {.layers = WithWideStates(HybridLayers()), .size = 80, .checkpoints = true},
  };
  int num_losses = 0;
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(i);
    int64_t num_usable = 0;
    ASSERT_NO_FATAL_FAILURE(Check(cases[i], 1 + static_cast<int>(i), 1 << 14, &num_losses, &num_usable));
    ASSERT_NO_FATAL_FAILURE(Check(cases[i], 100 + static_cast<int>(i), 1 << 9, &num_losses, &num_usable));
    EXPECT_GT(num_usable, 1000) << "hardly anything is found: the test is too easy";
  }
  EXPECT_GT(num_losses, 20);
}

}  // namespace
}  // namespace berth
