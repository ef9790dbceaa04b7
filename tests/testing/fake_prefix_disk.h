// A disk tier without a disk: files in memory that outlive whoever uses them, done when the test says so.
#ifndef BERTH_TESTS_TESTING_FAKE_PREFIX_DISK_H_
#define BERTH_TESTS_TESTING_FAKE_PREFIX_DISK_H_

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/tiers/prefix_disk.h"

namespace berth {

class FakePrefixDisk : public PrefixDisk {
 public:
  struct Stored {
    std::string salt;
    std::vector<int32_t> tokens;
    std::shared_ptr<CacheSnapshot> snapshot;
    int64_t size_bytes = 0;
    absl::Time used = absl::InfinitePast();
  };

  Found TakeFound() override {
    Found found;
    for (const auto& [id, file] : files) {
      found.files.push_back(
          {.id = id, .salt = file.salt, .tokens = file.tokens, .size_bytes = file.size_bytes, .used = file.used});
    }
    return found;
  }
  int64_t FileBytes(absl::string_view salt, int64_t num_tokens, int64_t snapshot_bytes) const override {
    return static_cast<int64_t>(salt.size()) + 4 * num_tokens + snapshot_bytes;
  }
  uint64_t Write(absl::string_view salt, absl::Span<const int32_t> tokens,
                 std::shared_ptr<const CacheSnapshot> snapshot) override {
    const uint64_t id = ++last_id_;
    Stored file = {.salt = std::string(salt), .tokens = {tokens.begin(), tokens.end()}, .snapshot = Copy(*snapshot)};
    file.size_bytes = FileBytes(salt, static_cast<int64_t>(tokens.size()), snapshot->size_bytes);
    pending_.push_back([this, id, file = std::make_shared<Stored>(std::move(file))] {
      const absl::Status status = on_write();
      if (status.ok()) files[id] = std::move(*file);
      results_.push_back({.id = id, .written = true, .status = status});
    });
    return id;
  }
  void Read(uint64_t id) override {
    ++num_reads;
    pending_.insert(pending_.begin(), [this, id] {
      Result result = {.id = id, .status = on_read(), .time = read_time};
      if (result.status.ok()) result.snapshot = Copy(*files.at(id).snapshot);
      if (!result.status.ok()) files.erase(id);
      results_.push_back(std::move(result));
    });
  }
  void Remove(uint64_t id) override {
    pending_.push_back([this, id] { files.erase(id); });
  }
  void Sync(std::function<void(const absl::Status&)> done) override {
    pending_.push_back([this, done = std::move(done)] { done(on_sync()); });
    if (!stalled) Work();
  }
  std::vector<Result> TakeResults() override {
    if (!stalled) Work();
    return std::exchange(results_, {});
  }

  // Does what was asked for: reads first, the rest in order.
  void Work() {
    for (const std::function<void()>& work : std::exchange(pending_, {})) work();
  }
  int64_t TotalBytes() const {
    int64_t bytes = 0;
    for (const auto& [id, file] : files) bytes += file.size_bytes;
    return bytes;
  }

  bool stalled = false;  // does nothing until Work()
  std::function<absl::Status()> on_write = [] { return absl::OkStatus(); };
  std::function<absl::Status()> on_read = [] { return absl::OkStatus(); };
  std::function<absl::Status()> on_sync = [] { return absl::OkStatus(); };
  absl::Duration read_time;
  int64_t num_reads = 0;
  std::map<uint64_t, Stored> files;  // by id, the oldest first

 private:
  static std::shared_ptr<CacheSnapshot> Copy(const CacheSnapshot& snapshot) {
    auto copy = std::make_shared<CacheSnapshot>();
    copy->num_tokens = snapshot.num_tokens;
    copy->groups = snapshot.groups;
    copy->size_bytes = snapshot.size_bytes;
    copy->bytes = std::make_unique<std::byte[]>(static_cast<size_t>(snapshot.size_bytes));
    std::memcpy(copy->bytes.get(), snapshot.bytes.get(), static_cast<size_t>(snapshot.size_bytes));
    return copy;
  }

  uint64_t last_id_ = 0;
  std::vector<std::function<void()>> pending_;
  std::vector<Result> results_;
};

}  // namespace berth

#endif  // BERTH_TESTS_TESTING_FAKE_PREFIX_DISK_H_
