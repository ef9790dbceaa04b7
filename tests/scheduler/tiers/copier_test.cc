#include "scheduler/tiers/copier.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "tests/testing/failing_storage.h"

namespace berth {
namespace {

constexpr int64_t kArena = int64_t{6} << 20;

std::byte Pattern(int64_t i) { return static_cast<std::byte>(i * 7 + i / 251); }

class CopierTest : public ::testing::TestWithParam<bool> {
 protected:
  CopierTest() : storage_(*CreateHostStorage(kArena)), host_(kArena) {
    for (int64_t i = 0; i < kArena; ++i) storage_->base()[i] = Pattern(i);
  }

  std::unique_ptr<ArenaStorage> storage_;
  std::vector<std::byte> host_;
};

// However often a copy is ended, what Finish says was copied is there, and nothing after it.
TEST_P(CopierTest, GoesOnWhereItWasEnded) {
  Copier copier(storage_.get(), /*beside_steps=*/GetParam(), absl::Now);
  int64_t done = 0;
  for (int step = 0; done < kArena; ++step) {
    const int64_t first = std::min<int64_t>(kArena - done, 100);  // spans of odd sizes
    copier.out().push_back({.offset = done, .bytes = host_.data() + done, .size_bytes = first});
    copier.out().push_back(
        {.offset = done + first, .bytes = host_.data() + done + first, .size_bytes = kArena - done - first});
    copier.Start();
    const Copier::Done step_done = copier.Finish();
    EXPECT_EQ(step_done.in_bytes, 0);
    done += step_done.out_bytes;
    ASSERT_EQ(std::memcmp(host_.data(), storage_->base(), done), 0);
    if (done < kArena) {
      ASSERT_EQ(host_[done], std::byte{0});
    }
    EXPECT_TRUE(copier.out().empty());
  }
  EXPECT_EQ(done, kArena);
}

// Counts the pieces that it is read in. Each takes `time` at the least.
class CountingStorage final : public ArenaStorage {
 public:
  CountingStorage(ArenaStorage* host, int64_t piece_bytes, absl::Duration time = absl::ZeroDuration())
      : host_(host), piece_bytes_(piece_bytes), time_(time) {}
  std::byte* base() const override { return host_->base(); }
  int64_t size_bytes() const override { return host_->size_bytes(); }
  void Move(int64_t, int64_t, int64_t) override {}
  void Convert(const StateConversion&) override {}
  void Read(int64_t offset, int64_t size_bytes, std::byte* out) const override {
    pieces.push_back(size_bytes);
    absl::SleepFor(time_);
    host_->Read(offset, size_bytes, out);
  }
  void Write(int64_t, int64_t, const std::byte*) override {}
  void Poison(int64_t, int64_t) override {}
  int64_t piece_bytes() const override { return piece_bytes_; }

  mutable std::vector<int64_t> pieces;

 private:
  ArenaStorage* const host_;
  const int64_t piece_bytes_;
  const absl::Duration time_;
};

TEST_P(CopierTest, TheStorageSaysHowLargeAPieceIs) {
  CountingStorage storage(storage_.get(), /*piece_bytes=*/4 << 20);
  Copier copier(&storage, /*beside_steps=*/GetParam(), absl::Now);
  for (int64_t done = 0; done < kArena;) {
    copier.out().push_back({.offset = done, .bytes = host_.data() + done, .size_bytes = kArena - done});
    copier.Start();
    done += copier.Finish().out_bytes;
  }
  EXPECT_EQ(storage.pieces, (std::vector<int64_t>{4 << 20, 2 << 20}));
}

// Bytes from a failed arena do not count as copied, so no snapshot of them becomes whole.
TEST_P(CopierTest, AFailedArenaCompletesNoCopy) {
  FailingStorage storage(storage_.get());
  storage.Fail(absl::InternalError("no device"));
  Copier copier(&storage, /*beside_steps=*/GetParam(), absl::Now);
  copier.out().push_back({.offset = 0, .bytes = host_.data(), .size_bytes = kArena});
  copier.Start();
  EXPECT_EQ(copier.Finish().out_bytes, 0);
}

TEST_P(CopierTest, BothWays) {
  constexpr int64_t kHalf = kArena / 2;
  for (int64_t i = 0; i < kHalf; ++i) host_[i] = std::byte{1};
  Copier copier(storage_.get(), /*beside_steps=*/GetParam(), absl::Now);
  int64_t in = 0;
  int64_t out = 0;
  while (in < kHalf || out < kHalf) {
    if (in < kHalf) copier.in().push_back({.offset = in, .bytes = host_.data() + in, .size_bytes = kHalf - in});
    if (out < kHalf) {
      copier.out().push_back({.offset = kHalf + out, .bytes = host_.data() + kHalf + out, .size_bytes = kHalf - out});
    }
    copier.Start();
    const Copier::Done done = copier.Finish();
    in += done.in_bytes;
    out += done.out_bytes;
  }
  for (int64_t i = 0; i < kHalf; ++i) {
    ASSERT_EQ(storage_->base()[i], std::byte{1});
    ASSERT_EQ(host_[kHalf + i], Pattern(kHalf + i));
  }
}

TEST_P(CopierTest, WithoutSpansNothing) {
  Copier copier(storage_.get(), /*beside_steps=*/GetParam(), absl::Now);
  for (int i = 0; i < 3; ++i) {
    copier.Start();
    const Copier::Done done = copier.Finish();
    EXPECT_EQ(done.in_bytes + done.out_bytes, 0);
    EXPECT_EQ(done.time, absl::ZeroDuration());
  }
}

// Its end does not wait for the rest of a copy, which takes two minutes.
TEST_P(CopierTest, GoesInTheMiddle) {
  constexpr int64_t kPiece = 1024;
  const bool beside_steps = GetParam();
  CountingStorage storage(storage_.get(), kPiece, beside_steps ? absl::Milliseconds(20) : absl::ZeroDuration());
  {
    Copier copier(&storage, beside_steps, absl::Now);
    copier.out().push_back({.offset = 0, .bytes = host_.data(), .size_bytes = kArena});
    copier.Start();
  }
  EXPECT_FALSE(storage.pieces.empty());
  if (beside_steps) {
    EXPECT_LT(static_cast<int64_t>(storage.pieces.size()), kArena / kPiece);
  }
}

INSTANTIATE_TEST_SUITE_P(, CopierTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "BesideSteps" : "InStart"; });

}  // namespace
}  // namespace berth
