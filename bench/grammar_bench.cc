// Measures the time of one row's mask, over random walks through grammars of several kinds. Run it by
// `bazel run -c opt //bench:grammar_bench`.
// The vocabulary has 128,000 tokens that are made up from common letters. `-- --tokenizer=FOLDER` reads one instead.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace berth {
namespace {

using Kind = GrammarSpec::Kind;
using nlohmann::json;

std::string tokenizer_dir;

// GPT-2's characters for bytes.
std::vector<std::string> ByteCharacters() {
  std::vector<std::string> all;
  int next = 256;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    const int code = printable ? b : next++;
    std::string text;
    if (code < 128) {
      text = std::string(1, static_cast<char>(code));
    } else {
      text = {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
    }
    all.push_back(text);
  }
  return all;
}

std::string MadeUpTokenizer(int size) {
  const std::vector<std::string> bytes = ByteCharacters();
  std::mt19937 random(1);
  std::vector<std::string> tokens = bytes;
  std::set<std::string> seen(bytes.begin(), bytes.end());
  json merges = json::array();
  const std::string common = "eeeeetttaaooiinnsshhrrddlluucmfwygpbvkxjqz0123456789\",:{}[].-_/ETAOINS";
  while (static_cast<int>(tokens.size()) < size - 1) {
    // Mostly words that grow by a letter; some begin with a space.
    std::string left = random() % 3 != 0 ? tokens[random() % tokens.size()] : bytes[' '];
    std::string right = bytes[static_cast<uint8_t>(common[random() % common.size()])];
    if (left.size() > 14 || !seen.insert(left + right).second) continue;
    tokens.push_back(left + right);
    merges.push_back({left, right});
  }
  json vocab = json::object();
  for (const std::string& token : tokens) vocab[token] = vocab.size();
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const json end = {{"id", size - 1},  {"content", "<|end|>"}, {"single_word", false}, {"lstrip", false},
                    {"rstrip", false}, {"normalized", false},  {"special", true}};
  return json({{"version", "1.0"},
               {"added_tokens", json::array({end})},
               {"normalizer", nullptr},
               {"pre_tokenizer", byte_level},
               {"post_processor", nullptr},
               {"decoder", byte_level},
               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}})
      .dump();
}

struct Model {
  std::unique_ptr<Tokenizer> tokenizer;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
  int32_t end_token;
};

const Model& TheModel() {
  static const Model* model = [] {
    auto* made = new Model;
    auto tokenizer = tokenizer_dir.empty() ? Tokenizer::Parse(MadeUpTokenizer(128000)) : Tokenizer::Load(tokenizer_dir);
    if (!tokenizer.ok()) {
      std::cerr << tokenizer.status() << "\n";
      std::exit(1);
    }
    made->tokenizer = *std::move(tokenizer);
    made->end_token = static_cast<int32_t>(made->tokenizer->vocab_size()) - 1;
    const absl::Time start = absl::Now();
    auto vocabulary =
        GrammarVocabulary::Create(made->tokenizer.get(), made->tokenizer->vocab_size(), {made->end_token});
    if (!vocabulary.ok()) {
      std::cerr << vocabulary.status() << "\n";
      std::exit(1);
    }
    std::cout << made->tokenizer->vocab_size() << " tokens, vocabulary made in " << absl::Now() - start << "\n";
    made->vocabulary = *std::move(vocabulary);
    return made;
  }();
  return *model;
}

const std::pair<const char*, GrammarSpec> kGrammars[] = {
    {"person",
     {.kind = Kind::kJsonSchema,
      .text = R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0},
        "email": {"type": "string", "format": "email"}, "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        "address": {"type": "object", "properties": {"street": {"type": "string", "maxLength": 60}, "zip": {"type": "string",
        "pattern": "^[0-9]{5}$"}}, "required": ["street", "zip"], "additionalProperties": false}},
        "required": ["name", "age", "address"], "additionalProperties": false})"}},
    {"json_object", {.kind = Kind::kJsonObject}},
    {"regex", {.kind = Kind::kRegex, .text = "([a-z]{3,12} ){5,40}[0-9]{4}"}},
    {"choice", {.kind = Kind::kChoice, .choices = {"positive", "negative", "neutral", "positively", "none of them"}}},
    {"lark",
     {.kind = Kind::kLark,
      .text = "start: sum\nsum: product ((\"+\" | \"-\") product)*\nproduct: atom ((\"*\" | \"/\") atom)*\n"
              "atom: /[0-9]+/ | NAME | \"(\" sum \")\"\nNAME: /[a-z_][a-z0-9_]*/\n%ignore / +/"}},
    {"structural_tag",
     {.kind = Kind::kStructuralTag,
      .text =
          R"({"type": "structural_tag", "triggers": ["<function="], "structures": [{"begin": "<function=get>", "schema":
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}, "end": "</function>"}]})"}},
};

