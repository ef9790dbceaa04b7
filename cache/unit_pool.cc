#include "cache/unit_pool.h"

#include <algorithm>
#include <bit>

#include "absl/base/internal/raw_logging.h"
#include "absl/strings/str_cat.h"

// A slab's free places are the bits of one word. Slabs that have n free places form list n (by_free_), and bit n - 1 of
// lists_ says that list n is not empty. So the fullest slab with room is behind the lowest bit, and the sparsest slab
// behind the highest. A slab leaves its list before its number of free places changes, and joins another one after.
//
//   slabs_[0]   | u3 | u0 |    | u1 |   by_free_[1]: Allocate puts the next unit here
//   slabs_[1]   |    | u2 |    |    |   by_free_[3]: EmptySparsestSlab moves u2 to slabs_[0] and returns this slab
//   slabs_[2]   | u4 | u5 | u6 | u7 |   in no list; lists_ == 0b101
//
// CutSparsestSlab would move u2 to the lowest place of its own slab, and the arena would take the other three places.
//
// A unit is counted by what holds it:
//
//              Allocate            AddLease
//     free --------------> live <-----------> shared     live: one lease
//      ^                   |  ^    DropLease             shared: several leases
//      |     DropLease     |  |                          cached: the index alone
//      +-------------------+  |
//      |                   |  | AddLease
//      |     DropCached    v  |
//      +------------------ cached
//
// The last DropLease makes a unit cached if the index holds it too (SetCached), else free. A slab whose units are all
// free returns to the arena.
namespace berth {
namespace {

uint64_t LowBits(int64_t count) { return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1; }

// The index of an unused record, or of a new one.
template <typename Record>
int32_t TakeIndex(std::vector<Record>* records, std::vector<int32_t>* unused) {
  if (unused->empty()) {
    records->emplace_back();
    return static_cast<int32_t>(records->size()) - 1;
  }
  const int32_t index = unused->back();
  unused->pop_back();
  return index;
}

}  // namespace

UnitPool::UnitPool(SlabArena* arena, int32_t number, int64_t unit_bytes)
    : arena_(arena),
      number_(number),
      unit_bytes_(unit_bytes),
      slab_units_(std::clamp<int64_t>(kSlabBytes / unit_bytes, 1, kMaxSlabUnits)) {
  by_free_.fill(-1);
  // So that no step has to enlarge them; more than these are rarely used.
  const int64_t most_units = std::min<int64_t>(arena->usable_bytes() / unit_bytes, 1 << 16);
  units_.reserve(most_units);
  unused_units_.reserve(most_units);
  slabs_.reserve(most_units / slab_units_ + 1);
  unused_slabs_.reserve(most_units / slab_units_ + 1);
}

UnitId UnitPool::Allocate() {
  if (free_units_ == 0) TakeSlab();
  const int32_t index = TakeIndex(&units_, &unused_units_);
  Put(index, by_free_[std::countr_zero(lists_) + 1]);
  units_[index].num_leases = 1;
  Count(units_[index], +1);
  return {.index = index, .generation = units_[index].generation};
}

void UnitPool::AddLease(UnitId unit) {
  CheckLive(unit);
  Count(units_[unit.index], -1);
  ++units_[unit.index].num_leases;
  Count(units_[unit.index], +1);
}

bool UnitPool::DropLease(UnitId unit) {
  CheckLive(unit);
  Unit& record = units_[unit.index];
  if (record.num_leases == 0) ABSL_RAW_LOG(FATAL, "no lease holds unit %d that a lease drops", unit.index);
  Count(record, -1);
  --record.num_leases;
  Count(record, +1);
  FreeIfUnheld(unit);
  return !live(unit);
}

void UnitPool::SetCached(UnitId unit) {
  CheckLive(unit);
  units_[unit.index].cached = true;
}

bool UnitPool::DropCached(UnitId unit) {
  CheckLive(unit);
  Unit& record = units_[unit.index];
  Count(record, -1);
  record.cached = false;
  Count(record, +1);
  FreeIfUnheld(unit);
  return !live(unit);
}

bool UnitPool::live(UnitId unit) const {
  if (unit.index < 0 || unit.index >= static_cast<int32_t>(units_.size())) return false;
  const Unit& record = units_[unit.index];
  return record.generation == unit.generation && record.slab >= 0;
}

int64_t UnitPool::EmptySparsestSlab(int64_t budget, Copy copy) {
  const int32_t sparsest = SparsestSlab();
  if (sparsest < 0) return -1;
  Slab& slab = slabs_[sparsest];
  const int64_t used = slab.capacity - slab.num_free;
  if (free_units_ - slab.num_free < used || used * unit_bytes_ > budget) return -1;
  Unlink(sparsest);  // so that none of its own places is chosen
  for (int32_t place = 0; place < slab.capacity; ++place) {
    if ((slab.free >> place & 1) == 0) Relocate(slab.units[place], by_free_[std::countr_zero(lists_) + 1], copy);
  }
  ReturnSlab(sparsest);
  return used * unit_bytes_;
}

int64_t UnitPool::CutSparsestSlab(Copy copy) {
  const int32_t sparsest = SparsestSlab();
  Slab& slab = slabs_[sparsest];
  const int32_t used = slab.capacity - slab.num_free;
  Unlink(sparsest);
  int64_t moved = 0;
  for (int32_t place = used; place < slab.capacity; ++place) {
    if ((slab.free >> place & 1) != 0) continue;
    const int32_t index = slab.units[place];
    const int32_t target = std::countr_zero(slab.free);
    const int64_t base = arena_->offset(slab.extent);
    copy(base + place * unit_bytes_, base + target * unit_bytes_, unit_bytes_);
    slab.free ^= uint64_t{1} << place | uint64_t{1} << target;
    slab.units[target] = index;
    units_[index].place = static_cast<uint8_t>(target);
    moved += unit_bytes_;
  }
  free_units_ -= slab.num_free;
  slab.capacity = used;
  slab.num_free = 0;
  slab.free = 0;
  arena_->Shrink(slab.extent, used * unit_bytes_);
  return moved;
}

void UnitPool::TakeSlab() {
  const int64_t count = std::min(slab_units_, arena_->largest_hole() / unit_bytes_);
  if (count == 0) ABSL_RAW_LOG(FATAL, "the arena has no hole for a unit of %lld bytes", (long long)unit_bytes_);
  const int32_t index = TakeIndex(&slabs_, &unused_slabs_);
  Slab& slab = slabs_[index];
  slab.extent = arena_->Take(count * unit_bytes_, {.pool = number_, .slab = index});
  slab.capacity = static_cast<int32_t>(count);
  slab.num_free = slab.capacity;
  slab.free = LowBits(count);
  free_units_ += count;
  ++num_slabs_;
  Link(index);
}

void UnitPool::ReturnSlab(int32_t index) {
  Slab& slab = slabs_[index];
  arena_->Return(slab.extent);
  free_units_ -= slab.num_free;
  --num_slabs_;
  slab.extent = -1;
  unused_slabs_.push_back(index);
}

void UnitPool::Put(int32_t index, int32_t slab_index) {
  Unlink(slab_index);
  Slab& slab = slabs_[slab_index];
  const int place = std::countr_zero(slab.free);
  slab.free &= slab.free - 1;
  slab.units[place] = index;
  --slab.num_free;
  --free_units_;
  units_[index].slab = slab_index;
  units_[index].place = static_cast<uint8_t>(place);
  Link(slab_index);
}

void UnitPool::Remove(int32_t index) {
  const Unit& unit = units_[index];
  Slab& slab = slabs_[unit.slab];
  slab.free |= uint64_t{1} << unit.place;
  ++slab.num_free;
  ++free_units_;
}

void UnitPool::FreeIfUnheld(UnitId id) {
  Unit& unit = units_[id.index];
  if (unit.num_leases > 0 || unit.cached) return;
  const int32_t slab = unit.slab;
  Unlink(slab);
  Remove(id.index);
  if (slabs_[slab].num_free == slabs_[slab].capacity) {
    ReturnSlab(slab);
  } else {
    Link(slab);
  }
  unit.slab = -1;
  ++unit.generation;
  unused_units_.push_back(id.index);
}

void UnitPool::Count(const Unit& unit, int64_t sign) {
  if (unit.num_leases == 1) live_units_ += sign;
  if (unit.num_leases > 1) shared_units_ += sign;
  if (unit.num_leases == 0 && unit.cached) cached_units_ += sign;
}

void UnitPool::CheckLive(UnitId unit) const {
  if (live(unit)) return;
  ABSL_RAW_LOG(FATAL, "unit %d is not held under generation %u", unit.index, unit.generation);
}

void UnitPool::Link(int32_t index) {
  Slab& slab = slabs_[index];
  if (slab.num_free == 0) return;
  slab.previous = -1;
  slab.next = by_free_[slab.num_free];
  if (slab.next >= 0) slabs_[slab.next].previous = index;
  by_free_[slab.num_free] = index;
  lists_ |= uint64_t{1} << (slab.num_free - 1);
}

void UnitPool::Unlink(int32_t index) {
  Slab& slab = slabs_[index];
  if (slab.num_free == 0) return;
  (slab.previous < 0 ? by_free_[slab.num_free] : slabs_[slab.previous].next) = slab.next;
  if (slab.next >= 0) slabs_[slab.next].previous = slab.previous;
  if (by_free_[slab.num_free] < 0) lists_ &= ~(uint64_t{1} << (slab.num_free - 1));
}

int32_t UnitPool::SparsestSlab() const { return lists_ == 0 ? -1 : by_free_[std::bit_width(lists_)]; }

void UnitPool::Relocate(int32_t index, int32_t slab, Copy copy) {
  const int64_t from = OffsetOf(units_[index]);
  Remove(index);
  Put(index, slab);
  copy(from, OffsetOf(units_[index]), unit_bytes_);
}

absl::Status UnitPool::CheckIntegrity() const {
  int64_t free = 0;
  std::array<int64_t, 3> held = {0, 0, 0};  // live, shared, cached
  for (size_t i = 0; i < slabs_.size(); ++i) {
    const Slab& slab = slabs_[i];
    if (slab.extent < 0) continue;
    const auto fail = [&](absl::string_view what) {
      return absl::InternalError(absl::StrCat("pool ", number_, ", slab ", i, ": ", what));
    };
    if (arena_->size_bytes(slab.extent) != slab.capacity * unit_bytes_) return fail("its size is not its capacity's");
    if (std::popcount(slab.free) != slab.num_free || slab.num_free >= slab.capacity) return fail("wrong free count");
    free += slab.num_free;
    for (int32_t place = 0; place < slab.capacity; ++place) {
      if ((slab.free >> place & 1) != 0) continue;
      const Unit& unit = units_[slab.units[place]];
      if (unit.slab != static_cast<int32_t>(i) || unit.place != place) return fail("a unit says it lies elsewhere");
      if (unit.num_leases == 0 && !unit.cached) return fail("a unit is held by nobody");
      ++held[unit.num_leases == 1 ? 0 : unit.num_leases > 1 ? 1 : 2];
    }
  }
  if (free != free_units_ || held[0] != live_units_ || held[1] != shared_units_ || held[2] != cached_units_) {
    return absl::InternalError(absl::StrCat(
        "pool ", number_, " counts ", live_units_, " live, ", shared_units_, " shared, ", cached_units_, " cached, ",
        free_units_, " free units; its slabs hold ", held[0], ", ", held[1], ", ", held[2], ", ", free));
  }
  return absl::OkStatus();
}

}  // namespace berth
