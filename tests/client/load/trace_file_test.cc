#include "client/load/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace berth::cli {
namespace {

using ::testing::HasSubstr;

TEST(TraceFile, ReadsMooncakesForm) {
  const auto trace = ParseTrace(
      "{\"timestamp\": 500, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [46, 47]}\n\n"
      "{\"timestamp\": 1750, \"input_length\": 512, \"output_length\": 7, \"hash_ids\": [46]}\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].arrival, absl::ZeroDuration());
  EXPECT_EQ((*trace)[1].arrival, absl::Milliseconds(1250));
  EXPECT_EQ((*trace)[0].prompt_tokens, 600);
  ASSERT_EQ((*trace)[0].shared.size(), 2u);
  EXPECT_EQ((*trace)[0].shared[1].num_tokens, 88);
  EXPECT_EQ((*trace)[0].shared[0], (*trace)[1].shared[0]);
}

TEST(TraceFile, ReadsItsOwnForm) {
  const auto trace = ParseTrace(
      "{\"arrival\": 2, \"prompt_tokens\": 10, \"output_tokens\": 1, \"prefix_id\": \"a\", \"prefix_tokens\": 4}\n"
      "{\"arrival\": 3.5, \"prompt_tokens\": 10, \"output_tokens\": 1}\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ((*trace)[0].shared[0].num_tokens, 4);
  EXPECT_TRUE((*trace)[1].shared.empty());
  EXPECT_EQ((*trace)[1].arrival, absl::Seconds(1.5));
}

TEST(TraceFile, NamesLineAndFieldOfAnError) {
  const auto message = [](const std::string& text) { return std::string(ParseTrace(text).status().message()); };
  const std::string good = "{\"arrival\": 2, \"prompt_tokens\": 10, \"output_tokens\": 1}\n";
  EXPECT_THAT(message(good + "[]"), HasSubstr("line 2: not a JSON object"));
  EXPECT_THAT(message(good + "{\"arrival\": 1, \"prompt_tokens\": 10, \"output_tokens\": 1}"),
              HasSubstr("line 2: it arrives before"));
  EXPECT_THAT(message("{\"arrival\": 1, \"prompt_tokens\": 0, \"output_tokens\": 1}"),
              HasSubstr("line 1: prompt_tokens: 0 is not a whole number from 1 to"));
  EXPECT_THAT(message("{\"arrival\": 1, \"output_tokens\": 1}"), HasSubstr("prompt_tokens: is missing"));
  EXPECT_THAT(message("{\"arrival\": -1, \"prompt_tokens\": 1, \"output_tokens\": 1}"), HasSubstr("arrival: -1"));
  EXPECT_THAT(
      message("{\"arrival\": 1, \"prompt_tokens\": 2, \"output_tokens\": 1, \"prefix_id\": 1, \"prefix_tokens\": 3}"),
      HasSubstr("prefix_tokens: 3 is more than prompt_tokens, 2"));
  EXPECT_THAT(message("{\"timestamp\": 1, \"input_length\": 18446744073709551615, \"output_length\": 1}"),
              HasSubstr("input_length"));
  EXPECT_THAT(message("\n"), HasSubstr("no line"));
}

}  // namespace
}  // namespace berth::cli
