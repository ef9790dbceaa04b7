#include "cache/unit_pool.h"

#include <algorithm>

#include "absl/base/internal/raw_logging.h"
#include "absl/strings/str_cat.h"

namespace berth {

UnitPool::UnitPool(SlabArena* arena, int64_t unit_bytes)
    : arena_(arena),
      unit_bytes_(unit_bytes),
      units_per_slab_(arena->slab_bytes() / unit_bytes),
      slabs_(arena->num_slabs()) {
  held_.reserve(slabs_.size());
}

int64_t UnitPool::Allocate(uint64_t generation) {
  if (current_ < 0 || slabs_[current_].free.empty()) {
    current_ = FullestSlabWithRoom();
    if (current_ < 0) TakeSlab();
  }
  Slab& slab = slabs_[current_];
  const int32_t unit = slab.free.back();
  slab.free.pop_back();
  slab.holders[unit] = generation;
  ++live_units_;
  return arena_->offset(current_) + unit * unit_bytes_;
}

void UnitPool::Free(int64_t offset, uint64_t generation) {
  if (HolderOf(offset) != generation || generation == 0) {
    ABSL_RAW_LOG(FATAL, "unit at byte %lld is held by generation %llu, not by %llu that frees it",
                 static_cast<long long>(offset), static_cast<unsigned long long>(HolderOf(offset)),
                 static_cast<unsigned long long>(generation));
  }
  const int32_t index = arena_->slab_of(offset);
  Slab& slab = slabs_[index];
  const int32_t unit = static_cast<int32_t>((offset - arena_->offset(index)) / unit_bytes_);
  slab.holders[unit] = 0;
  slab.free.push_back(unit);
  --live_units_;
  if (static_cast<int64_t>(slab.free.size()) == units_per_slab_) ReturnSlab(index);
}

int64_t UnitPool::SlabsNeeded(int64_t units) const {
  const int64_t beyond = units - free_units();
  return beyond <= 0 ? 0 : (beyond + units_per_slab_ - 1) / units_per_slab_;
}

int64_t UnitPool::overhead_bytes() const {
  return num_slabs() * (arena_->slab_bytes() - units_per_slab_ * unit_bytes_);
}

uint64_t UnitPool::HolderOf(int64_t offset) const {
  const int64_t index = offset < 0 ? -1 : offset / arena_->slab_bytes();
  if (index < 0 || index >= static_cast<int64_t>(slabs_.size()) || !slabs_[index].held) return 0;
  const int64_t within = offset % arena_->slab_bytes();
  if (within % unit_bytes_ != 0 || within / unit_bytes_ >= units_per_slab_) return 0;
  return slabs_[index].holders[within / unit_bytes_];
}

int32_t UnitPool::FullestSlabWithRoom() const {
  int32_t fullest = -1;
  for (int32_t index : held_) {
    const size_t room = slabs_[index].free.size();
    if (room > 0 && (fullest < 0 || room < slabs_[fullest].free.size())) fullest = index;
  }
  return fullest;
}

void UnitPool::TakeSlab() {
  current_ = arena_->Take();
  held_.push_back(current_);
  Slab& slab = slabs_[current_];
  slab.held = true;
  slab.holders.assign(units_per_slab_, 0);
  slab.free.resize(units_per_slab_);
  for (int64_t i = 0; i < units_per_slab_; ++i) slab.free[i] = static_cast<int32_t>(units_per_slab_ - 1 - i);
}

void UnitPool::ReturnSlab(int32_t index) {
  slabs_[index].held = false;
  held_.erase(std::find(held_.begin(), held_.end(), index));
  arena_->Return(index);
  if (current_ == index) current_ = -1;
}

absl::Status UnitPool::CheckIntegrity() const {
  int64_t live = 0;
  for (int32_t index : held_) {
    const Slab& slab = slabs_[index];
    if (!slab.held) return absl::InternalError(absl::StrCat("slab ", index, " is listed but not held"));
    const int64_t used = std::count_if(slab.holders.begin(), slab.holders.end(), [](uint64_t g) { return g != 0; });
    if (used == 0) return absl::InternalError(absl::StrCat("slab ", index, " is held although every unit is free"));
    if (used + static_cast<int64_t>(slab.free.size()) != units_per_slab_) {
      return absl::InternalError(absl::StrCat("slab ", index, ": ", used, " used and ", slab.free.size(),
                                              " free units, of ", units_per_slab_));
    }
    for (int32_t unit : slab.free) {
      if (slab.holders[unit] != 0) {
        return absl::InternalError(absl::StrCat("slab ", index, ": unit ", unit, " is free and held"));
      }
    }
    live += used;
  }
  if (live != live_units_) {
    return absl::InternalError(absl::StrCat("pool counts ", live_units_, " live units, its slabs hold ", live));
  }
  return absl::OkStatus();
}

}  // namespace berth
