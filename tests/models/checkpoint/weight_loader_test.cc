#include "models/checkpoint/weight_loader.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "cache/spec.h"
#include "tests/models/checkpoint_writer.h"

namespace berth {
namespace {

class Writer : public CheckpointWriter {
 public:
  std::shared_ptr<const Checkpoint> Open(size_t padding = 0) const {
    const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "loader";
    Write(dir, padding);
    absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(dir.string());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return *std::move(checkpoint);
  }
};

const float kValues[] = {1, -2, 0.5, 3.140625, 65280, -0.0078125};

at::Tensor Values(at::ScalarType type) { return at::tensor(at::ArrayRef<float>(kValues)).to(type).view({2, 3}); }

Writer AllTypes() {
  Writer writer;
  writer.Add("model.f32", "F32", {2, 3}, Values(at::kFloat));
  writer.Add("model.bf16", "BF16", {2, 3}, Values(at::kBFloat16));
  writer.Add("model.f16", "F16", {2, 3}, Values(at::kHalf));
  writer.Add("model.i64", "I64", {2, 3}, Values(at::kFloat).to(at::kLong));
  return writer;
}

TEST(WeightLoader, ConvertsToTheRunsDType) {
  const std::shared_ptr<const Checkpoint> checkpoint = AllTypes().Open();
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const at::ScalarType type = dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16;
    WeightLoader loader(checkpoint, {.dtype = dtype});
    for (auto [name, stored] :
         {std::pair("model.f32", at::kFloat), {"model.bf16", at::kBFloat16}, {"model.f16", at::kHalf}}) {
      EXPECT_TRUE(at::equal(loader.Get(name, {2, 3}), Values(stored).to(type))) << name;
      EXPECT_EQ(loader.GetFloat32(name, {2, 3}).scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(loader.GetFloat32(name, {2, 3}), Values(stored).to(at::kFloat))) << name;
    }
    EXPECT_TRUE(loader.status().ok()) << loader.status();
    EXPECT_EQ(loader.num_parameters(), 18);
    EXPECT_EQ(loader.weight_bytes(), 18 * DTypeBytes(dtype));
  }
}

TEST(WeightLoader, CountsTheBytesOfMatricesOnlyWhereTheyAreKeptToo) {
  WeightLoader loader(AllTypes().Open(), {.dtype = DType::kFloat32});
  EXPECT_TRUE(at::equal(loader.GetMatrix("model.f32", {2, 3}), Values(at::kFloat)));
  EXPECT_EQ(loader.weight_bytes(), 0);
  loader.Get("model.f32", {2, 3});  // an embedding that is the head as well
  loader.GetMatrix("model.bf16", {2, 3});
  EXPECT_EQ(loader.weight_bytes(), 6 * 4);
  EXPECT_EQ(loader.num_parameters(), 12);
}

TEST(WeightLoader, MatricesThatArePackedElsewhereAreCheckedAndHaveNoValues) {
  WeightLoader loader(AllTypes().Open(), {.dtype = DType::kBFloat16, .matrices_need_no_values = true});
  const at::Tensor matrix = loader.GetMatrix("model.f32", {2, 3});
  EXPECT_TRUE(matrix.is_meta());
  EXPECT_EQ(matrix.scalar_type(), at::kBFloat16);
  EXPECT_EQ(loader.num_parameters(), 6);
  EXPECT_TRUE(at::equal(loader.Get("model.bf16", {2, 3}), Values(at::kBFloat16)));
  EXPECT_TRUE(loader.status().ok());
  loader.GetMatrix("model.f32", {3, 2});
  EXPECT_EQ(loader.status().message(), "checkpoint: model.f32: shape [2, 3] found, [3, 2] expected");
}

TEST(WeightLoader, ViewsTheFileWhereItCan) {
  std::shared_ptr<const Checkpoint> checkpoint = AllTypes().Open();
  const std::byte* f32 = checkpoint->Find("model.f32")->data;
  at::Tensor view;
  {
    WeightLoader loader(checkpoint, {.dtype = DType::kFloat32});
    view = loader.Get("model.f32", {2, 3});
    EXPECT_EQ(view.const_data_ptr(), f32);
    EXPECT_NE(loader.Get("model.bf16", {2, 3}).const_data_ptr(), checkpoint->Find("model.bf16")->data);
  }
  // The view alone keeps the file mapped.
  checkpoint.reset();
  EXPECT_TRUE(at::equal(view, Values(at::kFloat)));
}

TEST(WeightLoader, CopiesWhatIsMisaligned) {
  for (size_t padding : {1, 2, 4}) {
    const std::shared_ptr<const Checkpoint> checkpoint = AllTypes().Open(padding);
    for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      WeightLoader loader(checkpoint, {.dtype = dtype});
      const at::Tensor f32 = loader.GetFloat32("model.f32", {2, 3});
      EXPECT_EQ(reinterpret_cast<uintptr_t>(f32.const_data_ptr()) % 4, 0u);
      EXPECT_EQ(f32.const_data_ptr() == checkpoint->Find("model.f32")->data, padding == 4);
      EXPECT_TRUE(at::equal(f32, Values(at::kFloat)));
      EXPECT_TRUE(at::equal(loader.Get("model.bf16", {2, 3}).to(at::kFloat), Values(at::kBFloat16).to(at::kFloat)));
    }
  }
}

