#include "text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace berth {
namespace {

// Feeds `text` in pieces of the given sizes (the last one repeated) and returns what was shown.
std::string Feed(StopMatcher* matcher, const std::string& text, const std::vector<size_t>& sizes, std::string* stop) {
  std::string shown;
  size_t at = 0;
  for (size_t i = 0; at < text.size(); ++i) {
    const size_t size = sizes[std::min(i, sizes.size() - 1)];
    const StopMatcher::Result result = matcher->Add(text.substr(at, size));
    shown += result.text;
    if (result.matched) {
      *stop = result.stop;
      return shown;
    }
    at += size;
  }
  return shown + matcher->Flush();
}

TEST(StopMatcher, ShowsEverythingWithoutAMatch) {
  StopMatcher matcher({"END", "xyz"}, false);
  std::string stop;
  EXPECT_EQ(Feed(&matcher, "the EN and the xy", {1}, &stop), "the EN and the xy");
  EXPECT_EQ(stop, "");
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldBeAStop) {
  StopMatcher matcher({"\n\nUser:"}, false);
  EXPECT_EQ(matcher.Add("Hello\n").text, "Hello");
  EXPECT_EQ(matcher.Add("\nUse").text, "");
  EXPECT_EQ(matcher.Add("less").text, "\n\nUseless");
}

TEST(StopMatcher, TheFirstStopWinsAndOfEqualStartsTheLongest) {
  StopMatcher matcher({"bc", "abcd", "bcd"}, false);
  const StopMatcher::Result result = matcher.Add("xxbcdabcd");
  EXPECT_TRUE(result.matched);
  EXPECT_EQ(result.text, "xx");
  EXPECT_EQ(result.stop, "bcd");
  EXPECT_EQ(matcher.Add("more").text, "");
}

TEST(StopMatcher, KeepsTheStopWhenAsked) {
  StopMatcher matcher({"."}, true);
  EXPECT_EQ(matcher.Add("One. Two.").text, "One.");
}

TEST(StopMatcher, AStopThatMayNotMatchIsText) {
  StopMatcher matcher({"ab", "xabcd", "q"}, false);
  EXPECT_EQ(matcher.Add("abq x", /*may_match=*/false).text, "abq ");
  EXPECT_EQ(matcher.Add("ab", /*may_match=*/false).text, "");  // may become the second
  EXPECT_EQ(matcher.Add("c").text, "") << "what ended before does not match later";
  const StopMatcher::Result result = matcher.Add("d ab");
  EXPECT_TRUE(result.matched);
  EXPECT_EQ(result.stop, "xabcd") << "it ends where it may match, wherever it began";
  EXPECT_EQ(result.text, "");
}

TEST(StopMatcher, PiecesDoNotChangeTheText) {
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += "ab\n"[random() % 3];
    const std::vector<std::string> stops = {"ab\na", "bbb", "\n\na"};
    size_t first = std::string::npos;
    for (const std::string& stop : stops) first = std::min(first, text.find(stop));
    std::vector<size_t> sizes;
    for (int i = 0; i < 30; ++i) sizes.push_back(1 + random() % 4);
    StopMatcher matcher(stops, false);
    std::string stop;
    EXPECT_EQ(Feed(&matcher, text, sizes, &stop), text.substr(0, first));
    EXPECT_EQ(stop.empty(), first == std::string::npos);
  }
}

}  // namespace
}  // namespace berth
