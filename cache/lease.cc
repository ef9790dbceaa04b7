#include "cache/lease.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cache/cache.h"

namespace berth {

SequenceLease::SequenceLease(Cache* cache, uint64_t generation, int64_t num_cross_tokens)
    : cache_(cache),
      generation_(generation),
      num_cross_tokens_(num_cross_tokens),
      groups_(cache->plan().groups.size()) {
  cache_->leases_.insert(this);
}

SequenceLease::SequenceLease(SequenceLease&& other) noexcept { *this = std::move(other); }

SequenceLease& SequenceLease::operator=(SequenceLease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  cache_ = std::exchange(other.cache_, nullptr);
  generation_ = std::exchange(other.generation_, 0);
  num_tokens_ = std::exchange(other.num_tokens_, 0);
  num_cross_tokens_ = std::exchange(other.num_cross_tokens_, 0);
  groups_ = std::exchange(other.groups_, {});
  if (cache_ != nullptr) {
    cache_->leases_.erase(&other);
    cache_->leases_.insert(this);
  }
  return *this;
}

void SequenceLease::Release() {
  if (cache_ == nullptr) return;
  Reset();
  cache_->leases_.erase(this);
  cache_ = nullptr;
}

int64_t SequenceLease::FirstVisibleBlock(int g, int64_t position) const {
  return cache_->plan().groups[g].kv.FirstVisible(position) / cache_->plan().block_tokens;
}

int64_t SequenceLease::EndUnit(int g, int64_t num_tokens) const {
  const CacheKind kind = cache_->plan().groups[g].kind;
  if (kind == CacheKind::kCross) num_tokens = num_cross_tokens_;
  if (num_tokens == 0) return 0;
  if (kind == CacheKind::kRecurrent) return 1;
  return (num_tokens + cache_->plan().block_tokens - 1) / cache_->plan().block_tokens;
}

absl::Status SequenceLease::Grow(int64_t n) {
  const int num_groups = static_cast<int>(groups_.size());
  Cache::UnitCounts wanted(num_groups);
  for (int g = 0; g < num_groups; ++g) {
    const Group& group = groups_[g];
    const int64_t end = group.first_block + static_cast<int64_t>(group.units.size());
    const int64_t leaving = FirstVisibleBlock(g, num_tokens_) - group.first_block;
    wanted[g] = std::max<int64_t>(0, EndUnit(g, num_tokens_ + n) - end - leaving);
  }
  if (!cache_->CanAllocate(wanted)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the cache has no room for ", n, " more tokens of a sequence of ", num_tokens_,
                     num_cross_tokens_ > 0 ? absl::StrCat(" with ", num_cross_tokens_, " of its encoder") : ""));
  }
  for (int g = 0; g < num_groups; ++g) {
    Group& group = groups_[g];
    FreeHead(g, FirstVisibleBlock(g, num_tokens_) - group.first_block);
    const int64_t end = EndUnit(g, num_tokens_ + n);
    while (group.first_block + static_cast<int64_t>(group.units.size()) < end) {
      group.units.push_back(cache_->AllocateUnit(g, generation_));
    }
  }
  num_tokens_ += n;
  return absl::OkStatus();
}

int64_t SequenceLease::Crop(int64_t length) {
  if (length == num_tokens_) return length;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const bool lost = cache_->plan().groups[g].kind == CacheKind::kRecurrent ||
                      groups_[g].first_block > FirstVisibleBlock(static_cast<int>(g), length);
    if (lost) length = 0;
  }
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) {
    const int64_t end = groups_[g].first_block + static_cast<int64_t>(groups_[g].units.size());
    FreeTail(g, end - std::max(groups_[g].first_block, EndUnit(g, length)));
    if (length == 0) groups_[g].first_block = 0;
  }
  num_tokens_ = length;
  return length;
}

void SequenceLease::Reset() {
  Crop(0);
  for (int g = 0; g < static_cast<int>(groups_.size()); ++g) FreeTail(g, static_cast<int64_t>(groups_[g].units.size()));
}

BlockTable SequenceLease::blocks(int group) const {
  return {.first_block = groups_[group].first_block, .offsets = groups_[group].units};
}

void SequenceLease::FreeHead(int g, int64_t count) {
  Group& group = groups_[g];
  for (int64_t i = 0; i < count; ++i) cache_->FreeUnit(g, group.units[i], generation_);
  group.units.erase(group.units.begin(), group.units.begin() + count);
  group.first_block += count;
}

void SequenceLease::FreeTail(int g, int64_t count) {
  std::vector<int64_t>& units = groups_[g].units;
  for (int64_t i = 0; i < count; ++i) {
    cache_->FreeUnit(g, units.back(), generation_);
    units.pop_back();
  }
}

int64_t SequenceLease::TokensIn(int g) const {
  const CacheKind kind = cache_->plan().groups[g].kind;
  if (kind == CacheKind::kRecurrent) return num_tokens_ > 0 ? 1 : 0;
  if (kind == CacheKind::kCross) return groups_[g].units.empty() ? 0 : num_cross_tokens_;
  return num_tokens_ - groups_[g].first_block * cache_->plan().block_tokens;
}

}  // namespace berth
