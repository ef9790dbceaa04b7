#include "server/auth/certificate_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/testing/certificates.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

// Files as Kubernetes mounts them: each a link through a folder that is replaced as a whole.
class CertificateFilesTest : public testing::Test {
 protected:
  CertificateFilesTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    for (const char* name : {"tls.crt", "tls.key", "ca.crt"}) {
      std::filesystem::create_symlink(absl::StrCat("..data/", name), folder_ + "/" + name);
    }
    Mount(ca_.Issue("first"), ca_.cert());
  }

  void Mount(const CertifiedKey& pair, const std::string& ca) {
    const std::string name = absl::StrCat("mount", ++num_mounts_);
    const std::string folder = absl::StrCat(folder_, "/", name, "/");
    std::filesystem::create_directory(folder);
    Write(folder + "tls.crt", pair.cert);
    Write(folder + "tls.key", pair.key);
    Write(folder + "ca.crt", ca);
    const std::string next = folder_ + "/..data_tmp";
    std::filesystem::create_directory_symlink(name, next);
    std::filesystem::rename(next, folder_ + "/..data");
  }
  static void Write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::trunc) << text; }

  absl::Status Open() {
    absl::StatusOr<std::unique_ptr<CertificateFiles>> files = CertificateFiles::Open(options_);
    if (files.ok()) files_ = *std::move(files);
    return files.status();
  }
  std::string OpenError() { return std::string(Open().message()); }

  const TestCa ca_{"CA"};
  const std::string folder_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/certs");
  const CertificateFiles::Options options_ = {
      .cert = folder_ + "/tls.crt", .key = folder_ + "/tls.key", .client_ca = folder_ + "/ca.crt"};
  int num_mounts_ = 0;
  std::unique_ptr<CertificateFiles> files_;
};

TEST_F(CertificateFilesTest, ReadsThePairAndTheCa) {
  const CertifiedKey pair = ca_.Issue("server");
  Mount(pair, ca_.cert() + TestCa("another").cert());
  ASSERT_EQ(OpenError(), "");
  EXPECT_EQ(files_->current()->cert, pair.cert);
  EXPECT_EQ(files_->current()->key, pair.key);
  EXPECT_TRUE(files_->has_client_ca());
}

TEST_F(CertificateFilesTest, RefusesWhatIsWrongAndNamesFlagAndFile) {
  const CertifiedKey good = ca_.Issue("good");
  const CertifiedKey other = ca_.Issue("other");
  const std::string cut = good.cert.substr(0, good.cert.size() / 2);
  struct Case {
    CertifiedKey pair;
    std::string ca;
    std::string part;
  };
  const Case cases[] = {
      {{"", good.key}, ca_.cert(), "--tls_cert: " + options_.cert + " has no certificate in PEM"},
      {{"nonsense", good.key}, ca_.cert(), "--tls_cert: " + options_.cert + " has no certificate in PEM"},
      {{cut, good.key}, ca_.cert(), "--tls_cert: " + options_.cert + " has a malformed certificate"},
      {{good.cert + cut, good.key}, ca_.cert(), "--tls_cert: " + options_.cert + " has a malformed certificate"},
      {{good.cert, ""}, ca_.cert(), "--tls_key: " + options_.key + " has no private key in PEM"},
      {{good.cert, good.cert}, ca_.cert(), "--tls_key: " + options_.key + " has no private key in PEM"},
      {{good.cert, other.key}, ca_.cert(), "--tls_key: " + options_.key + " is not the key of the certificate in"},
      {good, "", "--tls_client_ca: " + options_.client_ca + " has no certificate in PEM"},
      {good, cut, "--tls_client_ca: " + options_.client_ca + " has a malformed certificate"},
  };
  for (const Case& one : cases) {
    Mount(one.pair, one.ca);
    const absl::Status status = Open();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.part;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.part));
  }
}

TEST_F(CertificateFilesTest, NamesAFileThatCannotBeRead) {
  const std::pair<std::string, std::string> cases[] = {
      {options_.cert, "--tls_cert"}, {options_.key, "--tls_key"}, {options_.client_ca, "--tls_client_ca"}};
  for (const auto& [path, flag] : cases) {
    Mount(ca_.Issue("good"), ca_.cert());
    std::filesystem::remove(path);
    EXPECT_EQ(OpenError(), absl::StrCat(flag, ": ", path, " cannot be read: No such file or directory"));
    std::filesystem::create_symlink("..data/" + std::filesystem::path(path).filename().string(), path);
  }
}

TEST_F(CertificateFilesTest, ReadsFilesAgainThatChanged) {
  ASSERT_EQ(OpenError(), "");
  const auto first = files_->current();
  files_->ReloadIfChanged();
  EXPECT_EQ(files_->current(), first) << "nothing changed";
  const CertifiedKey second = ca_.Issue("second");
  Mount(second, ca_.cert());
  files_->ReloadIfChanged();
  EXPECT_EQ(files_->current()->cert, second.cert);
  EXPECT_EQ(files_->current()->key, second.key);
  const TestCa next("next CA");
  Mount(second, next.cert());
  files_->ReloadIfChanged();
  EXPECT_EQ(files_->current()->client_ca, next.cert());
}

TEST_F(CertificateFilesTest, KeepsTheFormerReadingWhileTheFilesAreWrong) {
  ASSERT_EQ(OpenError(), "");
  const auto first = files_->current();
  const CertifiedKey second = ca_.Issue("second");
  testing::internal::CaptureStdout();
  Mount({second.cert, ca_.Issue("third").key}, ca_.cert());
  files_->ReloadIfChanged();
  EXPECT_EQ(files_->current(), first);
  files_->ReloadIfChanged();  // tells it once
  const std::string log = testing::internal::GetCapturedStdout();
  EXPECT_THAT(log, HasSubstr("--tls_key: " + options_.key + " is not the key of the certificate in --tls_cert"));
  EXPECT_THAT(log, HasSubstr("the former certificates stay"));
  EXPECT_EQ(log.find("the former", log.find("the former") + 1), std::string::npos) << log;
  std::filesystem::remove(folder_ + "/..data");
  files_->ReloadIfChanged();
  EXPECT_EQ(files_->current(), first);
  Mount(second, ca_.cert());
  files_->ReloadIfChanged();
  EXPECT_EQ(files_->current()->cert, second.cert);
}

}  // namespace
}  // namespace berth
