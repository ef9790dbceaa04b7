#include "server/process/client_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace berth {

std::string ClientAddress(absl::string_view peer) {
  const absl::string_view without_port = peer.substr(0, peer.rfind(':'));
  absl::string_view host = without_port;
  if (!absl::ConsumePrefix(&host, "ipv6:")) return std::string(without_port);
  // gRPC escapes the brackets, and the percent sign before a link's name.
  std::string text = absl::StrReplaceAll(host, {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}});
  text.erase(std::min(text.size(), text.find('%')));
  in6_addr address = {};
  if (inet_pton(AF_INET6, text.c_str(), &address) != 1) return std::string(without_port);
  char name[INET6_ADDRSTRLEN] = "";
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, &address.s6_addr[12], name, sizeof(name));
    return absl::StrCat("ipv4:", name);
  }
  std::memset(&address.s6_addr[8], 0, 8);
  inet_ntop(AF_INET6, &address, name, sizeof(name));
  return absl::StrCat("ipv6:", name, "/64");
}

}  // namespace berth
