#include "server/connection_gate.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/wait_until.h"

namespace berth {
namespace {

using ::testing::HasSubstr;

// Clients of a gate on loopback, where every address 127.x.y.z is this machine.
class ConnectionGateTest : public ::testing::Test {
 protected:
  ~ConnectionGateTest() override {
    gate_.reset();
    for (int fd : accepted_) ::close(fd);
    for (int fd : clients_) ::close(fd);
  }

  void Start(ConnectionGate::Options options) {
    auto gate = ConnectionGate::Listen({"127.0.0.1", 0}, options);
    ASSERT_TRUE(gate.ok()) << gate.status();
    gate_ = *std::move(gate);
    gate_->Start([this](int, int fd) {
      const std::lock_guard<std::mutex> lock(mutex_);
      accepted_.push_back(fd);
    });
  }

  // Whether a connection from `source` is served: the test greets it then. One that is refused ends without a word.
  bool Connect(const std::string& source = "127.0.0.1") {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    clients_.push_back(fd);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, source.c_str(), &address.sin_addr);
    EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    address.sin_port = htons(static_cast<uint16_t>(gate_->port()));
    ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    const size_t before = num_accepted();
    const int64_t refused = gate_->load().refused;
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    WaitUntil([&] { return num_accepted() > before || gate_->load().refused > refused; }, "the gate to decide");
    return num_accepted() > before;
  }

  size_t num_accepted() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return accepted_.size();
  }

  // Closes the server's side of the i-th accepted connection, as gRPC does.
  void CloseAccepted(size_t i) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ::close(std::exchange(accepted_[i], -1));
  }

  std::unique_ptr<ConnectionGate> gate_;
  std::mutex mutex_;
  std::vector<int> accepted_;
  std::vector<int> clients_;
};

TEST_F(ConnectionGateTest, ClosesWhatIsOverTheTotalAndAcceptsAgainWhenAnotherEnds) {
  Start({.max_connections = 3, .max_connections_per_address = 0});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Connect());
  EXPECT_FALSE(Connect());
  char byte;
  EXPECT_EQ(::recv(clients_.back(), &byte, 1, 0), 0) << "closed, not left hanging";
  EXPECT_EQ(gate_->load().open, 3);
  EXPECT_EQ(gate_->load().refused, 1);
  CloseAccepted(1);
  EXPECT_EQ(gate_->load().open, 2);
  EXPECT_TRUE(Connect());
  EXPECT_FALSE(Connect());
}

TEST_F(ConnectionGateTest, OneAddressCannotTakeThePlacesOfOthers) {
  Start({.max_connections = 10, .max_connections_per_address = 2});
  EXPECT_TRUE(Connect("127.0.0.1"));
  EXPECT_TRUE(Connect("127.0.0.1"));
  EXPECT_FALSE(Connect("127.0.0.1"));
  EXPECT_TRUE(Connect("127.0.0.2"));
  EXPECT_FALSE(Connect("127.0.0.1"));
  EXPECT_EQ(gate_->load().refused, 2);
  EXPECT_EQ(gate_->load().open, 3);
}

// A closed connection's number is soon another file's. It may not count as open for that.
TEST_F(ConnectionGateTest, AReusedDescriptorIsNotTheConnection) {
  Start({.max_connections = 1, .max_connections_per_address = 0});
  EXPECT_TRUE(Connect());
  const int fd = accepted_[0];
  CloseAccepted(0);
  const int other = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::dup2(other, fd), fd);
  EXPECT_EQ(gate_->load().open, 0);
  EXPECT_TRUE(Connect());
  ::close(other);
  ::close(fd);
}

TEST_F(ConnectionGateTest, WithoutLimitsForgetsWhatWasClosed) {
  Start({.max_connections = 0, .max_connections_per_address = 0});
  for (size_t i = 0; i < 300; ++i) {
    ASSERT_TRUE(Connect());
    CloseAccepted(i);
  }
  EXPECT_EQ(gate_->load().open, 0);
  EXPECT_EQ(gate_->load().refused, 0);
}

TEST_F(ConnectionGateTest, SaysWhyItCannotListen) {
  Start({});
  const auto taken = ConnectionGate::Listen({"127.0.0.1", gate_->port()}, {});
  EXPECT_THAT(taken.status().message(), HasSubstr("Address already in use"));
  const auto foreign = ConnectionGate::Listen({"192.0.2.1", 0}, {});  // an address for documentation, nobody's
  EXPECT_THAT(foreign.status().message(), HasSubstr("Cannot assign requested address"));
}

// Connects to a Unix socket; whether that worked.
bool ConnectTo(const std::string& path, int* fd) {
  *fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return ::connect(*fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
}

// In the short folder /tmp: the path of a Unix socket has 107 bytes at most.
class UnixSocketTest : public ConnectionGateTest {
 protected:
  UnixSocketTest() { EXPECT_NE(::mkdtemp(folder_.data()), nullptr); }
  ~UnixSocketTest() override {
    gate_.reset();
    std::filesystem::remove_all(folder_);
  }
  Address InFolder() const { return {.socket_path = folder_ + "/socket"}; }

  std::string folder_ = "/tmp/berth-gate-XXXXXX";
};

TEST_F(UnixSocketTest, TakesConnectionsWhateverTheLimitOfAnAddress) {
  auto gate = ConnectionGate::Listen(InFolder(), {.max_connections = 3, .max_connections_per_address = 1});
  ASSERT_TRUE(gate.ok()) << gate.status();
  gate_ = *std::move(gate);
  EXPECT_EQ(gate_->address(), InFolder());
  gate_->Start([this](int, int fd) {
    const std::lock_guard<std::mutex> lock(mutex_);
    accepted_.push_back(fd);
  });
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(ConnectTo(InFolder().socket_path, &clients_.emplace_back()));
  WaitUntil([this] { return gate_->load().refused == 1; }, "the last connection to be refused");
  EXPECT_EQ(gate_->load().open, 3);
  gate_->Stop();
  EXPECT_FALSE(std::filesystem::exists(InFolder().socket_path));
}

TEST_F(UnixSocketTest, ReplacesASocketThatNobodyListensOnAndNothingElse) {
  auto first = ConnectionGate::Listen(InFolder(), {});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(ConnectionGate::Listen(InFolder(), {}).status().message(), HasSubstr("Address already in use"));
  // As a server leaves it that is killed.
  const std::string left = folder_ + "/left";
  std::filesystem::create_hard_link(InFolder().socket_path, left);
  *first = nullptr;
  EXPECT_TRUE(ConnectionGate::Listen({.socket_path = left}, {}).ok());
  const std::string file = folder_ + "/file";
  std::ofstream(file) << "kept";
  EXPECT_THAT(ConnectionGate::Listen({.socket_path = file}, {}).status().message(),
              HasSubstr("Address already in use"));
  EXPECT_TRUE(std::filesystem::is_regular_file(file));
}

TEST_F(ConnectionGateTest, StopsListening) {
  Start({});
  EXPECT_TRUE(Connect());
  const int port = gate_->port();
  gate_->Stop();
  EXPECT_TRUE(ConnectionGate::Listen({"127.0.0.1", port}, {}).ok());
}

}  // namespace
}  // namespace berth
