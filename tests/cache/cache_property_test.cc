// Random schedules of all that a lease can do, over five kinds of cache, and a window with sinks, with units from 3 KiB
// to 5 MiB. A simulated model writes a digest of the whole prefix for each token, and checks what it sees of the tokens
// before, as kernels would. So a unit that is shared, moved, copied or returned wrongly is found. The ledger must hold
// after each operation, nothing may be refused while its bytes are free, and everything must come back.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "cache/cache.h"
#include "cache/storage.h"
#include "tests/testing/tiny_cache.h"

namespace berth {
namespace {

constexpr int64_t kBlock = 16;

std::vector<LayerCacheSpec> FiveKinds() {
  return {
      {.kv = KvSpec{.kv_heads = 1, .key_dim = 24, .value_dim = 24, .dtype = DType::kFloat32}},  // 3 KiB
      {.kv = KvSpec{.kv_heads = 4, .key_dim = 64, .value_dim = 64, .dtype = DType::kBFloat16, .window = 50}},
      {.kv = KvSpec{.kv_heads = 2, .key_dim = 33, .value_dim = 17, .dtype = DType::kFloat32, .chunk = 40}},
      {.kv = KvSpec{.kv_heads = 8, .key_dim = 128, .value_dim = 128, .dtype = DType::kBFloat16},
       .cross = KvSpec{.kv_heads = 2, .key_dim = 64, .value_dim = 64, .dtype = DType::kBFloat16}},
      {.kv = KvSpec{.kv_heads = 2, .key_dim = 40, .value_dim = 40, .window = 60, .sink_tokens = 19}},
      {.states = {{.name = "conv", .shape = {100, 4}}, {.name = "recurrent", .shape = {160, 64, 128}}}},  // 5 MiB
  };
}

uint64_t Mix(uint64_t digest, int32_t token) {
  digest = (digest ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
  return digest ^ digest >> 29;
}

struct Row {
  SequenceLease lease;
  std::vector<int32_t> tokens;  // at least as many as the lease holds
  uint64_t salt = 0;
};

struct Saved {
  CacheSnapshot snapshot;
  std::vector<int32_t> tokens;
  uint64_t salt = 0;
};

class Simulation {
 public:
  Simulation(std::vector<LayerCacheSpec> layers, int64_t arena_bytes, int seed, bool checkpoints = false,
             double state_share = 1)
      : random_(seed) {
    auto plan = BuildCachePlan(layers, kBlock);
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (checkpoints) QuantiseCheckpoints(layers, &*plan);
    storage_ = *CreateHostStorage(arena_bytes);
    cache_ = *Cache::Create(*plan, storage_.get(), {.poison_returned_units = true, .state_share = state_share});
  }

  int Below(int n) { return static_cast<int>(random_() % n); }
  Cache& cache() { return *cache_; }
  Occupancy GetOccupancy() const {
    Occupancy occupancy;
    cache_->GetOccupancy(64, 1 << 16, &occupancy);
    return occupancy;
  }

  // Grows the row by `n` tokens, and reads and writes the cache like the step's kernels.
  bool Step(Row* row, int64_t n) {
    const int64_t start = row->lease.num_tokens();
    while (static_cast<int64_t>(row->tokens.size()) < start + n) row->tokens.push_back(Below(4));
    if (!row->lease.Grow(n).ok()) return false;
    if (row->lease.shares()) {
      for (int64_t at = start + Below(30); at < start + n; at += 1 + Below(60)) {
        if (at > start && !row->lease.MarkStates(at)) break;
      }
    }
    const std::vector<uint64_t> digests = Digests(*row);
    const CachePlan& plan = cache_->plan();
    for (int g = 0; g < static_cast<int>(plan.groups.size()); ++g) {
      const CacheGroup& group = plan.groups[g];
      if (group.kind == CacheKind::kRecurrent) {
        if (start > 0) {
          EXPECT_EQ(GetState(row->lease.state_unit(g)), digests[start]) << "the state is not that of the prefix";
        }
        SetState(row->lease.state_unit(g), digests[start + n]);
        for (const StateMark& mark : row->lease.marks()) SetState(mark.offset, digests[mark.position]);
      } else if (group.kind == CacheKind::kCheckpoint) {
        EXPECT_TRUE(row->lease.blocks(g).offsets.empty()) << "a lease that has grown holds a checkpoint";
      } else if (group.kind == CacheKind::kCross) {
        for (int64_t i = 0; i < row->lease.num_cross_tokens(); ++i) *Slot(row->lease, g, i) = i;
      } else {
        if (const int64_t reach = group.kv.Reach(); reach > 0) {
          const int64_t most = group.kv.SinkBlocks(kBlock) + (reach - 1 + n + kBlock - 1) / kBlock + 1;
          EXPECT_LE(static_cast<int64_t>(row->lease.blocks(g).offsets.size()), most);
        }
        for (int64_t p = start; p < start + n; ++p) *Slot(row->lease, g, p) = digests[p + 1];
        for (int64_t p = 0; p < start + n; ++p) {
          if (p >= group.kv.sink_tokens && p < group.kv.FirstVisible(start)) continue;
          EXPECT_EQ(*Slot(row->lease, g, p), digests[p + 1]) << "position " << p << " of group " << g;
        }
      }
    }
    num_marks_ += static_cast<int64_t>(row->lease.marks().size());
    if (!row->lease.marks().empty()) row->lease.Publish(row->tokens, Below(2) == 0);
    return true;
  }
  int64_t num_marks() const { return num_marks_; }

  // Whether its states are its own, not a checkpoint that it started from.
  bool HasGrown(const Row& row) const {
    const int g = cache_->plan().checkpoint_group();
    return g < 0 || row.lease.blocks(g).offsets.empty();
  }

  // What the lease's next Grow(n) needs and what it can have, by the definitions alone.
  std::pair<int64_t, int64_t> NeedAndFree(const Row& row, int64_t n) const {
    const CachePlan& plan = cache_->plan();
    const int64_t length = row.lease.num_tokens();
    const Occupancy occupancy = GetOccupancy();
    int64_t need = 0;
    int64_t free = occupancy.FreeBytes();
    for (int g = 0; g < static_cast<int>(plan.groups.size()); ++g) {
      const CacheGroup& group = plan.groups[g];
      const BlockTable table = row.lease.blocks(g);
      int64_t end = (length + n + kBlock - 1) / kBlock;
      if (group.kind == CacheKind::kRecurrent) end = 1;
      if (group.kind == CacheKind::kCross) end = (row.lease.num_cross_tokens() + kBlock - 1) / kBlock;
      need += (end - table.expired_blocks - static_cast<int64_t>(table.offsets.size())) * group.unit_bytes;
      if (group.grows()) free += (group.kv.ExpiredBlocks(length, kBlock) - table.expired_blocks) * group.unit_bytes;
    }
    return {need, free};
  }

 private:
  // The states' digest, at both ends of the unit; where checkpoints are quantised, in a form that survives that.
  uint64_t GetState(int64_t unit) {
    if (cache_->plan().checkpoint_group() < 0) return *At(unit);
    const uint64_t digest = GetDigest(storage_->base() + unit);
    return digest == GetDigest(storage_->base() + LastNumbers(unit)) ? digest : 0;
  }
  void SetState(int64_t unit, uint64_t digest) {
    if (cache_->plan().checkpoint_group() < 0) {
      *At(unit) = digest;
      return;
    }
    SetDigest(digest, storage_->base() + unit);
    SetDigest(digest, storage_->base() + LastNumbers(unit));
  }
  int64_t LastNumbers(int64_t unit) const {
    return unit + cache_->plan().groups[cache_->plan().state_group()].unit_bytes - 64 * 4;
  }
  uint64_t* At(int64_t offset) { return reinterpret_cast<uint64_t*>(storage_->base() + offset); }
  // Token p's own bytes in its block: they lie at both ends of the unit in turn.
  uint64_t* Slot(const SequenceLease& lease, int g, int64_t p) {
    const BlockTable table = lease.blocks(g);
    const int64_t unit = table.At(p / kBlock);
    const int64_t within = p % kBlock;
    const int64_t bytes = cache_->plan().groups[g].unit_bytes;
    return At(unit + (within % 2 == 0 ? within * 8 : bytes - 8 - within * 8));
  }
  static std::vector<uint64_t> Digests(const Row& row) {
    std::vector<uint64_t> digests = {row.salt};
    for (int32_t token : row.tokens) digests.push_back(Mix(digests.back(), token));
    return digests;
  }

  std::mt19937 random_;
  int64_t num_marks_ = 0;
  std::unique_ptr<ArenaStorage> storage_;
  std::unique_ptr<Cache> cache_;
};

int NumOperations() { return std::getenv("BERTH_FULL") != nullptr ? 100000 : 6000; }

// All operations; no encoder, whose sequences share no prefix.
TEST(CacheProperty, EveryOperationKeepsWhatEverySequenceSees) {
  std::vector<LayerCacheSpec> layers = FiveKinds();
  layers[3].cross.reset();
  enum { kStates, kFewStates, kCheckpoints, kNoStates };
  for (const int kept : {kStates, kFewStates, kCheckpoints, kNoStates}) {
    if (kept == kNoStates) layers.pop_back();
    // Smaller ones, which take less time to convert: 640 KiB.
    if (kept == kCheckpoints) layers.back().states[1].shape[0] = 20;
    const int64_t arena_mib = kept == kCheckpoints ? 12 : kept == kNoStates ? 3 : 48;
    Simulation sim(layers, (arena_mib << 20) + 36, 7, kept == kCheckpoints, kept == kFewStates ? 0.4 : 1);
    std::vector<Row> rows;
    int64_t refused = 0;
    int64_t hits = 0;
    int64_t resumed = 0;
    int64_t num_restored = 0;
    int64_t num_not_restored = 0;
    int64_t num_snapshots_of_checkpoints = 0;
    std::vector<Saved> snapshots;
    for (int i = 0; i < NumOperations(); ++i) {
      const int choice = sim.Below(100);
      Row* row = rows.empty() ? nullptr : &rows[sim.Below(static_cast<int>(rows.size()))];
      if (row == nullptr || choice < 12) {
        Row made = {.lease = sim.cache().NewLease(), .salt = static_cast<uint64_t>(sim.Below(2))};
        // Sequences of few different tokens meet again and again; some continue what another said.
        if (row != nullptr && sim.Below(2) == 0) {
          made.salt = row->salt;
          made.tokens = row->tokens;
          made.tokens.resize(made.tokens.empty() ? 0 : 1 + sim.Below(static_cast<int>(made.tokens.size())));
        }
        // Often enough right from where its checkpoint is.
        if (kept == kCheckpoints && row != nullptr && sim.Below(3) > 0) {
          row->lease.Publish(row->tokens, /*checkpoint=*/true);
          made.salt = row->salt;
          made.tokens = row->tokens;
          made.tokens.resize(row->lease.num_tokens() + 1);
        }
        while (made.tokens.size() < 40) made.tokens.push_back(sim.Below(2));
        const PrefixHit hit = made.lease.Adopt(std::to_string(made.salt), made.tokens);
        hits += hit.num_tokens;
        ASSERT_LT(hit.num_tokens, static_cast<int64_t>(made.tokens.size()));
        ASSERT_LE(hit.num_tokens, hit.matched_tokens);
        rows.push_back(std::move(made));
      } else if (choice < 60) {
        if (!sim.Step(row, 1 + sim.Below(sim.Below(4) == 0 ? 200 : 20))) {
          ++refused;
          rows.pop_back();  // room, for a while, for what only the index holds
        }
      } else if (choice < 70) {
        row->lease.Publish(row->tokens, sim.Below(2) == 0);
      } else if (choice < 76) {
        if (row->lease.num_tokens() > 0 && !sim.HasGrown(*row)) ++num_snapshots_of_checkpoints;
        row->lease.SnapshotStates(2);
      } else if (choice < 84) {
        const int64_t length = sim.Below(static_cast<int>(row->lease.num_tokens()) + 1);
        const int64_t at = row->lease.Crop(length);
        ASSERT_LE(at, length);
        if (at > 0) ++resumed;
        // What is not replayed may be said otherwise.
        if (sim.Below(2) == 0) row->tokens.resize(at);
      } else if (choice < 92) {
        if (rows.size() < 40) {
          Row fork = {.lease = row->lease.Fork(), .tokens = row->tokens, .salt = row->salt};
          fork.tokens.resize(fork.lease.num_tokens());
          rows.push_back(std::move(fork));
        }
      } else if (choice < 94) {
        sim.cache().Compact(1 << 20);
        if (sim.Below(40) == 0) sim.cache().ForgetPrefixes(std::to_string(row->salt));
      } else if (choice < 97) {
        // Saved, given up, and brought back later, among whatever came meanwhile.
        const int64_t size = row->lease.snapshot_bytes();
        snapshots.push_back({.snapshot = row->lease.Save(), .tokens = row->tokens, .salt = row->salt});
        ASSERT_EQ(snapshots.back().snapshot.size_bytes, size);
        std::swap(*row, rows.back());
        rows.pop_back();
      } else if (choice < 99) {
        if (!snapshots.empty()) {
          std::swap(snapshots[sim.Below(static_cast<int>(snapshots.size()))], snapshots.back());
          const int64_t free = sim.cache().available_bytes();
          auto restored = sim.cache().Restore(snapshots.back().snapshot);
          ASSERT_EQ(restored.ok(), snapshots.back().snapshot.size_bytes <= free);
          if (restored.ok()) {
            Saved& saved = snapshots.back();
            ASSERT_EQ(restored->num_tokens(), saved.snapshot.num_tokens);
            rows.push_back({.lease = *std::move(restored), .tokens = std::move(saved.tokens), .salt = saved.salt});
            if (sim.Below(2) == 0) rows.back().lease.Share(std::to_string(rows.back().salt));
            snapshots.pop_back();
            ++num_restored;
          } else {
            ASSERT_EQ(restored.status().code(), absl::StatusCode::kResourceExhausted);
            ++num_not_restored;
          }
        }
      } else {
        std::swap(*row, rows.back());
        rows.pop_back();
      }
      const absl::Status status = sim.cache().CheckIntegrity();
      ASSERT_TRUE(status.ok()) << status << " after operation " << i;
      ASSERT_FALSE(testing::Test::HasFailure()) << "operation " << i << ", choice " << choice;
    }
    EXPECT_GT(refused, 0) << "the arena was never full: the test is too easy";
    EXPECT_GT(hits, 0);
    EXPECT_GT(resumed, 0);
    if (kept == kCheckpoints) {
      EXPECT_GT(hits, 10 * refused);
      EXPECT_GT(num_snapshots_of_checkpoints, 0);
    }
    if (kept != kNoStates) {
      EXPECT_GT(sim.num_marks(), 100);
    }
    EXPECT_GT(num_restored, 20);
    EXPECT_GT(num_not_restored, 0);
    const int64_t free_before = sim.GetOccupancy().FreeBytes();
    const int64_t freed = sim.cache().ForgetPrefixes(std::nullopt);
    EXPECT_EQ(freed, sim.GetOccupancy().FreeBytes() - free_before);
    EXPECT_TRUE(sim.cache().CheckIntegrity().ok()) << sim.cache().CheckIntegrity();
    rows.clear();
    sim.cache().EvictAll();
    const Occupancy after = sim.GetOccupancy();
    EXPECT_EQ(after.unassigned_free_bytes + after.unassigned_overhead_bytes, after.arena_bytes);
    EXPECT_EQ(after.largest_hole_bytes, after.unassigned_free_bytes);
  }
}

// Five kinds without sharing, kept nearly full: a growth is refused exactly when its bytes are not free.
TEST(CacheProperty, NothingIsRefusedWhileItsBytesAreFree) {
  Simulation sim(FiveKinds(), 96 << 20, 11);
  std::vector<Row> rows;
  int64_t refused = 0;
  int64_t granted_when_tight = 0;
  double worst_overhead = 0;
  for (int i = 0; i < NumOperations(); ++i) {
    if (rows.empty() || (sim.Below(100) < 15 && rows.size() < 64)) {
      rows.push_back({.lease = sim.cache().NewLease(sim.Below(3) * sim.Below(400))});
    }
    const int index = sim.Below(static_cast<int>(rows.size()));
    const int64_t n = 1 + sim.Below(sim.Below(8) == 0 ? 2000 : 100);
    const auto [need, free] = sim.NeedAndFree(rows[index], n);
    const bool granted = sim.Step(&rows[index], n);
    ASSERT_EQ(granted, need <= free) << "operation " << i << ": " << need << " bytes of " << free;
    const Occupancy occupancy = sim.GetOccupancy();
    const int64_t live = occupancy.arena_bytes - occupancy.FreeBytes() - occupancy.unassigned_overhead_bytes;
    if (live >= occupancy.arena_bytes / 5 * 4) {
      worst_overhead = std::max(worst_overhead, static_cast<double>(occupancy.unassigned_overhead_bytes) / live);
      if (granted) ++granted_when_tight;
    }
    if (granted && sim.Below(20) == 0) {
      // Away and back: into the units that it left, or others.
      Row& row = rows[index];
      const CacheSnapshot snapshot = row.lease.Save();
      row.lease = SequenceLease();
      auto restored = sim.cache().Restore(snapshot);
      ASSERT_TRUE(restored.ok()) << restored.status();
      row.lease = *std::move(restored);
    }
    if (!granted) {
      ++refused;
      for (int dropped = 0; dropped < 3 && !rows.empty(); ++dropped) {
        std::swap(rows[sim.Below(static_cast<int>(rows.size()))], rows.back());
        rows.pop_back();
      }
    }
    const absl::Status status = sim.cache().CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status << " after operation " << i;
    ASSERT_FALSE(testing::Test::HasFailure()) << "operation " << i;
  }
  EXPECT_GT(refused, NumOperations() / 100);
  EXPECT_GT(granted_when_tight, NumOperations() / 10);
  EXPECT_LE(worst_overhead, 0.03);
  EXPECT_GT(sim.GetOccupancy().pools[0].compacted_bytes, 0) << "nothing ever had to move: the test is too easy";
}

}  // namespace
}  // namespace berth
