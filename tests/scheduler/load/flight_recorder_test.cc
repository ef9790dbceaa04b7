#include "scheduler/load/flight_recorder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "scheduler/engine.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_model_runner.h"
#include "tests/testing/recording_sink.h"
#include "tests/testing/tiny_cache.h"
#include "tests/testing/wait_until.h"

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
  constexpr int64_t kNumReads = 20;
  std::atomic<bool> done{false};
  std::atomic<int64_t> num_reads{0};
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
        ++num_reads;
      }
    });
  }
  // Until they have read meanwhile.
  for (int64_t i = 0; (i < 200000 || num_reads < kNumReads) && !HasFailure(); ++i) recorder.Add(RecordOf(i));
  done = true;
  for (std::thread& reader : readers) reader.join();
}

TEST(FlightRecorderTest, AStepIsReplacedByItsEnd) {
  FlightRecorder recorder;
  for (int64_t i = 0; i < 10001; ++i) {
    recorder.Add(RecordOf(-1));
    ASSERT_EQ(recorder.Latest(1), std::vector<StepRecord>{RecordOf(-1)});
    recorder.ReplaceNewest(RecordOf(i));
  }
  EXPECT_EQ(recorder.Latest().size(), 10000u);
  EXPECT_EQ(recorder.Latest(2), (std::vector<StepRecord>{RecordOf(9999), RecordOf(10000)}));
}

// The engine over a model whose steps take 10 ms.
struct RecordingEngine {
  explicit RecordingEngine(int64_t arena_size) : tiny({StaticLayer()}, arena_size), runner(tiny.cache.get()) {
    runner.on_run = [this](const StepPlan&) {
      clock.Advance(absl::Milliseconds(10));
      during.push_back(engine->recorder().Latest(1).at(0));
      return ++num_run == fails_at ? absl::InternalError("made to fail") : absl::OkStatus();
    };
    Engine::Options options;
    options.now = [this] { return clock.Now(); };
    options.scheduler.max_sequence_tokens = 1000;
    options.scheduler.share_prefixes = true;
    auto made = Engine::Create(tiny.cache.get(), &runner, &sink, options);
    EXPECT_TRUE(made.ok()) << made.status();
    engine = *std::move(made);
    engine->Start();
  }

  // Returns the steps that the request took.
  std::vector<StepRecord> Run(RequestKey key, int64_t prompt_tokens, int64_t max_tokens) {
    Request request;
    request.key = key;
    request.prompt.assign(prompt_tokens, static_cast<int32_t>(key));
    request.max_tokens = max_tokens;
    request.arrival = clock.Now();
    during.clear();
    EXPECT_TRUE(engine->Submit(std::move(request)).ok());
    EXPECT_TRUE(engine->WaitUntilIdle(kHangLimit));
    std::vector<StepRecord> steps;
    // The last step may still write its record.
    WaitUntil(
        [&] {
          steps = engine->recorder().Latest(during.size());
          return steps.size() == during.size() && steps.back().run_us != 0;
        },
        "the record of the last step");
    return steps;
  }

  TinyCache tiny;
  FakeModelRunner runner;
  FakeClock clock;
  RecordingSink sink;
  int num_run = 0;
  int fails_at = 0;
  std::vector<StepRecord> during;  // the newest record while the model ran, by step
  std::unique_ptr<Engine> engine;
};

TEST(FlightRecorderTest, TheEngineRecordsAStepBeforeAndAfterTheModelRan) {
  RecordingEngine e(/*arena_size=*/64);
  e.fails_at = 3;
  const std::vector<StepRecord> steps = e.Run(1, 3, 5);
  ASSERT_EQ(steps.size(), 3u);
  for (size_t i = 0; i < steps.size(); ++i) {
    for (const StepRecord& record : {e.during[i], steps[i]}) {
      EXPECT_EQ(record.number, static_cast<int64_t>(i) + 1);
      EXPECT_EQ(record.rows, 1);
      EXPECT_EQ(record.decode_rows, i == 0 ? 0 : 1);
      EXPECT_EQ(record.tokens, i == 0 ? 3 : 1);
    }
    EXPECT_EQ(e.during[i].run_us, 0);
    EXPECT_EQ(steps[i].run_us, 10'000);
    EXPECT_EQ(steps[i].failed, i == 2 ? 1 : 0);
  }
}

TEST(FlightRecorderTest, EvictionsBelongToTheStepThatNeededTheRoom) {
  RecordingEngine e(/*arena_size=*/8);
  const int64_t length = e.engine->max_sequence_tokens() - 10;
  e.Run(1, length, 2);
  const std::vector<StepRecord> steps = e.Run(2, length, 2);
  int64_t evicted = 0;
  for (const PoolOccupancy& pool : e.engine->GetLoad().occupancy.pools) evicted += pool.evicted_units;
  EXPECT_GT(evicted, 0);
  EXPECT_GT(steps[0].evicted_units, 0);
  EXPECT_EQ(steps[0].evicted_units + steps[1].evicted_units, evicted);
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
