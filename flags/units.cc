#include "flags/units.h"

#include <arpa/inet.h>
#include <sys/un.h>

#include <cmath>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace berth {
namespace {

constexpr absl::string_view kUnixScheme = "unix:";
constexpr double kMaxBytes = static_cast<double>(int64_t{1} << 60);

struct Unit {
  absl::string_view name;
  double bytes;
};
constexpr Unit kUnits[] = {
    {"", 1},     {"b", 1},    {"kib", 1024.0}, {"mib", 1048576.0}, {"gib", 1073741824.0}, {"tib", 1099511627776.0},
    {"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9},     {"tb", 1e12}};

absl::string_view Shown(absl::string_view text) { return text.empty() ? "an empty value" : text; }

absl::Status BadAddress(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(Shown(text), " is not an address: ", why, "; write HOST:PORT, for example 127.0.0.1:8600"));
}

absl::StatusOr<Address> ParseUnixAddress(absl::string_view text) {
  constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;
  const absl::string_view path = text.substr(kUnixScheme.size());
  if (!absl::StartsWith(path, "/")) return BadAddress(text, "the path of a Unix socket begins with /");
  if (path.size() > kMaxPathBytes) {
    return BadAddress(text, absl::StrCat("the path has ", path.size(), " bytes, over the limit of ", kMaxPathBytes));
  }
  return Address{.socket_path = std::string(path)};
}

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  const size_t digits = std::min(trimmed.find_first_not_of("0123456789."), trimmed.size());
  const std::string unit_name = absl::AsciiStrToLower(absl::StripAsciiWhitespace(trimmed.substr(digits)));
  double number = 0;
  for (const Unit& unit : kUnits) {
    if (unit.name != unit_name || !absl::SimpleAtod(trimmed.substr(0, digits), &number)) continue;
    const double bytes = std::floor(number * unit.bytes);
    if (bytes >= 1 && bytes <= kMaxBytes) return static_cast<int64_t>(bytes);
    return absl::InvalidArgumentError(absl::StrCat(Shown(text), " is not between 1 byte and 1048576 TiB"));
  }
  return absl::InvalidArgumentError(absl::StrCat(Shown(text), " is not a size; write for example 512MiB"));
}

std::string FormatByteSize(int64_t bytes) {
  constexpr absl::string_view kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kNames)) {
    value /= 1024;
    ++unit;
  }
  std::string number = absl::StrFormat("%.1f", value);
  return absl::StrCat(absl::StripSuffix(number, ".0"), " ", kNames[unit]);
}

std::string Address::ToString() const {
  if (IsUnix()) return absl::StrCat(kUnixScheme, socket_path);
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool Address::IsLocal() const {
  if (IsUnix() || host == "localhost" || host == "::1") return true;
  in_addr number = {};  // "127.example.com" is a name
  return absl::StartsWith(host, "127.") && ::inet_pton(AF_INET, host.c_str(), &number) == 1;
}

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  if (absl::StartsWith(text, kUnixScheme)) return ParseUnixAddress(text);
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return BadAddress(text, "the port is missing");
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  const bool bracketed = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  if (host.empty()) return BadAddress(text, "the host is missing");
  if (!bracketed && absl::StrContains(host, ':')) return BadAddress(text, "an IPv6 address needs brackets");
  if (host.find_first_of("[]/, \t") != absl::string_view::npos) return BadAddress(text, "the host is malformed");
  Address address{.host = std::string(host)};
  if (port.empty() || port.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(port, &address.port) || address.port > 65535) {
    return BadAddress(text, absl::StrCat("port ", port, " is not between 0 and 65535"));
  }
  return address;
}

}  // namespace berth
