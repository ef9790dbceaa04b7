#include "server/storage/model_fingerprint.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

namespace fs = std::filesystem;

class FingerprintTest : public ::testing::Test {
 protected:
  FingerprintTest() : folder_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/model")) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    Write("config.json", "{}");
    Write("model.safetensors", weights_);
  }
  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << bytes;
  }
  std::string Get(absl::string_view settings = "float32") {
    auto fingerprint = ModelFingerprint(folder_, settings);
    EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
    return fingerprint.value_or("");
  }

  const std::string folder_;
  const std::string weights_ = absl::StrCat(std::string("\x10\0\0\0\0\0\0\0", 8), std::string(100'000, 'w'));
};

TEST_F(FingerprintTest, ChangesWithWhatTheModelIs) {
  const std::string first = Get();
  EXPECT_EQ(first.size(), 32u);
  EXPECT_EQ(Get(), first);
  EXPECT_NE(Get("bfloat16"), first);
  Write("generation_config.json", "{}");
  EXPECT_EQ(Get(), first) << "a request carries its own parameters";
  Write("config.json", "{ }");
  EXPECT_NE(Get(), first);
  Write("config.json", "{}");
  for (size_t at : {size_t{0}, size_t{9}, size_t{50'000}, weights_.size() - 1}) {
    std::string changed = weights_;
    changed[at] = 'x';
    Write("model.safetensors", changed);
    EXPECT_NE(Get(), first) << at;
  }
  Write("model.safetensors", weights_ + "w");
  EXPECT_NE(Get(), first);
  Write("model.safetensors", weights_);
  Write("tokenizer.json", "{}");
  EXPECT_NE(Get(), first);
  fs::remove(folder_ + "/tokenizer.json");
  EXPECT_EQ(Get(), first);
}

TEST_F(FingerprintTest, NamesWhatItCannotRead) {
  Write("model.safetensors", "short");
  EXPECT_EQ(ModelFingerprint(folder_, "float32").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ModelFingerprint(folder_ + "/none", "float32").status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace berth
