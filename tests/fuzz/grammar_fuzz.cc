// What an output must look like. The first byte says of what kind the text after the second is; the second chooses the
// vocabulary and the rest. A grammar that compiles keeps what TokenConstraint promises, on a walk through it.
#include <gtest/gtest.h>

#include <map>

#include "tests/fuzz/fuzz_input.h"
#include "tests/text/grammar_test_util.h"
#include "text/grammar.h"

namespace berth {
namespace {

using Kind = GrammarSpec::Kind;

const std::map<char, Kind>& Kinds() {
  static const auto* const kinds =
      new std::map<char, Kind>{{'s', Kind::kJsonSchema}, {'o', Kind::kJsonObject}, {'r', Kind::kRegex},
                               {'c', Kind::kChoice},     {'l', Kind::kLark},       {'t', Kind::kStructuralTag}};
  return *kinds;
}

GrammarSpec MakeSpec(Kind kind, uint8_t options, const std::string& text) {
  GrammarSpec spec = {.kind = kind, .text = text};
  if (kind == Kind::kChoice) spec.choices = absl::StrSplit(text, '\n', absl::SkipEmpty());
  spec.whitespace = static_cast<GrammarSpec::Whitespace>(options / 4 % 3);
  spec.own_text = options % 2 == 0;
  if (options % 5 == 0) spec.begin_text.push_back('b');  // g++ 12 warns of an assignment here
  return spec;
}

}  // namespace
}  // namespace berth

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const vocabularies = new std::vector<berth::TestVocabulary>(berth::TestVocabularies());
  ::testing::GTEST_FLAG(throw_on_failure) = true;  // the walk checks with EXPECT, and nothing catches
  if (size < 2 || berth::Kinds().count(static_cast<char>(data[0])) == 0) return -1;
  const std::string text = berth::TextOf(data + 2, size - 2);
  const berth::GrammarSpec spec = berth::MakeSpec(berth::Kinds().at(static_cast<char>(data[0])), data[1], text);
  const berth::TestVocabulary& vocabulary = (*vocabularies)[data[1] % vocabularies->size()];
  berth::CompileWork work;
  const auto grammar = berth::CompileGrammar(spec, vocabulary.vocabulary, {}, {}, &work);
  FUZZ_CHECK(work.longest <= berth::kMostStepsBetweenLooks, text);
  if (!grammar.ok()) {
    FUZZ_CHECK(!berth::HasPanicked(grammar.status(), text), grammar.status().ToString());
    return 0;
  }
  std::mt19937 random(static_cast<unsigned>(size));
  RandomWalk(vocabulary, *grammar->start, /*max_tokens=*/20, &random, /*end_weight=*/3);
  return 0;
}
