#include "flags/units.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace berth {
namespace {

TEST(UnitsTest, ReadsByteSizes) {
  const std::vector<std::pair<std::string, int64_t>> table = {
      {"1", 1},
      {"4096", 4096},
      {"4096B", 4096},
      {"1KiB", 1024},
      {"512MiB", 512 << 20},
      {" 512 mib ", 512 << 20},
      {"8GiB", int64_t{8} << 30},
      {"0.5GiB", 512 << 20},
      {"1TiB", int64_t{1} << 40},
      {"500MB", 500000000},
      {"1048576TiB", int64_t{1} << 60},
  };
  for (const auto& [text, bytes] : table) {
    const auto parsed = ParseByteSize(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(UnitsTest, RefusesWhatIsNotAByteSize) {
  for (const char* text : {"", "MiB", "-1", "-1GiB", "1e3", "0", "0.1B", "12 parsecs", "1.2.3MiB", "nan", "inf", "0x10",
                           "1048577TiB", "99999999999999999999999", "1GiB2"}) {
    EXPECT_EQ(ParseByteSize(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(UnitsTest, WritesByteSizesShort) {
  EXPECT_EQ(FormatByteSize(0), "0 B");
  EXPECT_EQ(FormatByteSize(96), "96 B");
  EXPECT_EQ(FormatByteSize(1536), "1.5 KiB");
  EXPECT_EQ(FormatByteSize(512 << 20), "512 MiB");
  EXPECT_EQ(FormatByteSize(int64_t{3} << 40), "3 TiB");
}

TEST(UnitsTest, ReadsAndWritesAddresses) {
  for (const char* text : {"127.0.0.1:8600", "localhost:0", "[::1]:80", "0.0.0.0:65535", "berth-0.berth.svc:8600",
                           "unix:/run/berth.sock"}) {
    const auto address = ParseAddress(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
  EXPECT_TRUE(ParseAddress("unix:/run/berth.sock")->IsUnix());
  EXPECT_TRUE(ParseAddress("unix:/run/berth.sock")->IsLocal());
  EXPECT_TRUE(ParseAddress("localhost:1")->IsLocal());
  EXPECT_TRUE(ParseAddress("127.0.0.1:1")->IsLocal());
  EXPECT_TRUE(ParseAddress("[::1]:1")->IsLocal());
  EXPECT_FALSE(ParseAddress("0.0.0.0:1")->IsLocal());
  EXPECT_FALSE(ParseAddress("[::]:1")->IsLocal());
  EXPECT_FALSE(ParseAddress("127.example.com:1")->IsLocal()) << "a name";
}

TEST(UnitsTest, RefusesWhatIsNotAnAddress) {
  for (const char* text : {"", ":", "host", "host:", ":1", "host:-1", "host:65536", "host:1x", "::1", "::1:80", "[::1]",
                           "[]:1", "[::1:80", "a b:1", "http://h:1", "unix:", "unix:relative"}) {
    EXPECT_EQ(ParseAddress(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_TRUE(ParseAddress("unix:/" + std::string(106, 'p')).ok());
  EXPECT_FALSE(ParseAddress("unix:/" + std::string(107, 'p')).ok());
}

}  // namespace
}  // namespace berth
