// Packed matrices in a file: what comes back by name is what was packed, and no file but a whole one of the same
// identity is used.
#include "models/ops/matmul/packed_weights.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <string>
#include <vector>

#include "models/ops/matmul/matmul.h"

namespace berth {
namespace {

namespace fs = std::filesystem;

const std::string kIdentity(32, 'a');

struct Matrix {
  std::string name;
  at::Tensor values;
  DType storage;
};

// Matrices of all kinds, with panels and groups that are not full.
std::vector<Matrix> Matrices() {
  at::manual_seed(14);
  return {{"matrix.0", at::randn({40, 100}), DType::kFloat32},
          {"matrix.1", at::randn({33, 70}).to(at::kBFloat16), DType::kFloat32},
          {"matrix.2", at::randn({37, 65}), DType::kInt8},
          {"matrix.3", at::randn({64, 96}).to(at::kBFloat16), DType::kInt4}};
}

class PackedWeightsTest : public testing::Test {
 protected:
  PackedWeightsTest()
      : folder_(fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }

  // Packs what was not packed yet, and waits until that is kept.
  std::vector<ops::PackedMatrix> Load(bool* mapped, const std::string& identity = kIdentity) {
    PackedWeights packed(path(), identity, &execution_);
    *mapped = packed.mapped();
    std::vector<ops::PackedMatrix> weights;
    int64_t size_bytes = 0;
    for (const Matrix& matrix : matrices_) {
      weights.emplace_back(matrix.name, packed.mapped() ? Meta(matrix) : matrix.values, matrix.storage, &packed);
      size_bytes += weights.back().size_bytes();
    }
    EXPECT_EQ(packed.size_bytes(), size_bytes);
    if (packed.mapped()) return weights;
    std::promise<absl::Status> kept;
    packed.Keep([&](const absl::Status& status) { kept.set_value(status); });
    last_kept_ = kept.get_future().get();
    return weights;
  }
  // The matrix without its values.
  static at::Tensor Meta(const Matrix& matrix) {
    return at::empty(matrix.values.sizes(), matrix.values.options().device(at::kMeta));
  }
  bool Mapped(const std::string& identity = kIdentity) { return PackedWeights(path(), identity, &execution_).mapped(); }
  std::string path() const { return (folder_ / ".berth" / "w.packed").string(); }
  std::string Bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void SetBytes(const std::string& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }

