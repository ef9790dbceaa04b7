#include "cache/prefix_log.h"

namespace berth {
namespace {

int32_t Low(uint64_t number) { return static_cast<int32_t>(static_cast<uint32_t>(number)); }
int32_t High(uint64_t number) { return static_cast<int32_t>(static_cast<uint32_t>(number >> 32)); }
uint64_t Join(int32_t low, int32_t high) {
  return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
}

}  // namespace

void PrefixLog::WriteHeader(const Record& record, int32_t* words) {
  words[0] = static_cast<int32_t>(kHeaderWords + record.tokens.size());
  words[1] = static_cast<int32_t>(record.kind);
  words[2] = Low(record.node);
  words[3] = High(record.node);
  words[4] = Low(record.parent);
  words[5] = High(record.parent);
  words[6] = record.number;
}

void PrefixLog::Append(const Record& record) {
  if (full_) return;
  const size_t size = kHeaderWords + record.tokens.size();
  if (written_ + size - begin_.load(std::memory_order_acquire) > ring_.size()) {
    full_ = true;
    ++num_losses_;
    return;
  }
  int32_t header[kHeaderWords];
  WriteHeader(record, header);
  const size_t mask = ring_.size() - 1;
  for (int32_t word : header) ring_[written_++ & mask] = word;
  for (int32_t token : record.tokens) ring_[written_++ & mask] = token;
}

void PrefixLog::Publish() {
  if (written_ == end_.load(std::memory_order_relaxed) && num_losses_ == losses_.load(std::memory_order_relaxed))
    return;
  losses_.store(num_losses_, std::memory_order_relaxed);
  end_.store(written_, std::memory_order_release);
  Wake();
}

bool PrefixLog::Take(std::vector<int32_t>* words) {
  const uint64_t end = end_.load(std::memory_order_acquire);
  // After the end, so a loss before the last of these words is seen.
  const uint64_t losses = losses_.load(std::memory_order_relaxed);
  uint64_t at = begin_.load(std::memory_order_relaxed);
  words->clear();
  words->reserve(end - at);
  const size_t mask = ring_.size() - 1;
  for (; at < end; ++at) words->push_back(ring_[at & mask]);
  begin_.store(end, std::memory_order_release);
  const bool whole = losses == seen_losses_;
  seen_losses_ = losses;
  return whole;
}

void PrefixLog::Wake() {
  wakes_.fetch_add(1, std::memory_order_release);
  wakes_.notify_one();
}

void PrefixLog::Write(const Record& record, std::vector<int32_t>* words) {
  int32_t header[kHeaderWords];
  WriteHeader(record, header);
  words->insert(words->end(), header, header + kHeaderWords);
  words->insert(words->end(), record.tokens.begin(), record.tokens.end());
}

PrefixLog::Record PrefixLog::Read(absl::Span<const int32_t>* words) {
  const absl::Span<const int32_t> own = words->first(static_cast<size_t>((*words)[0]));
  words->remove_prefix(own.size());
  return {.kind = static_cast<Kind>(own[1]),
          .node = Join(own[2], own[3]),
          .parent = Join(own[4], own[5]),
          .number = own[6],
          .tokens = own.subspan(kHeaderWords)};
}

}  // namespace berth
