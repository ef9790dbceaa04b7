#include "server/tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
  std::ofstream(path, std::ios::trunc) << text;
  return path;
}

TEST(Tenants, ReadsEveryFieldOfEachTenant) {
  const absl::StatusOr<Tenants> tenants = Tenants::Parse(R"({
    "tenants": [
      {"name": "alice", "weight": 2.5, "requests_per_second": 3, "tokens_per_second": 4000, "burst_seconds": 5,
       "running_sequences": 6, "queued_requests": 7, "queued_tokens": 8, "cache_bytes": 9},
      {"name": "", "weight": 0.5}],
    "default": {"running_sequences": 1}})");
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  const v1::Tenant& alice = tenants->Of("alice");
  std::vector<const google::protobuf::FieldDescriptor*> set;
  alice.GetReflection()->ListFields(alice, &set);
  EXPECT_EQ(static_cast<int>(set.size()), v1::Tenant::descriptor()->field_count()) << "a field is not in this test";
  EXPECT_EQ(WeightOf(alice), 2.5);
  EXPECT_EQ(alice.requests_per_second(), 3);
  EXPECT_EQ(alice.tokens_per_second(), 4000);
  EXPECT_EQ(BurstOf(alice), absl::Seconds(5));
  EXPECT_EQ(alice.running_sequences(), 6);
  EXPECT_EQ(alice.queued_requests(), 7);
  EXPECT_EQ(alice.queued_tokens(), 8);
  EXPECT_EQ(alice.cache_bytes(), 9);
  EXPECT_EQ(WeightOf(tenants->Of("")), 0.5);
  EXPECT_FALSE(tenants->Of("").has_running_sequences()) << "an entry takes nothing from the default";
  EXPECT_EQ(tenants->Of("somebody").running_sequences(), 1);
  EXPECT_FALSE(tenants->HasEntry("somebody"));
}

TEST(Tenants, LimitsNothingWithoutAnEntry) {
  const Tenants tenants;
  EXPECT_EQ(WeightOf(tenants.Of("x")), 1);
  EXPECT_FALSE(tenants.Of("x").has_tokens_per_second());
}

TEST(Tenants, RefusesAFileAndNamesTenantFieldValueAndLimit) {
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {"", {}},
      {"[]", {}},
      {R"({"tenants": [)", {}},
      {R"({"tenant": []})", {"tenant"}},
      {R"({"tenants": [{"name": "a", "wieght": 1}]})", {"tenants[0]", "wieght"}},
      {R"({"tenants": [{"name": "a", "weight": "much"}]})", {"tenants[0].weight", "much"}},
      {R"({"tenants": [{"weight": 1}]})", {"tenants[0]", "name is missing"}},
      {R"({"tenants": [{"name": "a"}, {"name": "b"}, {"name": "a"}]})", {"tenants[2]", "\"a\"", "twice"}},
      {R"({"tenants": [{"name": "a", "weight": 0}]})", {"tenant \"a\"", "weight is 0", "[0.001"}},
      {R"({"tenants": [{"name": "a", "weight": -1}]})", {"weight is -1"}},
      {R"({"tenants": [{"name": "a", "weight": "NaN"}]})", {"weight is nan"}},
      {R"({"tenants": [{"name": "a", "tokens_per_second": "Infinity"}]})", {"tokens_per_second is inf"}},
      {R"({"tenants": [{"name": "a", "requests_per_second": 0}]})", {"requests_per_second is 0"}},
      {R"({"tenants": [{"name": "a", "burst_seconds": 1e6}]})", {"burst_seconds is 1e+06", "86400"}},
      {R"({"tenants": [{"name": "a", "running_sequences": 0}]})", {"running_sequences is 0", "[1, "}},
      {R"({"tenants": [{"name": "a", "cache_bytes": -5}]})", {"cache_bytes is -5"}},
      {R"({"tenants": [{"name": "a", "queued_tokens": 1.5}]})", {"tenants[0].queued_tokens", "1.5"}},
      {R"({"tenants": [{"name": "a", "queued_tokens": 9223372036854775807}]})",
       {"queued_tokens is 9223372036854775807"}},
      {R"({"default": {"queued_requests": 0}})", {"default", "queued_requests is 0"}},
      {R"({"default": {"name": "a"}})", {"default", "name"}},
      {absl::StrCat(R"({"tenants": [{"name": ")", std::string(129, 'x'), "\"}]}"), {"129 characters", "128"}},
  };
  for (const auto& [json, parts] : cases) {
    const absl::StatusOr<Tenants> tenants = Tenants::Parse(json);
    EXPECT_EQ(tenants.status().code(), absl::StatusCode::kInvalidArgument) << json;
    for (const std::string& part : parts) EXPECT_THAT(std::string(tenants.status().message()), HasSubstr(part));
  }
}

