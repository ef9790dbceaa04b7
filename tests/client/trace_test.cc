#include "client/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace berth::cli {
namespace {

v1::GetStepsResponse TwoSteps() {
  v1::GetStepsResponse steps;
  v1::StepRecord* step = steps.add_steps();
  step->set_number(7);
  step->set_start_us(1'700'000'000'000'000);
  step->set_plan_us(10);
  step->set_run_us(2000);
  step->set_commit_us(30);
  step->set_rows(3);
  step->set_decode_rows(3);
  step->set_running(3);
  step->set_waiting(5);
  step->set_free_bytes(4096);
  *steps.add_steps() = *step;
  step = steps.mutable_steps(1);
  step->set_start_us(1'700'000'000'003'000);
  step->set_decode_rows(1);
  step->set_failed(1);
  return steps;
}

TEST(TraceTest, NamesTheStepThatHadNotEnded) {
  v1::GetStepsResponse steps = TwoSteps();
  steps.mutable_steps(0)->set_run_us(0);
  steps.mutable_steps(0)->set_commit_us(0);
  EXPECT_EQ(nlohmann::json::parse(ChromeTrace(steps))["traceEvents"][2]["name"], "step under way");
}

// As a server writes it to its --crash_dir: records of 64-bit words, here each with its place in all of them.
void WriteCrashFile(const std::string& path, uint64_t num_steps) {
  const auto num_fields = static_cast<uint64_t>(v1::StepRecord::descriptor()->field_count());
  std::ofstream file(path, std::ios::binary);
  const auto write = [&](uint64_t word) { file.write(reinterpret_cast<const char*>(&word), sizeof(word)); };
  file << "BERTHST1";
  write(num_fields);
  write(num_steps);
  for (uint64_t word = 0; word < num_fields * num_steps; ++word) write(word / num_fields);
}

TEST(TraceTest, WritesTheLastSteps) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/crash";
  WriteCrashFile(path, 5);
  const std::vector<std::pair<std::string, std::vector<int64_t>>> cases = {
      {"--last=0", {0, 1, 2, 3, 4}}, {"--last=2", {3, 4}}, {"--last=9", {0, 1, 2, 3, 4}}};
  for (const auto& [last, expected] : cases) {
    std::istringstream in;
    std::ostringstream out, err;
    Interrupt interrupt([] { FAIL() << "nobody fires"; });
    Environment environment = {.in = in, .out = out, .err = err, .interrupt = interrupt};
    ASSERT_EQ(RunTrace({"--from=" + path, "--out=-", last}, environment), kExitOk) << err.str();
    const nlohmann::json trace = nlohmann::json::parse(out.str());
    std::vector<int64_t> numbers;
    for (const nlohmann::json& event : trace["traceEvents"]) {
      if (event.contains("args") && event["args"].contains("number")) numbers.push_back(event["args"]["number"]);
    }
    EXPECT_EQ(numbers, expected) << last;
  }
}

// What Perfetto's importer of the JSON format needs: numbers where it reads numbers, known phases, slices that nest.
TEST(TraceTest, IsAChromeTrace) {
  const nlohmann::json trace = nlohmann::json::parse(ChromeTrace(TwoSteps()));
  std::set<std::string> names;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    names.insert(event["name"]);
    EXPECT_TRUE(event["pid"].is_number_integer() && event["tid"].is_number_integer());
    EXPECT_TRUE(event["ts"].is_number_integer());
    EXPECT_GE(event["ts"], 0);
    const std::string phase = event["ph"];
    EXPECT_THAT(phase, ::testing::AnyOf("M", "X", "C"));
    if (phase == "X") {
      EXPECT_GE(event["dur"], 0);
    }
    if (phase == "C") {
      EXPECT_TRUE(event["args"].begin()->is_number());
    }
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf({"process_name", "decode", "failed step", "plan", "run", "commit",
                                              "sequences", "free bytes of the arena"}));
  const nlohmann::json& first = trace["traceEvents"][2];
  EXPECT_EQ(first["name"], "decode");
  EXPECT_EQ(first["ts"], 0);
  EXPECT_EQ(first["dur"], 2040);
  EXPECT_EQ(first["args"]["number"], 7);
}

TEST(TraceTest, WithoutStepsIsATraceToo) {
  EXPECT_EQ(nlohmann::json::parse(ChromeTrace({}))["traceEvents"].size(), 2u);
}

TEST(TraceTest, RefusesWhatIsNoCrashFile) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/file";
  EXPECT_EQ(ReadCrashFile(path).status().message(), "cannot read " + path);
  for (const std::string& content :
       {std::string(), std::string("BERTHST1"), std::string(100, 'x'), "BERTHST1" + std::string(200, '\xff')}) {
    std::ofstream(path, std::ios::binary) << content;
    EXPECT_EQ(ReadCrashFile(path).status().code(), absl::StatusCode::kDataLoss) << content.size();
  }
}

}  // namespace
}  // namespace berth::cli
