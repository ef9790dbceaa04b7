// Two kinds of value that people write on a command line and read in a log: sizes in bytes and network addresses.
// Pure functions; thread-safe.
#ifndef BERTH_FLAGS_UNITS_H_
#define BERTH_FLAGS_UNITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace berth {

// Reads "8GiB", "1.5GiB", "512 MiB", "500MB" (powers of ten) or "1048576": a positive number of bytes, rounded down.
// INVALID_ARGUMENT for anything else, and for more than 2^60.
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

// With at most one decimal, in the unit that keeps it short: "512 MiB", "1.5 GiB", "96 B".
std::string FormatByteSize(int64_t bytes);

struct Address {
  std::string host;         // without the brackets of IPv6
  int port = 0;             // 0: any free port
  std::string socket_path;  // of a Unix socket, which has neither host nor port; "": none

  // "host:port", with brackets around IPv6, or "unix:/path".
  std::string ToString() const;
  bool IsUnix() const { return !socket_path.empty(); }
  // Whether only this machine can reach it.
  bool IsLocal() const;

  friend bool operator==(const Address&, const Address&) = default;
};

// Reads "127.0.0.1:8600", "localhost:0", "[::1]:8600", "0.0.0.0:8600" or "unix:/run/berth.sock". INVALID_ARGUMENT when
// the host, the port or the path is missing or malformed.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

}  // namespace berth

#endif  // BERTH_FLAGS_UNITS_H_
