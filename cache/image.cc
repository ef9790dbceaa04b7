#include "cache/image.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cache/cache.h"

namespace berth {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

CacheImage ImageLayout(const CachePlan& plan, int64_t num_tokens, int64_t num_cross_tokens) {
  CacheImage image;
  image.num_tokens = num_tokens;
  image.num_cross_tokens = num_cross_tokens;
  for (const CacheGroup& group : plan.groups) {
    CacheImage::Group& out = image.groups.emplace_back();
    out.unit_bytes = group.unit_bytes;
    if (num_tokens == 0) continue;
    if (group.kind == CacheKind::kRecurrent) {
      out.num_units = 1;
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

absl::Status CheckImage(const CachePlan& plan, const CacheImage& image) {
  constexpr int64_t kMaxTokens = int64_t{1} << 32;  // far from overflow
  if (image.num_tokens < 0 || image.num_tokens > kMaxTokens || image.num_cross_tokens < 0 ||
      image.num_cross_tokens > kMaxTokens) {
    return absl::InvalidArgumentError(absl::StrCat("the image has ", image.num_tokens, " tokens and ",
                                                   image.num_cross_tokens, " of an encoder, outside [0, 2^32]"));
  }
  const CacheImage wanted = ImageLayout(plan, image.num_tokens, image.num_cross_tokens);
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

CacheImage SequenceLease::Save() const {
  CacheImage image = ImageLayout(cache_->plan(), num_tokens_, num_cross_tokens_);
  image.bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(image.size_bytes));
  std::byte* out = image.bytes.get();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const CacheImage::Group& group = image.groups[g];
    const int64_t sinks = SinkBlocks(static_cast<int>(g));
    const int64_t skipped = group.num_units > 0 ? group.left_blocks - groups_[g].left_blocks : 0;
    for (int64_t i = 0; i < group.num_units; ++i, out += group.unit_bytes) {
      cache_->storage().Read(groups_[g].offsets[i < sinks ? i : skipped + i], group.unit_bytes, out);
    }
  }
  return image;
}

int64_t SequenceLease::image_bytes() const {
  return ImageLayout(cache_->plan(), num_tokens_, num_cross_tokens_).size_bytes;
}

absl::StatusOr<SequenceLease> Cache::Restore(const CacheImage& image) {
  if (absl::Status status = CheckImage(plan_, image); !status.ok()) return status;
  UnitCounts units;
  for (const CacheImage::Group& group : image.groups) units.push_back(group.num_units);
  if (!CanAllocate(units)) {
    return absl::ResourceExhaustedError(absl::StrCat("the cache has no room for the ", image.size_bytes,
                                                     " bytes of a sequence of ", image.num_tokens, " tokens"));
  }
  SequenceLease lease = NewLease(image.num_cross_tokens);
  lease.num_tokens_ = image.num_tokens;
  // All units before any byte: making room for one may move another.
  for (size_t g = 0; g < image.groups.size(); ++g) {
    lease.groups_[g].left_blocks = image.groups[g].left_blocks;
    for (int64_t i = 0; i < image.groups[g].num_units; ++i) {
      lease.Append(static_cast<int>(g), AllocateUnit(static_cast<int>(g)));
    }
  }
  const std::byte* in = image.bytes.get();
  for (size_t g = 0; g < image.groups.size(); ++g) {
    for (int64_t offset : lease.groups_[g].offsets) {
      storage_->Write(offset, image.groups[g].unit_bytes, in);
      in += image.groups[g].unit_bytes;
    }
  }
  return lease;
}

}  // namespace berth
