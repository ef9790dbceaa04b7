#include "scheduler/flight_recorder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

namespace berth {
namespace {

// Every field is the same number, so that a torn record shows.
StepRecord RecordOf(int64_t i) {
  FlightRecorder::Words words;
  words.fill(i);
  return std::bit_cast<StepRecord>(words);
}

TEST(FlightRecorderTest, KeepsTheLatestOldestFirst) {
  FlightRecorder recorder;
  EXPECT_TRUE(recorder.Latest().empty());
  constexpr int64_t kNumSteps = 25003;
  for (int64_t i = 0; i < kNumSteps; ++i) recorder.Add(RecordOf(i));
  const std::vector<StepRecord> all = recorder.Latest();
  ASSERT_EQ(all.size(), 10000u);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], RecordOf(kNumSteps - 10000 + static_cast<int64_t>(i)));
  EXPECT_EQ(recorder.Latest(2), (std::vector<StepRecord>{RecordOf(kNumSteps - 2), RecordOf(kNumSteps - 1)}));
}

TEST(FlightRecorderTest, ReadersSeeWholeRecords) {
  FlightRecorder recorder;
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  for (int r = 0; r < 2; ++r) {
    readers.emplace_back([&] {
      while (!done.load()) {
        int64_t last = -1;
        for (const StepRecord& record : recorder.Latest()) {
          ASSERT_EQ(record, RecordOf(record.number));
          ASSERT_GT(record.number, last);
          last = record.number;
        }
      }
    });
  }
  for (int64_t i = 0; i < 200000; ++i) recorder.Add(RecordOf(i));
  done = true;
  for (std::thread& reader : readers) reader.join();
}

TEST(FlightRecorderTest, WritesWhatItHolds) {
  FlightRecorder recorder;
  for (int64_t i = 0; i < 3; ++i) recorder.Add(RecordOf(i));
  std::FILE* const file = std::tmpfile();
  ASSERT_TRUE(recorder.WriteTo(fileno(file)));
  std::rewind(file);
  char magic[8];
  uint64_t sizes[2];
  ASSERT_EQ(std::fread(magic, sizeof(magic), 1, file), 1u);
  EXPECT_EQ(std::memcmp(magic, FlightRecorder::kMagic, sizeof(magic)), 0);
  ASSERT_EQ(std::fread(sizes, sizeof(sizes), 1, file), 1u);
  EXPECT_EQ(sizes[0], FlightRecorder::kWords);
  ASSERT_EQ(sizes[1], 3u);
  for (int64_t i = 0; i < 3; ++i) {
    StepRecord record;
    ASSERT_EQ(std::fread(&record, sizeof(record), 1, file), 1u);
    EXPECT_EQ(record, RecordOf(i));
  }
  EXPECT_EQ(std::fgetc(file), EOF);
  std::fclose(file);
  EXPECT_FALSE(recorder.WriteTo(-1));
}

}  // namespace
}  // namespace berth
