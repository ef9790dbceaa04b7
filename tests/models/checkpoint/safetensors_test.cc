#include "models/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

namespace berth {
namespace {

namespace fs = std::filesystem;

std::string File(const std::string& header, const std::string& data) {
  std::string file;
  uint64_t length = header.size();
  for (int i = 0; i < 8; ++i, length >>= 8) file.push_back(static_cast<char>(length & 0xff));
  return file + header + data;
}

const char kHeader[] =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
    R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"none":{"dtype":"F32","shape":[0,7],"data_offsets":[28,28]},)"
    R"("scalar":{"dtype":"I64","shape":[],"data_offsets":[28,36]}}   )";

std::string GoodFile() {
  std::string data;
  for (int i = 0; i < 36; ++i) data.push_back(static_cast<char>(i));
  return File(kHeader, data);
}

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() : dir_(fs::path(testing::TempDir()) / "checkpoint") {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }

  void Write(const std::string& name, const std::string& content) {
    fs::remove(dir_ / name);  // ext4 flushes a file that is truncated and written again
    std::ofstream(dir_ / name, std::ios::binary) << content;
  }

  absl::StatusOr<std::unique_ptr<Checkpoint>> OpenFile(const std::string& content) {
    Write("model.safetensors", content);
    return Checkpoint::Open(dir_.string());
  }

  fs::path dir_;
};

TEST_F(SafetensorsTest, ReadsAFile) {
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = OpenFile(GoodFile());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->names(), (std::vector<std::string>{"a", "b", "none", "scalar"}));
  EXPECT_EQ((*checkpoint)->size_bytes(), 36);
  const TensorView* b = (*checkpoint)->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, TensorDType::kF32);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b->bytes, 24);
  EXPECT_EQ(static_cast<int>(b->data[0]), 4);
  EXPECT_EQ((*checkpoint)->Find("none")->bytes, 0);
  EXPECT_TRUE((*checkpoint)->Find("scalar")->shape.empty());
  EXPECT_EQ((*checkpoint)->Find("__metadata__"), nullptr);
  EXPECT_EQ((*checkpoint)->Find("c"), nullptr);
}

TEST_F(SafetensorsTest, ReadsAFileOfNoTensors) {
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = OpenFile(File("{}", ""));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->names().empty());
}

struct Malformed {
  const char* name;
  std::string file;
  const char* message;  // part of it
};

class MalformedTest : public SafetensorsTest, public testing::WithParamInterface<Malformed> {};

TEST_P(MalformedTest, IsRefusedWithAClearMessage) {
  const absl::Status status = OpenFile(GetParam().file).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(GetParam().message), std::string::npos) << status;
  EXPECT_NE(status.message().find("model.safetensors"), std::string::npos) << status;
}

std::string Tensors(const std::string& json, size_t data_bytes) { return File(json, std::string(data_bytes, 'x')); }

INSTANTIATE_TEST_SUITE_P(
    Files, MalformedTest,
    testing::Values(
        Malformed{"Empty", "", "0 bytes are fewer than the 8"},
        Malformed{"LengthBeyondFile", File("{}", "").replace(0, 1, "\x03"), "header of 3 bytes is over the limit of 2"},
        Malformed{"HugeLength", std::string(8, '\xff') + "{}",
                  "header of 18446744073709551615 bytes is over the limit"},
        Malformed{"NoJson", File("{\"a\"", ""), "is not JSON"},
        Malformed{"NoUtf8", File("{\"\xff\": 1}", ""), "is not JSON"},
        Malformed{"NoObject", File("[]", ""), "must be a JSON object"},
        Malformed{"Deep", File("{\"a\":" + std::string(10000, '['), ""), "nested deeper than the limit of 8"},
        Malformed{"TensorNoObject", File(R"({"a":3})", ""), "\"a\": must be an object, is 3"},
        Malformed{"NoDType", File(R"({"a":{"shape":[],"data_offsets":[0,0]}})", ""), "\"a\": dtype is absent"},
        Malformed{"NoShape", File(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", ""), "\"a\": shape is absent"},
        Malformed{"NoOffsets", File(R"({"a":{"dtype":"U8","shape":[]}})", ""), "\"a\": data_offsets is absent"},
        Malformed{"UnknownDType", File(R"({"a":{"dtype":"F31","shape":[0],"data_offsets":[0,0]}})", ""),
                  "\"a\": dtype \"F31\" is unknown"},
        Malformed{"DTypeNoString", File(R"({"a":{"dtype":7,"shape":[0],"data_offsets":[0,0]}})", ""),
                  "\"a\": dtype 7 is unknown"},
        Malformed{"ShapeNoList", Tensors(R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", 4),
                  "\"a\": shape 4 is not a list"},
        Malformed{"NegativeShape", Tensors(R"({"a":{"dtype":"U8","shape":[-2,-2],"data_offsets":[0,4]}})", 4),
                  "\"a\": shape [-2,-2] has a size"},
        Malformed{"OverflowingShape",
                  Tensors(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
                  "of shape [4294967296,4294967296] needs"},
        Malformed{
            "ManyDimensions",
            Tensors(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1),
            "17 dimensions are over the limit of 16"},
        Malformed{"OffsetsReversed", Tensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4),
                  "\"a\": data_offsets [4,0] is not a [begin, end] with begin <= end"},
        Malformed{"OffsetsThree", Tensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})", 4),
                  "is not a [begin, end] with begin <= end"},
        Malformed{"OffsetsFraction", Tensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4.0]}})", 4),
                  "is not a [begin, end] with begin <= end"},
        Malformed{"OffsetsHuge",
                  Tensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[18446744073709551612,0]}})", 4),
                  "is not a [begin, end] with begin <= end"},
        Malformed{"Truncated", Tensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3),
                  "\"a\": data_offsets [0,4] end beyond the file's 3 bytes"},
        Malformed{"SizeMismatch", Tensors(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}})", 16),
                  "hold 16 bytes, \"F32\" of shape [3] needs 12"},
        Malformed{"HalfByte", Tensors(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1), "needs 1"},
        Malformed{"Overlap",
                  Tensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                          R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                          6),
                  "\"b\": begins at byte 2, overlapping the tensor before, which ends at 4"},
        Malformed{"Gap",
                  Tensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                          R"("b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})",
                          9),
                  "\"b\": begins at byte 5, leaving a gap after the tensor before, which ends at 4"},
        Malformed{"TrailingBytes", Tensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 5),
                  "the tensors fill 4 bytes, the file has 5"},
        Malformed{"Duplicate",
                  Tensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                          R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                          4),
                  "key \"a\" occurs twice"},
        Malformed{"ControlCharacters", Tensors(R"({"\u001b[31m":{"dtype":"U9","shape":[4],"data_offsets":[0,4]}})", 4),
                  "\"\\x1b[31m\""}),
    [](const auto& info) { return info.param.name; });

