#include "tests/testing/certificates.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <atomic>

namespace berth {
namespace {

// Written by `write(bio)`.
template <typename Write>
std::string Pem(const Write& write) {
  BIO* const bio = BIO_new(BIO_s_mem());
  write(bio);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);  // NOLINT: the type of OpenSSL
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

std::string CertPem(X509* cert) {
  return Pem([cert](BIO* bio) { PEM_write_bio_X509(bio, cert); });
}

EVP_PKEY* MakeKey() { return EVP_EC_gen("P-256"); }

void AddExtension(X509* cert, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  X509_add_ext(cert, extension, -1);
  X509_EXTENSION_free(extension);
}

// Valid since a day and for one. Unsigned.
X509* MakeCert(const std::string& common_name, EVP_PKEY* key) {
  static std::atomic<int> serial = 1;
  constexpr int kDaySeconds = 86400;
  X509* const cert = X509_new();
  X509_set_version(cert, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(cert), serial++);
  X509_gmtime_adj(X509_getm_notBefore(cert), -kDaySeconds);
  X509_gmtime_adj(X509_getm_notAfter(cert), kDaySeconds);
  X509_set_pubkey(cert, key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1, 0);
  return cert;
}

}  // namespace

TestCa::TestCa(const std::string& name) : cert_(nullptr), key_(MakeKey()) {
  cert_ = MakeCert(name, key_);
  X509_set_issuer_name(cert_, X509_get_subject_name(cert_));
  AddExtension(cert_, cert_, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(cert_, cert_, NID_key_usage, "critical,keyCertSign");
  X509_sign(cert_, key_, EVP_sha256());
}

TestCa::~TestCa() {
  X509_free(cert_);
  EVP_PKEY_free(key_);
}

std::string TestCa::cert() const { return CertPem(cert_); }

CertifiedKey TestCa::Issue(const std::string& common_name, const std::string& san) const {
  EVP_PKEY* const key = MakeKey();
  X509* const cert = MakeCert(common_name, key);
  X509_set_issuer_name(cert, X509_get_subject_name(cert_));
  if (!san.empty()) AddExtension(cert, cert_, NID_subject_alt_name, san);
  X509_sign(cert, key_, EVP_sha256());
  CertifiedKey made = {
      .cert = CertPem(cert),
      .key = Pem([key](BIO* bio) { PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr); })};
  X509_free(cert);
  EVP_PKEY_free(key);
  return made;
}

}  // namespace berth
