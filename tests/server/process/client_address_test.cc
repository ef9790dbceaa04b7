#include "server/process/client_address.h"

#include <gtest/gtest.h>

namespace berth {
namespace {

TEST(ClientAddressTest, ThePortDoesNotCount) {
  EXPECT_EQ(ClientAddress("ipv4:10.0.0.1:1234"), "ipv4:10.0.0.1");
  EXPECT_EQ(ClientAddress("unix:"), "unix");
  EXPECT_EQ(ClientAddress("--listen"), "--listen");
  EXPECT_EQ(ClientAddress(""), "");
}

TEST(ClientAddressTest, AnIpv6NetworkIsOneClient) {
  for (const char* peer :
       {"ipv6:%5B2001:db8:0:1::1%5D:1", "ipv6:%5B2001:db8:0:1:ffff::2%5D:2", "ipv6:[2001:db8:0:1::3]:3"}) {
    EXPECT_EQ(ClientAddress(peer), "ipv6:2001:db8:0:1::/64") << peer;
  }
  EXPECT_EQ(ClientAddress("ipv6:%5B2001:db8:0:2::1%5D:1"), "ipv6:2001:db8:0:2::/64");
  EXPECT_EQ(ClientAddress("ipv6:%5Bfe80::1%25eth0%5D:1"), "ipv6:fe80::/64");
  EXPECT_EQ(ClientAddress("ipv6:%5B::ffff:10.0.0.1%5D:1"), "ipv4:10.0.0.1");
  EXPECT_EQ(ClientAddress("ipv6:what:1"), "ipv6:what");
}

}  // namespace
}  // namespace berth