struct MaskTimes {
  std::vector<double> micros;
  double forced_micros = 0;
  double most_forced_micros = 0;
};

// Draws tokens from the masks, and so long ones as often as short ones: walks of single letters show no row's cost.
void Walk(const TokenConstraint& grammar, std::mt19937* random, MaskTimes* times) {
  const Model& model = TheModel();
  std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(model.vocabulary->vocab_size())));
  std::vector<int32_t> forced;
  auto constraint = grammar.Clone();
  for (int i = 0; i < 60 && !constraint->IsComplete(); ++i) {
    const absl::Time start = absl::Now();
    forced.clear();
    if (!constraint->AppendForced(100, &forced).ok()) break;
    const absl::Time between = absl::Now();
    if (!constraint->FillMasks({}, absl::MakeSpan(mask)).ok()) break;
    const absl::Time end = absl::Now();
    const double forced_micros = absl::ToDoubleMicroseconds(between - start);
    times->forced_micros += forced_micros;
    times->most_forced_micros = std::max(times->most_forced_micros, forced_micros);
    times->micros.push_back(absl::ToDoubleMicroseconds(end - start));
    int32_t token = -1;
    for (int tries = 0; tries < 100000 && token < 0; ++tries) {
      const auto one = static_cast<int32_t>((*random)() % static_cast<uint64_t>(model.vocabulary->vocab_size()));
      if ((mask[static_cast<size_t>(one / 32)] >> (one % 32) & 1) != 0) token = one;
    }
    for (size_t word = 0; word < mask.size() && token < 0; ++word) {
      if (mask[word] != 0) token = static_cast<int32_t>(word * 32) + __builtin_ctz(mask[word]);
    }
    if (token == model.end_token || !constraint->Accept(token).ok()) break;
  }
}

// One grammar, or all in turn.
void BM_Mask(benchmark::State& state) {
  const size_t index = static_cast<size_t>(state.range(0));
  const bool all = index == std::size(kGrammars);
  std::vector<CompiledGrammar> grammars;
  for (const auto& [name, spec] : absl::MakeSpan(kGrammars).subspan(all ? 0 : index, all ? index : 1)) {
    auto grammar = CompileGrammar(spec, TheModel().vocabulary, {}, {});
    if (!grammar.ok()) return state.SkipWithError(grammar.status().ToString().c_str());
    grammars.push_back(*std::move(grammar));
  }
  std::mt19937 random(5);
  MaskTimes times;
  for (auto _ : state) {
    for (const CompiledGrammar& grammar : grammars) Walk(*grammar.start, &random, &times);
  }
  std::vector<double>& micros = times.micros;
  std::sort(micros.begin(), micros.end());
  state.SetLabel(all ? "all" : kGrammars[index].first);
  state.counters["masks"] = static_cast<double>(micros.size());
  state.counters["median_us"] = micros[micros.size() / 2];
  state.counters["p99_us"] = micros[micros.size() * 99 / 100];
  state.counters["max_us"] = micros.back();
  state.counters["forced_us"] = times.forced_micros / static_cast<double>(micros.size());
  state.counters["most_forced_us"] = times.most_forced_micros;
}
BENCHMARK(BM_Mask)->DenseRange(0, std::size(kGrammars))->Iterations(100)->Unit(benchmark::kMillisecond);

void BM_Clone(benchmark::State& state) {
  const auto& [name, spec] = kGrammars[static_cast<size_t>(state.range(0))];
  const auto grammar = CompileGrammar(spec, TheModel().vocabulary, {}, {});
  for (auto _ : state) benchmark::DoNotOptimize(grammar->start->Clone());
  state.SetLabel(name);
  state.counters["size_kb"] = static_cast<double>(grammar->size_bytes) / 1024;
}
BENCHMARK(BM_Clone)->DenseRange(0, std::size(kGrammars) - 1)->Unit(benchmark::kMicrosecond);

void BM_Compile(benchmark::State& state) {
  const auto& [name, spec] = kGrammars[static_cast<size_t>(state.range(0))];
  for (auto _ : state) benchmark::DoNotOptimize(CompileGrammar(spec, TheModel().vocabulary, {}, {}));
  state.SetLabel(name);
}
BENCHMARK(BM_Compile)->DenseRange(0, std::size(kGrammars) - 1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace berth

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (absl::StartsWith(argv[i], "--tokenizer=")) {
      berth::tokenizer_dir = argv[i] + 12;
      std::rotate(argv + i, argv + i + 1, argv + argc);
      --argc;
      break;
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