TEST_F(SafetensorsTest, EveryPrefixOfAFileIsRefused) {
  const std::string good = GoodFile();
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_EQ(OpenFile(good.substr(0, length)).status().code(), absl::StatusCode::kInvalidArgument) << length;
  }
  EXPECT_TRUE(OpenFile(good).ok());
}

// Whatever is in the file, opening it ends, and what it hands out can be read to the last byte.
TEST_F(SafetensorsTest, RandomMutationsNeverReadOutsideTheFile) {
  std::mt19937_64 random(1);
  const std::string good = GoodFile();
  int opened = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string file = good;
    const size_t changes = 1 + random() % 4;
    for (size_t i = 0; i < changes; ++i) {
      const size_t at = random() % file.size();
      switch (random() % 5) {
        case 0:
          file[at] = static_cast<char>(random());
          break;
        case 1:
          file[at] = "0123456789[]{},:\"-"[random() % 18];
          break;
        case 2:
          file.erase(at, 1 + random() % 8);
          break;
        case 3:
          file.insert(at, file.substr(random() % file.size(), 1 + random() % 20));
          break;
        default:
          file[8 + random() % sizeof(kHeader)] = static_cast<char>('0' + random() % 10);
      }
      if (file.empty()) file = good;
    }
    absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = OpenFile(file);
    if (!checkpoint.ok()) continue;
    ++opened;
    unsigned sum = 0;
    for (const std::string& name : (*checkpoint)->names()) {
      const TensorView* view = (*checkpoint)->Find(name);
      for (int64_t i = 0; i < view->bytes; ++i) sum += static_cast<unsigned>(view->data[i]);
    }
    ASSERT_LT(sum, 256u * file.size());
  }
  EXPECT_GT(opened, 0);
}

TEST_F(SafetensorsTest, ReadsShards) {
  Write("model-1.safetensors", Tensors(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2));
  Write("model-2.safetensors", Tensors(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                       R"("stray":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
                                       4));
  Write("model.safetensors.index.json", R"({"metadata": {"total_size": 5},
      "weight_map": {"b": "model-2.safetensors", "a": "model-1.safetensors"}})");
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(dir_.string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ((*checkpoint)->size_bytes(), 5);
  EXPECT_EQ((*checkpoint)->Find("b")->bytes, 3);
}

TEST_F(SafetensorsTest, RefusesABadIndex) {
  Write("model-1.safetensors", Tensors(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2));
  const auto error = [&](const std::string& index) {
    Write("model.safetensors.index.json", index);
    return Checkpoint::Open(dir_.string()).status();
  };
  for (const char* name : {"../model-1.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ".", "",
                           "..\\\\model-1.safetensors", "model-1.safetensors\\u0000"}) {
    const absl::Status status = error(std::string(R"({"weight_map": {"a": ")") + name + "\"}}");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("\"a\": "), std::string::npos) << status;
    EXPECT_NE(status.message().find("is not the name of a file beside the index"), std::string::npos) << status;
  }
  EXPECT_EQ(error(R"({"weight_map": {"a": 3}})").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error(R"({"weight_map": []})").message(), "model.safetensors.index.json: weight_map is not an object");
  EXPECT_EQ(error("{}").message(), "model.safetensors.index.json: weight_map is not an object");
  EXPECT_EQ(error(R"({"weight_map": {"b": "model-1.safetensors"}})").message(),
            "model.safetensors.index.json: weight_map: \"b\": not in \"model-1.safetensors\"");
  EXPECT_EQ(error(R"({"weight_map": {"a": "model-9.safetensors"}})").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SafetensorsTest, SaysHowToConvertAPickle) {
  const absl::Status none = Checkpoint::Open(dir_.string()).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(none.message().find("neither model.safetensors nor"), std::string::npos);
  Write("pytorch_model.bin", "\x80\x02");
  const absl::Status pickle = Checkpoint::Open(dir_.string()).status();
  EXPECT_EQ(pickle.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(pickle.message().find("save_pretrained"), std::string::npos) << pickle;
}

}  // namespace
}  // namespace berth
