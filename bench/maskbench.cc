// Walks the instances of JSON schemas through their grammars. structure_bench.py runs it, and sums up what it prints: a
// line of JSON for each schema.
//
//     maskbench --tokenizer=FOLDER [--any_order] FILE...
//
// Each file is as MaskBench has them: {"schema": SCHEMA, "tests": [{"valid": BOOL, "data": VALUE}...]}. A valid
// instance must be accepted token by token, and may end there. An invalid one must be refused before its end. Times are
// CPU times.
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace berth {
namespace {

using Json = nlohmann::ordered_json;

// The CPU time of all threads of this process.
double CpuMicroseconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

class Bench {
 public:
  Bench(const std::string& tokenizer_dir, bool any_order) : any_order_(any_order) {
    tokenizer_ = Take(Tokenizer::Load(tokenizer_dir));
    for (const char* name : {"</s>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<eos>"}) {
      if (end_token_ < 0) end_token_ = tokenizer_->TokenId(name);
    }
    if (end_token_ < 0) {
      std::cerr << tokenizer_dir << ": no token is one that ends a text\n";
      std::exit(1);
    }
    vocabulary_ = Take(GrammarVocabulary::Create(tokenizer_.get(), tokenizer_->vocab_size(), {end_token_}));
    mask_.resize(static_cast<size_t>(MaskWords(vocabulary_->vocab_size())));
  }

  Json Run(const std::string& path) {
    std::ifstream file(path);
    const Json in = Json::parse(file);
    Json out = {{"file", path.substr(path.rfind('/') + 1)}};
    const double start = CpuMicroseconds();
    const auto grammar =
        CompileGrammar({.kind = GrammarSpec::Kind::kJsonSchema, .text = in["schema"].dump(), .any_order = any_order_},
                       vocabulary_, {}, {});
    out["compile_us"] = static_cast<int64_t>(CpuMicroseconds() - start);
    if (!grammar.ok()) {
      out["refused"] = std::string(grammar.status().message());
      return out;
    }
    if (!grammar->warnings.empty()) out["warnings"] = grammar->warnings;
    masks_us_ = Json::array();
    Json wrong = Json::array();
    for (const Json& test : in["tests"]) {
      const std::string text = Spaced(test["data"]);
      const std::string refusal = Walk(*grammar->start, text);
      if (test["valid"].get<bool>() == refusal.empty()) continue;
      wrong.push_back({{"valid", test["valid"]}, {"text", text.substr(0, 1000)}, {"refusal", refusal}});
    }
    out["wrong"] = wrong;
    out["masks_us"] = masks_us_;
    return out;
  }

 private:
  template <typename T>
  static T Take(absl::StatusOr<T> value) {
    if (value.ok()) return *std::move(value);
    std::cerr << value.status() << "\n";
    std::exit(1);
  }

  // As Python's json.dumps writes it.
  static std::string Spaced(const Json& value) {
    std::string out;
    if (value.is_object()) {
      for (const auto& [key, item] : value.items()) {
        out += (out.empty() ? "" : ", ") + Json(key).dump() + ": " + Spaced(item);
      }
      return "{" + out + "}";
    }
    if (value.is_array()) {
      for (const Json& item : value) out += (out.empty() ? "" : ", ") + Spaced(item);
      return "[" + out + "]";
    }
    return value.dump();
  }

  bool IsAllowed(int32_t token) const { return (mask_[static_cast<size_t>(token / 32)] >> (token % 32) & 1) != 0; }

  // "" if the text is accepted as a whole; else where it is not.
  std::string Walk(const TokenConstraint& start, const std::string& text) {
    const std::unique_ptr<TokenConstraint> place = start.Clone();
    std::vector<int32_t> tokens = Take(tokenizer_->Encode(text, /*add_special_tokens=*/false));
    tokens.push_back(end_token_);
    std::string before;
    for (const int32_t token : tokens) {
      const double begin = CpuMicroseconds();
      if (absl::Status s = place->FillMasks({}, absl::MakeSpan(mask_)); !s.ok()) return std::string(s.message());
      masks_us_.push_back(CpuMicroseconds() - begin);
      if (!IsAllowed(token)) {
        return token == end_token_ ? "is not complete at its end"
                                   : "after " + before.substr(before.size() < 60 ? 0 : before.size() - 60);
      }
      if (token == end_token_) break;
      if (absl::Status s = place->Accept(token); !s.ok()) return std::string(s.message());
      before += vocabulary_->Bytes(token);
    }
    return "";
  }

  const bool any_order_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  int32_t end_token_ = -1;
  std::vector<uint32_t> mask_;
  Json masks_us_;
};

}  // namespace
}  // namespace berth

int main(int argc, char** argv) {
  std::string tokenizer;
  bool any_order = false;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--tokenizer=")) {
      tokenizer = std::string(argument);
    } else if (argument == "--any_order") {
      any_order = true;
    } else {
      files.emplace_back(argument);
    }
  }
  if (tokenizer.empty() || files.empty()) {
    std::cerr << "usage: maskbench --tokenizer=FOLDER [--any_order] FILE...\n";
    return 2;
  }
  berth::Bench bench(tokenizer, any_order);
  for (const std::string& file : files) {
    const auto replace = berth::Json::error_handler_t::replace;
    std::cout << bench.Run(file).dump(-1, ' ', false, replace) << std::endl;
  }
}
