#include "cache/image.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "cache/cache.h"

namespace berth {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A snapshot is one range of bytes, group after group and unit after unit. A step's copy budget may end anywhere:
//
//   group 0                    group 1
//   | unit 0 | unit 1 | unit 2 | unit 0 | unit 1 |
//                  ^ from           ^ to
//
// Calls `copy` for each piece of a unit of `group` within bytes [from, to). The group's bytes start at `start`.
void ForPieces(const CacheImage::Group& group, int64_t start, int64_t from, int64_t to,
               absl::FunctionRef<void(int64_t unit, int64_t at, int64_t size_bytes)> copy) {
  from = std::max<int64_t>(0, from - start);
  to = std::min(to - start, group.num_units * group.unit_bytes);
  while (from < to) {
    const int64_t unit = from / group.unit_bytes;
    const int64_t end = std::min(to, (unit + 1) * group.unit_bytes);
    copy(unit, from - unit * group.unit_bytes, end - from);
    from = end;
  }
}

// Lays out the plan's first `num_groups` groups. `states`: the group that holds the states.
CacheImage Layout(const CachePlan& plan, size_t num_groups, int states, int64_t num_tokens, int64_t num_cross_tokens) {
  CacheImage image;
  image.num_tokens = num_tokens;
  image.num_cross_tokens = num_cross_tokens;
  for (size_t g = 0; g < num_groups; ++g) {
    const CacheGroup& group = plan.groups[g];
    CacheImage::Group& out = image.groups.emplace_back();
    out.unit_bytes = group.unit_bytes;
    if (num_tokens == 0) continue;
    if (group.of_states()) {
      out.num_units = static_cast<int>(g) == states ? 1 : 0;
    } else if (group.kind == CacheKind::kCross) {
      out.num_units = CeilDiv(num_cross_tokens, plan.block_tokens);
    } else {
      out.left_blocks = group.kv.LeftBlocks(num_tokens, plan.block_tokens);
      out.num_units = CeilDiv(num_tokens, plan.block_tokens) - out.left_blocks;
    }
    image.size_bytes += out.num_units * out.unit_bytes;
  }
  return image;
}

absl::Status CheckTokens(const CacheImage& image) {
  constexpr int64_t kMaxTokens = int64_t{1} << 32;  // far from overflow
  if (image.num_tokens < 0 || image.num_tokens > kMaxTokens || image.num_cross_tokens < 0 ||
      image.num_cross_tokens > kMaxTokens) {
    return absl::InvalidArgumentError(absl::StrCat("the image has ", image.num_tokens, " tokens and ",
                                                   image.num_cross_tokens, " of an encoder, outside [0, 2^32]"));
  }
  return absl::OkStatus();
}

absl::Status CheckGroups(const CacheImage& image, const CacheImage& wanted) {
  if (image.num_cross_tokens != wanted.num_cross_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("the image has ", image.num_cross_tokens, " tokens of an encoder, not ", wanted.num_cross_tokens));
  }
  if (image.groups.size() != wanted.groups.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the image has ", image.groups.size(), " groups, the plan ", wanted.groups.size()));
  }
  for (size_t g = 0; g < wanted.groups.size(); ++g) {
    const CacheImage::Group& have = image.groups[g];
    const CacheImage::Group& want = wanted.groups[g];
    if (have == want) continue;
    return absl::InvalidArgumentError(absl::StrCat("group ", g, " of the image has ", have.num_units, " units of ",
                                                   have.unit_bytes, " bytes without ", have.left_blocks,
                                                   " blocks; its ", image.num_tokens, " tokens need ", want.num_units,
                                                   " of ", want.unit_bytes, " without ", want.left_blocks));
  }
  if (image.size_bytes != wanted.size_bytes || (image.size_bytes > 0 && image.bytes == nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the image has ", image.size_bytes, " bytes, its units ", wanted.size_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

CacheImage ImageLayout(const CachePlan& plan, int64_t num_tokens, int64_t num_cross_tokens) {
  const size_t num_groups = plan.groups.size() - (plan.checkpoint_group() >= 0 ? 1 : 0);
  return Layout(plan, num_groups, plan.state_group(), num_tokens, num_cross_tokens);
}

CacheImage PrefixLayout(const CachePlan& plan, int64_t num_tokens) {
  return Layout(plan, plan.groups.size(), plan.kept_group(), num_tokens, /*num_cross_tokens=*/0);
}

absl::Status CheckImage(const CachePlan& plan, const CacheImage& image) {
  if (absl::Status status = CheckTokens(image); !status.ok()) return status;
  return CheckGroups(image, ImageLayout(plan, image.num_tokens, image.num_cross_tokens));
}

absl::Status CheckPrefixImage(const CachePlan& plan, const CacheImage& image) {
  if (absl::Status status = CheckTokens(image); !status.ok()) return status;
  return CheckGroups(image, PrefixLayout(plan, image.num_tokens));
}

bool ImageServes(const CachePlan& plan, int64_t num_tokens, int64_t first_tokens) {
  if (first_tokens == num_tokens) return true;
  if (first_tokens > num_tokens || first_tokens == 0) return false;
  return std::all_of(plan.groups.begin(), plan.groups.end(), [&](const CacheGroup& group) {
    return group.grows() &&
           group.kv.LeftBlocks(num_tokens, plan.block_tokens) == group.kv.LeftBlocks(first_tokens, plan.block_tokens);
  });
}

CacheImage SequenceLease::NewImage() const {
  CacheImage image = ImageLayout(cache_->plan(), num_tokens_, num_cross_tokens_);
  image.bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(image.size_bytes));
  return image;
}

CacheImage SequenceLease::Save() const {
  CacheImage image = NewImage();
  Save(0, image.size_bytes, &image);
  return image;
}

void SequenceLease::Save(int64_t from, int64_t to, CacheImage* image) const {
  std::vector<ImageSpan> spans;
  LocateSaved(from, to, image, &spans);
  for (const ImageSpan& span : spans) {
    if (span.offset >= 0) cache_->storage().Read(span.offset, span.size_bytes, span.bytes);
  }
}

void SequenceLease::LocateSaved(int64_t from, int64_t to, CacheImage* image, std::vector<ImageSpan>* spans) const {
  int64_t start = 0;
  for (size_t g = 0; g < image->groups.size(); ++g) {
    const CacheImage::Group& group = image->groups[g];
    std::byte* const out = image->bytes.get() + start;
    const bool expands = HoldsCheckpoint() && static_cast<int>(g) == cache_->plan().state_group();
    const int64_t sinks = SinkBlocks(static_cast<int>(g));
    const int64_t skipped = group.left_blocks - groups_[g].left_blocks;
    ForPieces(group, start, from, to, [&](int64_t unit, int64_t at, int64_t size) {
      std::byte* const bytes = out + unit * group.unit_bytes + at;
      if (expands) return spans->push_back({-1, bytes, size});
      spans->push_back({groups_[g].offsets[unit < sinks ? unit : skipped + unit] + at, bytes, size});
    });
    if (expands && from <= start && start < to) {
      std::fill_n(out, group.unit_bytes, std::byte{0});  // also the padding between states
      cache_->ReadCheckpoint(groups_[cache_->plan().checkpoint_group()].offsets[0], out);
    }
    start += group.num_units * group.unit_bytes;
  }
}

void SequenceLease::Load(const CacheImage& image, int64_t from, int64_t to) {
  std::vector<ImageSpan> spans;
  Locate(image, from, to, &spans);
  for (const ImageSpan& span : spans) cache_->storage().Write(span.offset, span.size_bytes, span.bytes);
}

void SequenceLease::Locate(const CacheImage& image, int64_t from, int64_t to, std::vector<ImageSpan>* spans) const {
  const CacheImage layout = HoldsCheckpoint() ? PrefixLayout(cache_->plan(), num_tokens_)
                                              : ImageLayout(cache_->plan(), num_tokens_, num_cross_tokens_);
  std::byte* in = image.bytes.get();
  int64_t start = 0;  // of the group, among the lease's bytes
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const CacheImage::Group& group = layout.groups[g];
    ForPieces(group, start, from, to, [&](int64_t unit, int64_t at, int64_t size) {
      spans->push_back({groups_[g].offsets[unit] + at, in + unit * group.unit_bytes + at, size});
    });
    start += group.num_units * group.unit_bytes;
    in += image.groups[g].num_units * image.groups[g].unit_bytes;
  }
}

bool Cache::ReadPrefix(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                       CacheImage* image) {
  std::vector<ImageSpan> spans;
  if (!LocatePrefix(salt, tokens, from, to, image, &spans)) return false;
  for (const ImageSpan& span : spans) {
    if (span.offset >= 0) storage_->Read(span.offset, span.size_bytes, span.bytes);
  }
  return true;
}

bool Cache::LocatePrefix(absl::string_view salt, absl::Span<const int32_t> tokens, int64_t from, int64_t to,
                         CacheImage* image, std::vector<ImageSpan>* spans) {
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  PrefixIndex::Node* const root = index_.Root(salt);
  const PrefixIndex::Match match = index_.Find(root, tokens, num_tokens, /*multiple=*/1);
  const bool whole = match.num_tokens == num_tokens;
  std::byte* out = image->bytes.get();
  int64_t start = 0;
  for (size_t g = 0; g < image->groups.size() && whole; ++g) {
    const CacheImage::Group& group = image->groups[g];
    ForPieces(group, start, from, to, [&](int64_t unit, int64_t at, int64_t size) {
      const int64_t sinks = plan_.groups[g].kv.SinkBlocks(plan_.block_tokens);
      const int64_t block = unit < sinks ? unit : unit + group.left_blocks;
      const UnitId id =
          plan_.groups[g].grows() ? PrefixIndex::UnitOf(match.path[block], static_cast<int>(g)) : match.state;
      ImageSpan span = {pools_[g].offset(id) + at, out + start + unit * group.unit_bytes + at, size};
      const bool in_part = plan_.groups[g].grows() && (block + 1) * plan_.block_tokens > num_tokens;
      if (in_part && pools_[g].num_leases(id) > 0) {
        storage_->Read(span.offset, span.size_bytes, span.bytes);
        span.offset = -1;
      }
      spans->push_back(span);
    });
    start += group.num_units * group.unit_bytes;
  }
  index_.Unpin(root);
  return whole;
}

int64_t SequenceLease::image_bytes() const {
  return ImageLayout(cache_->plan(), num_tokens_, num_cross_tokens_).size_bytes;
}

// A snapshot knows no units: it restores into whatever units are free now. Reserve takes all of them before Load copies
// a byte, because making room for one unit may move another. A caller with a copy budget calls the two itself, and Load
// in pieces over several steps; moved units are no problem in between, because Load looks offsets up each time.
absl::StatusOr<SequenceLease> Cache::Restore(const CacheImage& image) {
  if (absl::Status status = CheckImage(plan_, image); !status.ok()) return status;
  absl::StatusOr<SequenceLease> lease = Reserve(image);
  if (lease.ok()) lease->Load(image, 0, image.size_bytes);
  return lease;
}

absl::StatusOr<SequenceLease> Cache::Reserve(const CacheImage& image) {
  UnitCounts units(pools_.size());
  for (size_t g = 0; g < image.groups.size(); ++g) units[g] = image.groups[g].num_units;
  if (!CanAllocate(units)) {
    return absl::ResourceExhaustedError(absl::StrCat("the cache has no room for the ", image.size_bytes,
                                                     " bytes of a sequence of ", image.num_tokens, " tokens"));
  }
  SequenceLease lease = NewLease(image.num_cross_tokens);
  lease.num_tokens_ = image.num_tokens;
  // Allocates all units before any byte is copied: making room for one may move another.
  for (size_t g = 0; g < image.groups.size(); ++g) {
    lease.groups_[g].left_blocks = image.groups[g].left_blocks;
    for (int64_t i = 0; i < image.groups[g].num_units; ++i) {
      lease.Append(static_cast<int>(g), AllocateUnit(static_cast<int>(g)));
    }
  }
  return lease;
}

}  // namespace berth
