// Which files the archive has, and that it depends on their contents alone.
#include "server/vllm/tokenizer_archive.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace berth {
namespace {

class TokenizerArchiveTest : public ::testing::Test {
 protected:
  std::string MakeFolder(const std::string& name) {
    const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / name;
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    return folder.string();
  }
  static void Write(const std::string& folder, const std::string& name, const std::string& content) {
    std::ofstream(folder + "/" + name) << content;
  }
};

TEST_F(TokenizerArchiveTest, EqualFilesMakeEqualArchives) {
  std::string folders[] = {MakeFolder("one"), MakeFolder("two")};
  for (const std::string& folder : folders) Write(folder, "tokenizer.json", "{}");
  Write(folders[0], "b.jinja", "b");
  Write(folders[0], "a.jinja", "a");
  Write(folders[1], "a.jinja", "a");
  Write(folders[1], "b.jinja", "b");
  Write(folders[1], "model.safetensors", "weights");
  const auto one = MakeTokenizerArchive(folders[0]);
  const auto two = MakeTokenizerArchive(folders[1]);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  EXPECT_EQ(one->bytes, two->bytes);
  EXPECT_EQ(one->sha256, two->sha256);
  EXPECT_EQ(one->sha256.size(), 64u);
  EXPECT_EQ(one->bytes.substr(0, 2), "PK");
  EXPECT_EQ(one->bytes.find("weights"), std::string::npos);
  Write(folders[1], "b.jinja", "B");
  EXPECT_NE(MakeTokenizerArchive(folders[1])->sha256, one->sha256);
}

TEST_F(TokenizerArchiveTest, EveryFileThatTokensDependOnCounts) {
  const std::string folder = MakeFolder("files");
  Write(folder, "tokenizer.json", "{}");
  std::string before = MakeTokenizerArchive(folder)->sha256;
  for (const char* name : {"tokenizer_config.json", "config.json", "generation_config.json", "special_tokens_map.json",
                           "added_tokens.json", "chat_template.jinja"}) {
    Write(folder, name, "{}");
    const auto archive = MakeTokenizerArchive(folder);
    ASSERT_TRUE(archive.ok()) << name << ": " << archive.status();
    EXPECT_NE(archive->sha256, before) << name;
    before = archive->sha256;
  }
}

TEST_F(TokenizerArchiveTest, AModelWithoutATokenizerHasNone) {
  const std::string folder = MakeFolder("none");
  EXPECT_EQ(MakeTokenizerArchive(folder).status().code(), absl::StatusCode::kFailedPrecondition);
  Write(folder, "config.json", "{}");
  EXPECT_EQ(MakeTokenizerArchive(folder).status().message(), "the model has no tokenizer.json");
}

TEST_F(TokenizerArchiveTest, AFileThatCannotBeReadIsNamedWithoutItsFolder) {
  const std::string folder = MakeFolder("unreadable");
  Write(folder, "tokenizer.json", "{}");
  std::filesystem::create_directory(folder + "/config.json");
  EXPECT_EQ(MakeTokenizerArchive(folder).status().message(), "config.json: cannot be read");
}

}  // namespace
}  // namespace berth
