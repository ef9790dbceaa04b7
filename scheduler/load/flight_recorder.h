// Keeps what the last steps were and took, for GetSteps, `berth-cli trace` and the file of a crash.
//
// The engine thread adds a record before each step and completes it after, without lock or allocation. So the file of a
// crash ends with the step that was under way: its run_us and commit_us are 0. Any thread may read; it never holds the
// engine up, and leaves out a record that is being replaced. WriteTo may also run in the handler of a fatal signal.
#ifndef BERTH_SCHEDULER_LOAD_FLIGHT_RECORDER_H_
#define BERTH_SCHEDULER_LOAD_FLIGHT_RECORDER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace berth {

// One step. Its fields are those of StepRecord in proto/berth/v1/control.proto, in the same order. See there.
struct StepRecord {
  int64_t number = 0;
  int64_t start_us = 0;
  int64_t plan_us = 0;
  int64_t run_us = 0;
  int64_t commit_us = 0;
  int64_t rows = 0;
  int64_t decode_rows = 0;
  int64_t tokens = 0;
  int64_t running = 0;
  int64_t waiting = 0;
  int64_t preemptions = 0;
  int64_t swap_outs = 0;
  int64_t evicted_units = 0;
  int64_t free_bytes = 0;
  int64_t failed = 0;

  friend bool operator==(const StepRecord&, const StepRecord&) = default;
};

class FlightRecorder {
 public:
  static constexpr size_t kCapacity = 10000;
  static constexpr size_t kWords = sizeof(StepRecord) / sizeof(int64_t);
  using Words = std::array<int64_t, kWords>;

  // What a file of WriteTo begins with. Then come the numbers of words of a record and of records, and the records,
  // oldest first, all as 64-bit integers of the machine.
  static constexpr char kMagic[8] = {'B', 'E', 'R', 'T', 'H', 'S', 'T', '1'};

  FlightRecorder() : slots_(std::make_unique<Slot[]>(kCapacity)) {}

  // Engine thread only.
  void Add(const StepRecord& record);
  // Puts the record in place of the one that was added last. Engine thread only. REQUIRES: called once after each Add.
  void ReplaceNewest(const StepRecord& record);

  // Up to `most` of the newest records, oldest first.
  std::vector<StepRecord> Latest(size_t most = kCapacity) const;

  // Writes all records to the file. False: a write failed. Async-signal-safe.
  bool WriteTo(int fd) const;

 private:
  // The version is odd while the words are written. It is 4 * i + 2 once Add has written the i-th step, and 4 * i + 4
  // once ReplaceNewest has.
  struct Slot {
    std::atomic<uint64_t> version{0};
    std::array<std::atomic<int64_t>, kWords> words{};
  };

  // Writes the record and makes its version `version`, which is even.
  static void Write(const StepRecord& record, uint64_t version, Slot* slot);
  // Copies the i-th record. False: it is being written, or was replaced by a later step's.
  bool Read(uint64_t i, Words* words) const;

  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> num_added_{0};
};

}  // namespace berth

#endif  // BERTH_SCHEDULER_LOAD_FLIGHT_RECORDER_H_
