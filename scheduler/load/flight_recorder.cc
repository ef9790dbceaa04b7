#include "scheduler/load/flight_recorder.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

namespace berth {
namespace {

bool WriteAll(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = ::write(fd, at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

}  // namespace

// Each word is a release after the odd version, and each read of one an acquire before the second look at the version.
// So whoever reads a new word also sees that the version changed.
void FlightRecorder::Write(const StepRecord& record, uint64_t version, Slot* slot) {
  const Words words = std::bit_cast<Words>(record);
  slot->version.store(version - 1, std::memory_order_relaxed);
  for (size_t w = 0; w < kWords; ++w) slot->words[w].store(words[w], std::memory_order_release);
  slot->version.store(version, std::memory_order_release);
}

void FlightRecorder::Add(const StepRecord& record) {
  const uint64_t i = num_added_.load(std::memory_order_relaxed);
  Write(record, 4 * i + 2, &slots_[i % kCapacity]);
  num_added_.store(i + 1, std::memory_order_release);
}

void FlightRecorder::ReplaceNewest(const StepRecord& record) {
  const uint64_t i = num_added_.load(std::memory_order_relaxed) - 1;
  Write(record, 4 * i + 4, &slots_[i % kCapacity]);
}

bool FlightRecorder::Read(uint64_t i, Words* words) const {
  const Slot& slot = slots_[i % kCapacity];
  const uint64_t version = slot.version.load(std::memory_order_acquire);
  if (version != 4 * i + 2 && version != 4 * i + 4) return false;
  for (size_t w = 0; w < kWords; ++w) (*words)[w] = slot.words[w].load(std::memory_order_acquire);
  return slot.version.load(std::memory_order_relaxed) == version;
}

std::vector<StepRecord> FlightRecorder::Latest(size_t most) const {
  const uint64_t end = num_added_.load(std::memory_order_acquire);
  const uint64_t count = std::min<uint64_t>({end, most, kCapacity});
  std::vector<StepRecord> records;
  records.reserve(count);
  Words words;
  for (uint64_t i = end - count; i < end; ++i) {
    if (Read(i, &words)) records.push_back(std::bit_cast<StepRecord>(words));
  }
  return records;
}

bool FlightRecorder::WriteTo(int fd) const {
  const uint64_t end = num_added_.load(std::memory_order_acquire);
  const uint64_t begin = end - std::min<uint64_t>(end, kCapacity);
  Words words;
  uint64_t count = 0;
  for (uint64_t i = begin; i < end; ++i) count += Read(i, &words) ? 1 : 0;
  const uint64_t sizes[2] = {kWords, count};
  if (!WriteAll(fd, kMagic, sizeof(kMagic)) || !WriteAll(fd, sizes, sizeof(sizes))) return false;
  for (uint64_t i = begin; i < end && count > 0; ++i) {
    if (!Read(i, &words)) continue;
    if (!WriteAll(fd, words.data(), sizeof(words))) return false;
    --count;
  }
  return true;
}

}  // namespace berth
