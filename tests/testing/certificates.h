// Certificates for tests of TLS, made when they run.
#ifndef BERTH_TESTS_TESTING_CERTIFICATES_H_
#define BERTH_TESTS_TESTING_CERTIFICATES_H_

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace berth {

// A certificate and its private key, as PEM.
struct CertifiedKey {
  std::string cert;
  std::string key;
};

class TestCa {
 public:
  explicit TestCa(const std::string& name);
  ~TestCa();

  std::string cert() const;  // PEM
  // For a server, `san` is "DNS:localhost,IP:127.0.0.1". "": no SAN.
  CertifiedKey Issue(const std::string& common_name, const std::string& san = "") const;

 private:
  X509* cert_;
  EVP_PKEY* key_;
};

}  // namespace berth

#endif  // BERTH_TESTS_TESTING_CERTIFICATES_H_
