#include "server/auth/certificate_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace berth {
namespace {

// Readings before a mixture of old and new files counts as an error.
constexpr int kMaxAttempts = 3;
// Far more than a bundle of every public CA.
constexpr size_t kMaxFileBytes = size_t{4} << 20;

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using Bio = std::unique_ptr<BIO, Free<&BIO_free>>;
using Certificate = std::unique_ptr<X509, Free<&X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<&EVP_PKEY_free>>;
using Context = std::unique_ptr<SSL_CTX, Free<&SSL_CTX_free>>;

struct File {
  const char* flag;
  const std::string& path;
};

absl::Status Bad(const File& file, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(file.flag, ": ", file.path, " ", why));
}

// The latest reason of OpenSSL on this thread, and forgets them all.
std::string Reason() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason == nullptr ? "unknown reason" : reason;
}

absl::Status ReadText(const File& file, std::string* text) {
  const std::unique_ptr<FILE, Free<&std::fclose>> stream(std::fopen(file.path.c_str(), "re"));
  if (stream == nullptr) return Bad(file, absl::StrCat("cannot be read: ", std::strerror(errno)));
  text->resize(kMaxFileBytes + 1);
  text->resize(std::fread(text->data(), 1, text->size(), stream.get()));
  if (std::ferror(stream.get()) != 0) return Bad(file, absl::StrCat("cannot be read: ", std::strerror(errno)));
  if (text->size() > kMaxFileBytes) return Bad(file, absl::StrCat("is over the limit of ", kMaxFileBytes, " bytes"));
  return absl::OkStatus();
}

Bio Over(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// Instead of asking the terminal.
int NoPassphrase(char* /*buffer*/, int /*size*/, int /*writing*/, void* /*data*/) { return -1; }

// Reads every certificate of the text, the first one into `*first`.
absl::Status CheckCertificates(const File& file, const std::string& text, Certificate* first) {
  const Bio bio = Over(text);
  int count = 0;
  while (Certificate one{PEM_read_bio_X509_AUX(bio.get(), nullptr, &NoPassphrase, nullptr)}) {
    if (X509_cmp_current_time(X509_get0_notAfter(one.get())) < 0) {
      spdlog::warn("{}: {} has a certificate that has expired", file.flag, file.path);
    }
    if (count++ == 0) *first = std::move(one);
  }
  // What ends the loop is an error too.
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string reason = Reason();
  if (count > 0 && at_end) return absl::OkStatus();
  return Bad(file, at_end ? "has no certificate in PEM" : absl::StrCat("has a malformed certificate: ", reason));
}

// Refuses what OpenSSL does not serve TLS with.
absl::Status CheckPair(const File& cert_file, const File& key_file, const CertificateFiles::Reading& reading) {
  Certificate cert;
  if (absl::Status s = CheckCertificates(cert_file, reading.cert, &cert); !s.ok()) return s;
  const Key key(PEM_read_bio_PrivateKey(Over(reading.key).get(), nullptr, &NoPassphrase, nullptr));
  if (key == nullptr) {
    return Bad(key_file, absl::StrCat("has no private key in PEM without a passphrase: ", Reason()));
  }
  const Context context(SSL_CTX_new(TLS_server_method()));
  if (SSL_CTX_use_certificate(context.get(), cert.get()) != 1) {
    return Bad(cert_file, absl::StrCat("cannot be used: ", Reason()));
  }
  if (X509_check_private_key(cert.get(), key.get()) != 1) {
    ERR_clear_error();
    return Bad(key_file, absl::StrCat("is not the key of the certificate in ", cert_file.flag, ", ", cert_file.path));
  }
  if (SSL_CTX_use_PrivateKey(context.get(), key.get()) == 1) return absl::OkStatus();
  return Bad(key_file, absl::StrCat("cannot be used: ", Reason()));
}

absl::StatusOr<CertificateFiles::Reading> Read(const CertificateFiles::Options& options) {
  const File cert = {"--tls_cert", options.cert};
  const File key = {"--tls_key", options.key};
  const File client_ca = {"--tls_client_ca", options.client_ca};
  CertificateFiles::Reading reading;
  if (absl::Status s = ReadText(cert, &reading.cert); !s.ok()) return s;
  if (absl::Status s = ReadText(key, &reading.key); !s.ok()) return s;
  if (absl::Status s = CheckPair(cert, key, reading); !s.ok()) return s;
  if (options.client_ca.empty()) return reading;
  if (absl::Status s = ReadText(client_ca, &reading.client_ca); !s.ok()) return s;
  Certificate ignored;
  if (absl::Status s = CheckCertificates(client_ca, reading.client_ca, &ignored); !s.ok()) return s;
  return reading;
}

}  // namespace

CertificateFiles::Versions CertificateFiles::VersionsOf(const Options& options) {
  return {FileVersion::Of(options.cert), FileVersion::Of(options.key), FileVersion::Of(options.client_ca)};
}

CertificateFiles::CertificateFiles(Options options, const Versions& versions, Reading reading)
    : options_(std::move(options)),
      versions_(versions),
      current_(std::make_shared<const Reading>(std::move(reading))) {}

absl::StatusOr<std::unique_ptr<CertificateFiles>> CertificateFiles::Open(Options options) {
  // Before they are read: what is written meanwhile is then a change.
  const Versions versions = VersionsOf(options);
  absl::StatusOr<Reading> reading = Read(options);
  if (!reading.ok()) return reading.status();
  return absl::WrapUnique(new CertificateFiles(std::move(options), versions, *std::move(reading)));
}

void CertificateFiles::ReloadIfChanged() {
  Versions versions = VersionsOf(options_);
  {
    const MutexLock lock(&mutex_);
    if (versions == versions_) return;
  }
  absl::StatusOr<Reading> reading = Read(options_);
  // Files that are replaced right now may have been read half old, half new.
  for (int i = 1; i < kMaxAttempts && !reading.ok(); ++i) {
    const Versions now = VersionsOf(options_);
    if (now == std::exchange(versions, now)) break;
    reading = Read(options_);
  }
  if (reading.ok()) {
    spdlog::info("--tls_cert: read {} again", options_.cert);
  } else {
    spdlog::error("{}; the former certificates stay", std::string(reading.status().message()));
  }
  const MutexLock lock(&mutex_);
  versions_ = versions;
  if (reading.ok()) current_ = std::make_shared<const Reading>(*std::move(reading));
}

std::shared_ptr<const CertificateFiles::Reading> CertificateFiles::current() const {
  const MutexLock lock(&mutex_);
  return current_;
}

}  // namespace berth
