// Grammars that are made to cost much: none runs on. tests/fuzz/grammar_fuzz.cc makes others.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "absl/base/config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/text/grammar_test_util.h"
#include "tests/text/hostile_grammars.h"
#include "text/grammar.h"

namespace berth {
namespace {

using Kind = GrammarSpec::Kind;

// No compilation takes nearly as long: this tells a hang from a slow machine, under sanitizers too.
constexpr absl::Duration kHang = absl::Minutes(5);

class GrammarCostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    vocabularies_ = TestVocabularies();
    const char* const folder = std::getenv("BERTH_TOKENIZER");  // of a real model: tests/published sets it
    if (folder == nullptr) return;
    TestVocabulary& first = vocabularies_[0];
    first.tokenizer = *Tokenizer::Load(folder);
    const int64_t size = first.tokenizer->vocab_size();
    first.end_token = static_cast<int32_t>(size - 1);
    first.vocabulary = *GrammarVocabulary::Create(first.tokenizer.get(), size, {first.end_token});
  }

  // Compiles and walks, and returns how long compiling took.
  absl::Duration Run(const TestVocabulary& vocabulary, const GrammarSpec& spec, std::mt19937* random) {
    const absl::Time start = absl::Now();
    const auto grammar = CompileGrammar(spec, vocabulary.vocabulary, {}, {});
    const absl::Duration taken = absl::Now() - start;
    EXPECT_LT(taken, kHang);
    if (grammar.ok()) {
      RandomWalk(vocabulary, *grammar->start, 30, random, 3);
    } else {
      EXPECT_FALSE(absl::StrContains(grammar.status().message(), "internal error")) << grammar.status();
      EXPECT_FALSE(absl::StrContains(grammar.status().message(), "panic")) << grammar.status() << spec.text;
    }
    return taken;
  }

  std::vector<TestVocabulary> vocabularies_;
};

TEST_F(GrammarCostTest, CostlyGrammarsEnd) {
  std::mt19937 random(1);
  for (const auto& [name, spec] : HostileGrammars()) {
    SCOPED_TRACE(name);
    const absl::Time start = absl::Now();
    const absl::Duration taken = Run(vocabularies_[0], spec, &random);
    std::cout << name << ": compiled in " << absl::ToInt64Milliseconds(taken) << " ms, all "
              << absl::ToInt64Milliseconds(absl::Now() - start) << " ms" << std::endl;
  }
}

size_t SizeOf(const GrammarSpec& spec) {
  size_t size = spec.text.size();
  for (const std::string& choice : spec.choices) size += choice.size();
  return size;
}

// Counted, so that it holds on every machine: Berth's own work is linear in the text, and looks at the stop often.
TEST_F(GrammarCostTest, WorkIsLinearAndLooksAtTheStop) {
  for (const auto& [name, spec] : HostileGrammars()) {
    CompileWork work;
    (void)CompileGrammar(spec, vocabularies_[0].vocabulary, {}, {}, &work);
    EXPECT_LE(work.longest, kMostStepsBetweenLooks) << name;
    EXPECT_LE(work.steps, 300000 + 8 * SizeOf(spec)) << name;
    std::stop_source stopped;
    stopped.request_stop();
    const auto grammar = CompileGrammar(spec, vocabularies_[0].vocabulary, {}, stopped.get_token(), &work);
    EXPECT_TRUE(absl::IsCancelled(grammar.status())) << name << ": " << grammar.status();
    EXPECT_LE(work.steps, kMostStepsBetweenLooks) << name;
  }
}

struct Stopped {
  absl::Duration latency;  // from the stop to the return; 0: it returned before
  absl::Status status;
};

// Compiles, and stops that some time after the start.
Stopped CompileAndStop(const TestVocabulary& vocabulary, const GrammarSpec& spec, absl::Duration delay,
                       const GrammarLimits& limits = {}) {
  std::stop_source stop;
  std::stop_source returned;
  absl::Time stopped = absl::InfiniteFuture();
  std::thread watchdog([&] {
    const absl::Time deadline = absl::Now() + delay;
    while (absl::Now() < deadline && !returned.stop_requested()) absl::SleepFor(absl::Milliseconds(1));
    stopped = absl::Now();
    stop.request_stop();
  });
  const auto grammar = CompileGrammar(spec, vocabulary.vocabulary, limits, stop.get_token());
  const absl::Time done = absl::Now();
  returned.request_stop();
  watchdog.join();
  return {.latency = std::max(absl::ZeroDuration(), done - stopped), .status = grammar.status()};
}

TEST_F(GrammarCostTest, AStopIsSeen) {
  absl::Duration longest;
  std::string of;
  int num_cancelled = 0;  // of grammars that compile without a stop: whatever fails after one counts as cancelled
  for (const auto& [name, spec] : HostileGrammars()) {
    int cancelled = 0;
    for (int64_t delay_ms : {2, 60, 400}) {
      const Stopped run = CompileAndStop(vocabularies_[0], spec, absl::Milliseconds(delay_ms));
      EXPECT_LT(run.latency, kHang) << name;
      if (run.latency > longest) {
        longest = run.latency;
        of = name;
      }
      if (run.latency == absl::ZeroDuration()) {  // done before
        if (run.status.ok()) num_cancelled += cancelled;
        break;
      }
      cancelled += absl::IsCancelled(run.status) ? 1 : 0;
    }
  }
  EXPECT_GT(num_cancelled, 0);
  std::cout << "longest from stop to return: " << longest << ", " << of << "\n";
  RecordProperty("longest_ms", static_cast<int>(absl::ToInt64Milliseconds(longest)));
}

