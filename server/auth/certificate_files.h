// The server's certificate and key, and the CAs of its clients: the files of --tls_cert, --tls_key and --tls_client_ca,
// read again when they change. If something is wrong in them then, it is logged, and the former reading stays. (gRPC's
// own provider that watches files drops the former pair, and then refuses every client.)
//
// Thread-safe.
#ifndef BERTH_SERVER_AUTH_CERTIFICATE_FILES_H_
#define BERTH_SERVER_AUTH_CERTIFICATE_FILES_H_

#include <array>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/auth/file_version.h"

namespace berth {

class CertificateFiles {
 public:
  // Paths of PEM files.
  struct Options {
    std::string cert;       // the server's certificate, then those between it and its CA; "": no TLS
    std::string key;        // its private key, without a passphrase
    std::string client_ca;  // CAs that sign the clients' certificates; "": clients need no certificate
  };
  // The texts of the files, which fit each other.
  struct Reading {
    std::string cert;
    std::string key;
    std::string client_ca;
  };

  // Reads the files. INVALID_ARGUMENT names flag, file and reason: it cannot be read, is malformed, or the key is not
  // the certificate's.
  static absl::StatusOr<std::unique_ptr<CertificateFiles>> Open(Options options);

  // Reads the files again if one is another one than at the last reading, or was written since. Call it every second or
  // so.
  void ReloadIfChanged() ABSL_LOCKS_EXCLUDED(mutex_);

  // Never null.
  std::shared_ptr<const Reading> current() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool has_client_ca() const { return !options_.client_ca.empty(); }

 private:
  using Versions = std::array<FileVersion, 3>;

  CertificateFiles(Options options, const Versions& versions, Reading reading);

  static Versions VersionsOf(const Options& options);

  const Options options_;
  mutable Mutex mutex_;
  Versions versions_ ABSL_GUARDED_BY(mutex_);  // at the last reading, in order or not
  std::shared_ptr<const Reading> current_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace berth

#endif  // BERTH_SERVER_AUTH_CERTIFICATE_FILES_H_
