// Random schedules of lease operations over several kinds with units from bytes to megabytes: the ledger must hold
// after each, a write must never be seen by another lease, and everything must come back.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "cache/cache.h"
#include "cache/storage.h"

namespace berth {
namespace {

std::vector<LayerCacheSpec> SixNeeds() {
  return {
      {.kv = KvSpec{.kv_heads = 1, .key_dim = 24, .value_dim = 24, .dtype = DType::kFloat32}},  // 3 KiB
      {.kv = KvSpec{.kv_heads = 4, .key_dim = 64, .value_dim = 64, .dtype = DType::kBFloat16, .window = 50}},
      {.kv = KvSpec{.kv_heads = 2, .key_dim = 33, .value_dim = 17, .dtype = DType::kFloat32, .window = 7}},
      {.kv = KvSpec{.kv_heads = 8, .key_dim = 128, .value_dim = 128, .dtype = DType::kBFloat16},
       .cross = KvSpec{.kv_heads = 2, .key_dim = 64, .value_dim = 64, .dtype = DType::kBFloat16}},
      {.states = {{.name = "conv", .shape = {100, 4}}, {.name = "recurrent", .shape = {40, 64, 128}}}},  // 1.3 MB
  };
}

struct Row {
  SequenceLease lease;
  uint8_t mark;
};

// Stamps every unit of the lease with its mark.
void Stamp(const Cache& cache, const Row& row) {
  for (int g = 0; g < static_cast<int>(cache.plan().groups.size()); ++g) {
    for (int64_t offset : row.lease.blocks(g).offsets) {
      std::memset(cache.storage().base() + offset, row.mark, 16);
      std::memset(cache.storage().base() + offset + cache.plan().groups[g].unit_bytes - 16, row.mark, 16);
    }
  }
}

// Whether every unit still carries the mark at both ends.
bool HoldsStamp(const Cache& cache, const Row& row) {
  for (int g = 0; g < static_cast<int>(cache.plan().groups.size()); ++g) {
    for (int64_t offset : row.lease.blocks(g).offsets) {
      const auto* unit = reinterpret_cast<const uint8_t*>(cache.storage().base()) + offset;
      if (unit[0] != row.mark || unit[cache.plan().groups[g].unit_bytes - 1] != row.mark) return false;
    }
  }
  return true;
}

TEST(CacheProperty, RandomSchedulesKeepTheLedger) {
  const int num_operations = std::getenv("BERTH_FULL") != nullptr ? 100000 : 5000;
  auto plan = BuildCachePlan(SixNeeds(), 16);
  ASSERT_TRUE(plan.ok());
  auto storage = CreateHostStorage(8 * plan->slab_bytes + 12345);
  ASSERT_TRUE(storage.ok());
  auto cache = Cache::Create(*plan, storage->get(), {.poison_returned_units = true});
  ASSERT_TRUE(cache.ok());
  Occupancy idle;
  (*cache)->GetOccupancy(64, 1 << 16, &idle);

  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  {
    std::vector<Row> rows;
    int refused = 0;
    for (int i = 0; i < num_operations; ++i) {
      const int choice = below(100);
      if (rows.empty() || choice < 10) {
        rows.push_back({(*cache)->NewLease(below(3) * below(400)), static_cast<uint8_t>(1 + below(250))});
      } else if (choice < 80) {
        Row& row = rows[below(static_cast<int>(rows.size()))];
        ASSERT_TRUE(HoldsStamp(**cache, row)) << i;
        if (!row.lease.Grow(1 + below(300)).ok()) ++refused;
        Stamp(**cache, row);
      } else if (choice < 88) {
        Row& row = rows[below(static_cast<int>(rows.size()))];
        const int64_t length = below(static_cast<int>(row.lease.num_tokens()) + 1);
        const int64_t resumed = row.lease.Crop(length);
        ASSERT_TRUE(resumed == length || resumed == 0);
        ASSERT_TRUE(HoldsStamp(**cache, row)) << i;
      } else {
        std::swap(rows[below(static_cast<int>(rows.size()))], rows.back());
        ASSERT_TRUE(HoldsStamp(**cache, rows.back())) << i;
        rows.pop_back();
      }
      const absl::Status status = (*cache)->CheckIntegrity();
      ASSERT_TRUE(status.ok()) << status << " after operation " << i;
    }
    EXPECT_GT(refused, 0) << "the arena was never full: the test is too easy";
  }
  Occupancy after;
  (*cache)->GetOccupancy(64, 1 << 16, &after);
  EXPECT_EQ(after.unassigned_free_bytes, idle.unassigned_free_bytes);
  EXPECT_EQ(after.largest_admissible_tokens, idle.largest_admissible_tokens);
}

}  // namespace
}  // namespace berth