TEST(WeightLoader, TheFirstErrorSticksAndNamesTheTensor) {
  const auto error = [](auto get) {
    WeightLoader loader = WeightLoader(AllTypes().Open(), {}).Under("model.");
    const at::Tensor tensor = get(loader);
    EXPECT_EQ(tensor.sizes(), (at::IntArrayRef{3, 2}));
    loader.Get("later", {1});
    EXPECT_EQ(loader.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(loader.status().message());
  };
  EXPECT_EQ(error([](WeightLoader& w) {
              return w.Get("x", {3, 2});
            }),
            "checkpoint: model.x: is absent, expected shape [3, 2]");
  EXPECT_EQ(error([](WeightLoader& w) {
              return w.Get("f32", {3, 2});
            }),
            "checkpoint: model.f32: shape [2, 3] found, [3, 2] expected");
  EXPECT_EQ(error([](WeightLoader& w) {
              return w.GetOptional("f32", {3, 2});
            }),
            "checkpoint: model.f32: shape [2, 3] found, [3, 2] expected");
  WeightLoader loader(AllTypes().Open(), {});
  loader.Get("model.i64", {2, 3});
  EXPECT_EQ(loader.status().message(), "checkpoint: model.i64: dtype I64 found, F32, BF16 or F16 expected");
}

TEST(WeightLoader, OptionalTensorsMayBeAbsent) {
  WeightLoader loader(AllTypes().Open(), {});
  EXPECT_FALSE(loader.GetOptional("model.bias", {2}).defined());
  EXPECT_TRUE(loader.GetOptional("model.f32", {2, 3}).defined());
  EXPECT_TRUE(loader.status().ok());
}

TEST(WeightLoader, FindsThePrefix) {
  const WeightLoader root(AllTypes().Open(), {});
  WeightLoader found = root.UnderFirst({"", "text.", "model."}, "f32");
  EXPECT_TRUE(found.Has("bf16"));
  EXPECT_EQ(found.Shape("bf16"), (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(found.Shape("absent").empty());
  WeightLoader lost = root.UnderFirst({"text.", "model."}, "absent");
  lost.Get("f32", {1});
  EXPECT_EQ(root.status().message(), "checkpoint: text.f32: is absent, expected shape [1]");
}

TEST(WeightLoader, TellsTensorsThatWereSavedTwice) {
  Writer writer = AllTypes();
  writer.Add("twice", "F32", {2, 3}, Values(at::kFloat));
  writer.Add("scaled", "F32", {2, 3}, Values(at::kFloat).neg());
  writer.Add("flat", "F32", {6}, Values(at::kFloat));
  const WeightLoader loader(writer.Open(), {});
  EXPECT_TRUE(loader.Same("model.f32", "twice"));
  for (const char* other : {"scaled", "flat", "model.bf16", "absent"}) {
    EXPECT_FALSE(loader.Same("model.f32", other)) << other;
  }
}

TEST(WeightLoader, FindsAWrappedTextModelByItsOwnNames) {
  const at::Tensor one = at::tensor(at::ArrayRef<float>({1.0f}));
  const std::vector<std::vector<const char*>> layouts = {
      {"language_model.model.norm.weight", "language_model.lm_head.weight", "vision_tower.norm.weight",
       "language_model.model.extra"},
      {"model.language_model.norm.weight", "lm_head.weight", "model.visual.norm.weight", "model.language_model.extra"},
  };
  for (const auto& names : layouts) {
    Writer writer;
    for (const char* name : names) writer.Add(name, "F32", {1}, one);
    WeightLoader root(writer.Open(), {});
    WeightLoader model = root.Under("model.");
    EXPECT_TRUE(model.Has("norm.weight"));
    EXPECT_EQ(root.Shape("model.norm.weight"), std::vector<int64_t>{1});
    model.Get("norm.weight", {1});
    root.Get("lm_head.weight", {1});
    EXPECT_TRUE(root.status().ok()) << root.status();
    EXPECT_EQ(root.Unused(), std::vector<std::string>{names[3]});
    root.IgnoreUnder("model.extra");
    EXPECT_TRUE(root.Unused().empty());
    root.Get("model.absent", {1});
    const std::string stored = absl::StrCat(std::string(names[0]).substr(0, 21), "absent");
    EXPECT_EQ(root.status().message(), absl::StrCat("checkpoint: ", stored, ": is absent, expected shape [1]"));
  }
}

TEST(WeightLoader, TellsWhatNobodyRead) {
  Writer writer = AllTypes();
  const at::Tensor one = at::tensor(at::ArrayRef<float>({1.0f}));
  for (const char* name :
       {"model.rotary_emb.inv_freq", "model.visual.patch", "lm_head.weight", "model.layers.0.bias"}) {
    writer.Add(name, "F32", {1}, one);
  }
  WeightLoader root(writer.Open(), {});
  WeightLoader loader = root.Under("model.");
  loader.Get("f32", {2, 3});
  loader.Get("bf16", {2, 3});
  loader.IgnoreUnder("visual.");
  root.IgnoreUnder("lm_head.");
  EXPECT_EQ(root.Unused(), (std::vector<std::string>{"model.f16", "model.i64", "model.layers.0.bias"}));
}

}  // namespace
}  // namespace berth
