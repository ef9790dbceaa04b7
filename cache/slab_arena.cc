#include "cache/slab_arena.h"

#include <algorithm>
#include <limits>

#include "absl/base/internal/raw_logging.h"
#include "absl/strings/str_cat.h"

// The extents are a list in order of address. Holes are also in a vector, which Take searches for the smallest that
// fits, and for the lowest among equal ones. Return and Shrink merge a new hole with the holes beside it, so two holes
// never meet.
//
// MakeHole needs neighbours whose holes add up to the size. One pass over the list moves a window [first, last] along
// and keeps the window with the fewest bytes of slabs. Then its lowest hole rises past one slab after the other, and
// takes in each hole that it meets:
//
//   hole | A | hole | B | hole      A moves down
//   A | hole        | B | hole      B moves down
//   A | B | hole
namespace berth {
namespace {

// So that no step has to enlarge the lists; more extents than these are rarely in use.
constexpr size_t kReservedExtents = 1 << 14;

}  // namespace

SlabArena::SlabArena(int64_t arena_bytes)
    : usable_bytes_(arena_bytes / kAlignment * kAlignment), free_bytes_(usable_bytes_) {
  if (usable_bytes_ == 0) return;
  extents_.reserve(kReservedExtents);
  unused_.reserve(kReservedExtents);
  holes_.reserve(kReservedExtents);
  const int32_t hole = NewExtent();
  extents_[hole].size_bytes = usable_bytes_;
  InsertAfter(-1, hole);
  AddHole(hole);
}

int32_t SlabArena::Take(int64_t size_bytes, Owner owner) {
  int32_t best = -1;
  for (int32_t hole : holes_) {
    const Extent& extent = extents_[hole];
    if (extent.size_bytes < size_bytes) continue;
    const bool better = best < 0 || extent.size_bytes < extents_[best].size_bytes ||
                        (extent.size_bytes == extents_[best].size_bytes && extent.offset < extents_[best].offset);
    if (better) best = hole;
  }
  if (best < 0) return -1;
  free_bytes_ -= size_bytes;
  if (extents_[best].size_bytes == size_bytes) {
    RemoveHole(best);
    extents_[best].owner = owner;
    return best;
  }
  const int32_t slab = NewExtent();
  Extent& hole = extents_[best];
  extents_[slab].offset = hole.offset;
  extents_[slab].size_bytes = size_bytes;
  extents_[slab].owner = owner;
  hole.offset += size_bytes;
  hole.size_bytes -= size_bytes;
  InsertAfter(hole.previous, slab);
  return slab;
}

void SlabArena::Return(int32_t slab) {
  free_bytes_ += extents_[slab].size_bytes;
  AddHole(slab);
  Merge(slab);
}

void SlabArena::Shrink(int32_t slab, int64_t size_bytes) {
  const int32_t hole = NewExtent();
  Extent& extent = extents_[slab];
  extents_[hole].offset = extent.offset + size_bytes;
  extents_[hole].size_bytes = extent.size_bytes - size_bytes;
  extent.size_bytes = size_bytes;
  free_bytes_ += extents_[hole].size_bytes;
  InsertAfter(slab, hole);
  AddHole(hole);
  Merge(hole);
}

void SlabArena::MakeHole(int64_t size_bytes, Move move) {
  if (free_bytes_ < size_bytes)
    ABSL_RAW_LOG(FATAL, "the arena's holes do not add up to %lld bytes", (long long)size_bytes);
  // The window [first, last] of neighbours with enough holes and the fewest slab bytes; both ends are holes.
  int32_t best_first = -1;
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  int64_t room = 0;
  int64_t cost = 0;
  int32_t first = first_;
  for (int32_t last = first_; last >= 0; last = extents_[last].next) {
    const bool is_hole = extents_[last].hole >= 0;
    (is_hole ? room : cost) += extents_[last].size_bytes;
    if (!is_hole) continue;
    while (room >= size_bytes) {
      if (extents_[first].hole >= 0 && cost < best_cost) {
        best_first = first;
        best_cost = cost;
      }
      (extents_[first].hole >= 0 ? room : cost) -= extents_[first].size_bytes;
      first = extents_[first].next;
    }
  }
  // The first hole trades places with the slab above it until it has met enough others.
  int32_t hole = best_first;
  while (extents_[hole].size_bytes < size_bytes) {
    const int32_t slab = extents_[hole].next;
    const int64_t from = extents_[slab].offset;
    const int64_t to = extents_[hole].offset;
    const int32_t before = extents_[hole].previous;
    Unlink(slab);
    InsertAfter(before, slab);
    extents_[slab].offset = to;
    extents_[hole].offset = to + extents_[slab].size_bytes;
    move(extents_[slab].owner, from, to, extents_[slab].size_bytes);
    Merge(hole);
  }
}

int64_t SlabArena::largest_hole() const {
  int64_t largest = 0;
  for (int32_t hole : holes_) largest = std::max(largest, extents_[hole].size_bytes);
  return largest;
}

int32_t SlabArena::NewExtent() {
  if (unused_.empty()) {
    extents_.emplace_back();
    return static_cast<int32_t>(extents_.size()) - 1;
  }
  const int32_t extent = unused_.back();
  unused_.pop_back();
  extents_[extent] = Extent();
  return extent;
}

void SlabArena::InsertAfter(int32_t previous, int32_t extent) {
  const int32_t next = previous < 0 ? first_ : extents_[previous].next;
  extents_[extent].previous = previous;
  extents_[extent].next = next;
  (previous < 0 ? first_ : extents_[previous].next) = extent;
  if (next >= 0) extents_[next].previous = extent;
}

void SlabArena::Unlink(int32_t extent) {
  const Extent& gone = extents_[extent];
  (gone.previous < 0 ? first_ : extents_[gone.previous].next) = gone.next;
  if (gone.next >= 0) extents_[gone.next].previous = gone.previous;
}

void SlabArena::AddHole(int32_t extent) {
  extents_[extent].hole = static_cast<int32_t>(holes_.size());
  extents_[extent].owner = Owner();
  holes_.push_back(extent);
}

void SlabArena::RemoveHole(int32_t extent) {
  const int32_t index = extents_[extent].hole;
  holes_[index] = holes_.back();
  extents_[holes_[index]].hole = index;
  holes_.pop_back();
  extents_[extent].hole = -1;
}

void SlabArena::Merge(int32_t hole) {
  const auto absorb = [&](int32_t other) {
    if (other < 0 || extents_[other].hole < 0) return;
    extents_[hole].offset = std::min(extents_[hole].offset, extents_[other].offset);
    extents_[hole].size_bytes += extents_[other].size_bytes;
    Unlink(other);
    RemoveHole(other);
    unused_.push_back(other);
  };
  absorb(extents_[hole].previous);
  absorb(extents_[hole].next);
}

absl::Status SlabArena::CheckIntegrity() const {
  int64_t at = 0;
  int64_t free = 0;
  bool after_hole = false;
  for (int32_t i = first_; i >= 0; i = extents_[i].next) {
    const Extent& extent = extents_[i];
    const bool is_hole = extent.hole >= 0;
    if (extent.offset != at || extent.size_bytes <= 0 || extent.size_bytes % kAlignment != 0) {
      return absl::InternalError(
          absl::StrCat("an extent of ", extent.size_bytes, " bytes lies at ", extent.offset, ", expected at ", at));
    }
    if (is_hole && after_hole) return absl::InternalError(absl::StrCat("two holes meet at byte ", at));
    after_hole = is_hole;
    at += extent.size_bytes;
    if (is_hole) free += extent.size_bytes;
  }
  if (at != usable_bytes_ || free != free_bytes_) {
    return absl::InternalError(
        absl::StrCat("extents cover ", at, " of ", usable_bytes_, " bytes; holes ", free, ", counted ", free_bytes_));
  }
  return absl::OkStatus();
}

}  // namespace berth