// With these limits the search for what an output begins with would take an hour.
TEST_F(GrammarCostTest, AStopEndsTheSearchForForcedBytes) {
  GrammarSpec spec;
  spec.kind = GrammarSpec::Kind::kRegex;
  spec.text = "((a{1000}){1000}){1000}";
  GrammarLimits limits;
  limits.max_lexer_states = limits.step_lexer_fuel = int64_t{1} << 40;
  const Stopped run = CompileAndStop(vocabularies_[0], spec, absl::Milliseconds(400), limits);
  EXPECT_LT(run.latency, kHang);
  EXPECT_TRUE(absl::IsCancelled(run.status)) << run.status;
}

// Copies, drops and swaps parts of texts that are right, and of each other.
std::string Mutate(std::string text, const std::string& other, std::mt19937* random) {
  const auto at = [&](size_t size) { return size == 0 ? 0 : (*random)() % size; };
  for (size_t changes = 1 + at(4); changes > 0; --changes) {
    const size_t begin = at(text.size());
    const size_t length = at(std::min<size_t>(12, text.size() - begin) + 1);
    switch ((*random)() % 5) {
      case 0:
        text.erase(begin, length);
        break;
      case 1:
        text.insert(at(text.size()), text.substr(begin, length));
        break;
      case 2:
        text.insert(begin, other.substr(at(other.size()), length));
        break;
      case 3:
        text.replace(begin, length, Repeat(text.substr(begin, length), static_cast<int>(at(5))));
        break;
      default:
        text.insert(begin, 1, "(){}[]|*+?\"\\:,.^$&~/<>0a \n"[at(27)]);
    }
  }
  return text;
}

const std::vector<std::pair<Kind, const char*>>& Seeds() {
  static const auto* const seeds = new std::vector<std::pair<Kind, const char*>>{
      {Kind::kRegex, "[a-z]{3,5}(x|y\\d+)*[^\\w\\s]?\\u00e9"},
      {Kind::kRegex, "^(?:a|(b[c-e])+?){2,}\\.$"},
      {Kind::kLark,
       "start: \"[\" item (\",\" item)* \"]\"\nitem: NAME | start | %json {\"type\": \"integer\"}\nNAME: "
       "/[a-c]{1,3}/\n%ignore / /"},
      {Kind::kLark, "start: (a | <|im_start|> b~1..3)+\na[suffix=\"x\"]: /[^x]*/\nb: \"q\"i & B\nB: /p|q/ # c"},
      {Kind::kJsonSchema,
       R"({"type": "object", "properties": {"a": {"enum": [1, "x", null]}, "b": {"$ref": "#/$defs/c"}},
         "required": ["a"], "additionalProperties": {"type": "number", "minimum": -1.5, "multipleOf": 0.5}, "$defs": {"c":
         {"anyOf": [{"type": "array", "items": {"pattern": "^a+$"}, "minItems": 1}, {"format": "date"}]}}})"},
      {Kind::kStructuralTag, R"({"type": "structural_tag", "triggers": ["<t", "[["], "structures": [
         {"begin": "<t=a>", "schema": {"type": "boolean"}, "end": "</t>"}, {"begin": "[[", "schema": {}, "end": "]]"}]})"},
  };
  return *seeds;
}

// What is in use, without what the allocator keeps of the tests before.
int64_t ResidentBytes() {
  malloc_trim(0);
  int64_t total = 0;
  int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// A few grammars again and again, compiled, refused, walked through and dropped.
TEST_F(GrammarCostTest, MemoryDoesNotGrow) {
  const TestVocabulary& made = vocabularies_[0];
  TestVocabulary vocabulary;
  vocabulary.end_token = made.end_token;
  // Masks that are kept fill their room in the first rounds.
  vocabulary.vocabulary = *GrammarVocabulary::Create(made.tokenizer.get(), made.vocabulary->vocab_size(),
                                                     {made.end_token}, /*mask_bytes=*/1 << 20);
  std::mt19937 random(21);
  std::vector<GrammarSpec> specs;
  for (int i = 0; i < 90; ++i) {
    const auto& [kind, text] = Seeds()[static_cast<size_t>(i) % Seeds().size()];
    const bool changed = i % 3 != 0;
    specs.push_back({.kind = kind, .text = changed ? Mutate(text, Seeds()[0].second, &random) : text});
  }
  const auto compile_all = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (const GrammarSpec& spec : specs) Run(vocabulary, spec, &random);
    }
  };
  compile_all(4);
  const int64_t before = ResidentBytes();
  compile_all(12);
  const int64_t grown = ResidentBytes() - before;
  std::cout << "grew by " << (grown >> 10) << " KiB from " << (before >> 20) << " MiB\n";
  // 1080 compilations; one leaks 64 KiB at the least, and allocators keep some memory. The address sanitizer keeps what
  // is freed, up to 256 MiB.
#ifdef ABSL_HAVE_ADDRESS_SANITIZER
  constexpr int64_t kMost = 320;
#else
  constexpr int64_t kMost = 32;
#endif
  EXPECT_LT(grown >> 20, kMost);
}

}  // namespace
}  // namespace berth
