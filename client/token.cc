#include "client/token.h"

#include <fcntl.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/command.h"

namespace berth::cli {
namespace {

constexpr char kIntro[] = R"(berth-cli token --out=FILE

Writes a new random bearer token to a file that only you can read, and prints its SHA-256. The hash goes
into the server's --tenants file; clients read the file with --token_file.
)";

constexpr size_t kTokenBytes = 32;

// A file that is there stays as it is: its token may be in use.
absl::Status WriteSecret(const std::string& path, absl::string_view secret) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("--out: cannot create ", path, ": ", std::strerror(errno)));
  const bool written = write(fd, secret.data(), secret.size()) == static_cast<ssize_t>(secret.size());
  if (close(fd) == 0 && written) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("--out: cannot write ", path));
}

}  // namespace

int RunToken(absl::Span<const std::string> args, Environment& environment) {
  std::string out;
  FlagSet flags;
  flags.AddGroup("Token");
  flags.Add("out", &out, "file", "File to write. Must be set, and must not exist.");
  const CommandLine command_line = {.command = "token", .intro = kIntro};
  if (const auto code = ParseArguments(command_line, flags, args, environment, nullptr)) return *code;
  if (out.empty()) return Fail("token", "--out must be set", environment, kExitUsage);
  std::string bytes(kTokenBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) != 1) {
    return Fail("token", "the system has no random numbers", environment);
  }
  const std::string token = absl::BytesToHexString(bytes);
  if (absl::Status s = WriteSecret(out, token + "\n"); !s.ok()) return Fail("token", s.message(), environment);
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  environment.out << absl::BytesToHexString(hash) << std::endl;
  return kExitOk;
}

}  // namespace berth::cli
