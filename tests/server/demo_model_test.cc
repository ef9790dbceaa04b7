#include "server/demo_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace berth {
namespace {

using ::testing::HasSubstr;

class DemoModelTest : public ::testing::Test {
 protected:
  DemoModelTest() : root_(std::filesystem::path(::testing::TempDir()) / "demo_model_test") {
    std::filesystem::remove_all(root_);
  }

  // A folder with a model, below the root.
  std::string Add(const std::string& folder) {
    std::filesystem::create_directories(root_ / folder);
    std::ofstream(root_ / folder / "config.json") << "{}";
    return (root_ / folder).string();
  }

  const std::filesystem::path root_;
};

TEST_F(DemoModelTest, AnInstalledServerHasItInShare) {
  const std::string model = Add("share/berth/falcon_h1-demo");
  const auto found = FindDemoModel(root_ / "bin/berth-server");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, model);
}

TEST_F(DemoModelTest, ABuiltServerHasItInItsRunfiles) {
  const std::string model = Add("server/berth-server.runfiles/berth/models/demo/falcon_h1-demo");
  const auto found = FindDemoModel(root_ / "server/berth-server");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(*found, model);
}

TEST_F(DemoModelTest, SaysWhereItLooked) {
  const absl::Status status = FindDemoModel(root_ / "bin/berth-server").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("--model: not set, and there is no demo model in "));
  EXPECT_THAT(status.message(), HasSubstr("share/berth/falcon_h1-demo or "));
}

}  // namespace
}  // namespace berth