TEST(Tenants, CountsCharactersOfANameNotBytes) {
  std::string name;
  for (int i = 0; i < 128; ++i) name += "é";
  EXPECT_TRUE(Tenants::Parse(absl::StrCat(R"({"tenants": [{"name": ")", name, "\"}]}")).ok());
}

TEST(TenantsFile, WithoutAFileLimitsNothing) {
  absl::StatusOr<std::unique_ptr<TenantsFile>> file = TenantsFile::Open("");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Reload().ok());
  EXPECT_FALSE((*file)->current()->Of("a").has_cache_bytes());
}

TEST(TenantsFile, SaysWhichFileIsWrong) {
  EXPECT_THAT(std::string(TenantsFile::Open("/no/such/file").status().message()), HasSubstr("/no/such/file"));
  const std::string path = WriteFile("wrong.json", R"({"default": {"weight": 0}})");
  const absl::Status status = TenantsFile::Open(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("--tenants: ", path, ": default: weight is 0")));
  EXPECT_FALSE(TenantsFile::Open(WriteFile("empty.json", "")).ok());
}

TEST(TenantsFile, KeepsTheFormerReadingWhenTheNewOneIsWrong) {
  const std::string path = WriteFile("tenants.json", R"({"tenants": [{"name": "a", "weight": 2}]})");
  absl::StatusOr<std::unique_ptr<TenantsFile>> file = TenantsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::shared_ptr<const Tenants> before = (*file)->current();

  WriteFile("tenants.json", R"({"tenants": [{"name": "a", "weight": -2}]})");
  EXPECT_FALSE((*file)->Reload().ok());
  EXPECT_EQ((*file)->current(), before);

  WriteFile("tenants.json", R"({"tenants": [{"name": "a", "weight": 3}]})");
  EXPECT_TRUE((*file)->Reload().ok());
  EXPECT_EQ(WeightOf((*file)->current()->Of("a")), 3);
  EXPECT_EQ(WeightOf(before->Of("a")), 2) << "a reading in use stays as it is";
}

TEST(TenantsFile, TellsItsFollowerOfEachReading) {
  const std::string path = WriteFile("followed.json", R"({"tenants": [{"name": "a", "weight": 2}]})");
  absl::StatusOr<std::unique_ptr<TenantsFile>> file = TenantsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<double> weights;
  (*file)->Follow([&](const Tenants& tenants) {
    EXPECT_EQ(tenants.entries().size(), 1u);
    weights.push_back(WeightOf(tenants.entries().at("a")));
    EXPECT_EQ(WeightOf(tenants.others()), 1);
  });
  WriteFile("followed.json", R"({"tenants": [{"name": "a", "weight": 3}]})");
  EXPECT_TRUE((*file)->Reload().ok());
  WriteFile("followed.json", "wrong");
  EXPECT_FALSE((*file)->Reload().ok());
  EXPECT_EQ(weights, (std::vector<double>{2, 3}));
}

TEST(TenantsFile, MayBeReadWhileItIsReloaded) {
  const std::string path = WriteFile("race.json", R"({"default": {"weight": 2}})");
  absl::StatusOr<std::unique_ptr<TenantsFile>> file = TenantsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) EXPECT_EQ(WeightOf((*file)->current()->Of("a")), 2);
  });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE((*file)->Reload().ok());
  stop = true;
  reader.join();
}

}  // namespace
}  // namespace berth