  const fs::path folder_;
  const std::vector<Matrix> matrices_ = Matrices();
  absl::Status last_kept_;
  Execution execution_;
};

TEST_F(PackedWeightsTest, WhatIsMappedComputesWhatWasPacked) {
  bool mapped = true;
  const std::vector<ops::PackedMatrix> packed = Load(&mapped);
  EXPECT_FALSE(mapped);
  ASSERT_TRUE(last_kept_.ok()) << last_kept_;
  // The mapping lives as long as a weight of it.
  const std::vector<ops::PackedMatrix> again = Load(&mapped);
  ASSERT_TRUE(mapped);
  fs::remove(path());
  for (size_t i = 0; i < packed.size(); ++i) {
    const at::Tensor x = at::randn({5, packed[i].inputs()}).to(packed[i].type());
    EXPECT_EQ(again[i].size_bytes(), packed[i].size_bytes());
    EXPECT_TRUE(at::equal(ops::MatMul(x, packed[i], {}, execution_), ops::MatMul(x, again[i], {}, execution_))) << i;
  }
}

TEST_F(PackedWeightsTest, AnotherIdentityIsPackedAndReplacesTheFile) {
  bool mapped = true;
  Load(&mapped);
  const std::string other(32, 'b');
  Load(&mapped, other);
  EXPECT_FALSE(mapped);
  EXPECT_TRUE(Mapped(other));
  EXPECT_FALSE(Mapped());
}

TEST_F(PackedWeightsTest, ADamagedFileIsNotUsedButReplaced) {
  bool mapped = true;
  Load(&mapped);
  const std::string whole = Bytes();
  ASSERT_TRUE(Mapped());
  // All of the head (with four names of 8 bytes), and bytes of the panels, not between them.
  std::vector<size_t> places;
  for (size_t at = 0; at < 56 + 4 * (64 + 8) + 8; ++at) places.push_back(at);
  for (size_t at = 4096; at < whole.size(); at += 1009) places.push_back(at);
  places.push_back(whole.size() - 1);
  for (size_t at : places) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    SetBytes(damaged);
    EXPECT_FALSE(Mapped()) << "byte " << at;
  }
  for (size_t size : {size_t{0}, size_t{7}, size_t{55}, size_t{350}, size_t{4096}, whole.size() - 1}) {
    SetBytes(whole.substr(0, size));
    EXPECT_FALSE(Mapped()) << size << " bytes";
  }
  Load(&mapped);
  EXPECT_FALSE(mapped);
  EXPECT_TRUE(Mapped());
}

TEST_F(PackedWeightsTest, AnotherModelsMatrixIsRefused) {
  bool mapped = true;
  Load(&mapped);
  PackedWeights packed(path(), kIdentity, &execution_);
  const at::Tensor other = at::empty({40, 101}, at::kMeta);
  EXPECT_THROW(ops::PackedMatrix("matrix.0", other, DType::kFloat32, &packed), c10::Error);
}

TEST_F(PackedWeightsTest, NamesAreFoundInAnyOrder) {
  bool mapped = true;
  const std::vector<ops::PackedMatrix> packed = Load(&mapped);
  PackedWeights file(path(), kIdentity, &execution_);
  ASSERT_TRUE(file.mapped());
  for (size_t i = matrices_.size(); i-- > 0;) {
    const ops::PackedMatrix again(matrices_[i].name, Meta(matrices_[i]), matrices_[i].storage, &file);
    const at::Tensor x = at::randn({5, again.inputs()}).to(again.type());
    EXPECT_TRUE(at::equal(ops::MatMul(x, packed[i], {}, execution_), ops::MatMul(x, again, {}, execution_))) << i;
  }
}

TEST_F(PackedWeightsTest, AMissingOrRepeatedNameIsRefused) {
  bool mapped = true;
  Load(&mapped);
  PackedWeights file(path(), kIdentity, &execution_);
  const auto take = [&](const std::string& name) {
    ops::PackedMatrix(name, Meta(matrices_[0]), matrices_[0].storage, &file);
  };
  EXPECT_THROW(take("matrix"), c10::Error);
  EXPECT_THROW(take("matrix.00"), c10::Error);
  take("matrix.0");
  EXPECT_THROW(take("matrix.0"), c10::Error);
  PackedWeights packing(&execution_);
  ops::PackedMatrix("twice", matrices_[0].values, DType::kFloat32, &packing);
  EXPECT_THROW(ops::PackedMatrix("twice", matrices_[1].values, DType::kFloat32, &packing), c10::Error);
}

TEST_F(PackedWeightsTest, WhatCannotBeKeptIsSaid) {
  fs::remove_all(folder_);
  bool mapped = true;
  Load(&mapped);
  EXPECT_FALSE(last_kept_.ok());
  EXPECT_NE(last_kept_.message().find(folder_.string()), std::string::npos) << last_kept_;
}

TEST_F(PackedWeightsTest, WhoGoesBeforeItIsWrittenLeavesNothing) {
  {
    PackedWeights packed(path(), kIdentity, &execution_);
    const ops::PackedMatrix weight("weight", at::randn({4096, 4096}), DType::kFloat32, &packed);
    packed.Keep([](const absl::Status&) {});
  }
  EXPECT_TRUE(Mapped() || (!fs::exists(path()) && !fs::exists(path() + ".part")));
}

TEST_F(PackedWeightsTest, WithoutAFileItOnlyCounts) {
  PackedWeights packed(&execution_);
  const ops::PackedMatrix weight("weight", at::randn({64, 64}), DType::kInt8, &packed);
  EXPECT_EQ(packed.size_bytes(), weight.size_bytes());
  packed.Keep([](const absl::Status&) { FAIL() << "there is no file to write"; });
}

}  // namespace
}  // namespace berth
