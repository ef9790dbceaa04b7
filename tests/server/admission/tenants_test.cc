#include "server/admission/tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
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
       "running_sequences": 6, "queued_requests": 7, "queued_tokens": 8, "cache_bytes": 9,
       "session_bytes": 10, "session_age_seconds": 11, "disk_tier_bytes": 12, "disk_tier_age_seconds": 13,
       "tokens": [{"name": "laptop", "sha256": "2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90"}],
       "certificates": [{"name": "pod", "common_name": "pod.alice"}]},
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
  EXPECT_EQ(alice.session_bytes(), 10);
  EXPECT_EQ(alice.session_age_seconds(), 11);
  EXPECT_EQ(alice.disk_tier_bytes(), 12);
  EXPECT_EQ(alice.disk_tier_age_seconds(), 13);
  const Credentials::Entry* const token = tenants->credentials().FindToken("alice");
  ASSERT_NE(token, nullptr);
  EXPECT_EQ(token->identity.credential, "laptop");
  const Credentials::Entry* const certificate = tenants->credentials().FindCertificate({"pod.alice"}, {});
  ASSERT_NE(certificate, nullptr);
  EXPECT_EQ(certificate->identity.credential, "pod");
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
      {R"({"default": {"tokens": [{"name": "t"}]}})", {"default", "credentials"}},
      {R"({"tenants": [{"name": "a", "tokens": [{"name": "t", "sha256": "x"}]}]})", {"tenant \"a\"", "token \"t\""}},
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

TEST(TenantsFile, KeepsTheReadingBeforeTheCurrentOne) {
  const std::string path = WriteFile("previous.json", R"({"default": {"weight": 2}})");
  absl::StatusOr<std::unique_ptr<TenantsFile>> file = TenantsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->previous(), (*file)->current());
  const std::shared_ptr<const Tenants> first = (*file)->current();
  WriteFile("previous.json", R"({"default": {"weight": 3}})");
  EXPECT_TRUE((*file)->Reload().ok());
  EXPECT_EQ((*file)->previous(), first);
}

TEST(TenantsFile, IsReadAgainWhenItChangesAndOnlyThen) {
  const std::string path = WriteFile("polled.json", R"({"default": {"weight": 2}})");
  absl::StatusOr<std::unique_ptr<TenantsFile>> file = TenantsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::shared_ptr<const Tenants> first = (*file)->current();
  (*file)->ReloadIfChanged();
  EXPECT_EQ((*file)->current(), first);

  WriteFile("polled.json", R"({"default": {"weight": 33}})");
  (*file)->ReloadIfChanged();
  EXPECT_EQ(WeightOf((*file)->current()->Of("a")), 33);
  const std::shared_ptr<const Tenants> second = (*file)->current();
  WriteFile("polled.json", "wrong");
  (*file)->ReloadIfChanged();
  EXPECT_EQ((*file)->current(), second);
  std::filesystem::remove(path);
  (*file)->ReloadIfChanged();
  EXPECT_EQ((*file)->current(), second);
  WriteFile("polled.json", R"({"default": {"weight": 4}})");
  (*file)->ReloadIfChanged();
  EXPECT_EQ(WeightOf((*file)->current()->Of("a")), 4);
}

// As Kubernetes updates a mounted secret: the file is a link into a folder that is itself a link.
TEST(TenantsFile, IsReadAgainWhenALinkOnItsPathChanges) {
  const std::filesystem::path folder = std::filesystem::path(std::getenv("TEST_TMPDIR")) / "mount";
  for (const char* version : {"1", "2"}) {
    std::filesystem::create_directories(folder / version);
    std::ofstream(folder / version / "tenants.json") << R"({"default": {"weight": )" << version << "}}";
  }
  std::filesystem::create_directory_symlink("1", folder / "..data");
  std::filesystem::create_symlink("..data/tenants.json", folder / "tenants.json");
  absl::StatusOr<std::unique_ptr<TenantsFile>> file = TenantsFile::Open(folder / "tenants.json");
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::create_directory_symlink("2", folder / "..next");
  std::filesystem::rename(folder / "..next", folder / "..data");
  (*file)->ReloadIfChanged();
  EXPECT_EQ(WeightOf((*file)->current()->Of("a")), 2);
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
