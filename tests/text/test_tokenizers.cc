#include "tests/text/test_tokenizers.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace berth {
namespace {

using nlohmann::json;

constexpr char kSpace[] = "\u2581";
constexpr char kAscii[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789{}[]\":,.-+_/\\<>()|=@!?'";

std::string Spaced(const std::string& text) { return absl::StrReplaceAll(text, {{" ", kSpace}}); }
std::string Unspaced(const std::string& text) { return absl::StrReplaceAll(text, {{kSpace, " "}}); }

std::vector<std::string> Characters() {
  std::vector<std::string> characters = {kSpace, "\u00e9", "\u00e8", "\u65e5"};
  for (char c : std::string(kAscii)) characters.emplace_back(1, c);
  return characters;
}

std::vector<std::string> SplitCharacters(const std::string& text) {
  std::vector<std::string> characters;
  for (char c : text) {
    if ((static_cast<uint8_t>(c) & 0xC0) == 0x80) {
      characters.back() += c;
    } else {
      characters.emplace_back(1, c);
    }
  }
  return characters;
}

// GPT-2's character for each byte: itself if it is printable, else the next one from U+0100 on.
std::vector<std::string> ByteCharacters() {
  std::vector<std::string> characters(256);
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const int code = printable ? byte : next++;
    characters[static_cast<size_t>(byte)] =
        code < 0x80 ? std::string(1, static_cast<char>(code))
                    : std::string{static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
  }
  return characters;
}

// The model's vocabulary and the added tokens, in the order of their ids.
struct Vocabulary {
  json entries = json::object();
  json merges = json::array();
  json added = json::array();
  std::vector<std::string> bytes;

  bool Add(const std::string& entry, const std::string& text) {
    if (entries.contains(entry)) return false;
    entries[entry] = bytes.size();
    bytes.push_back(text);
    return true;
  }

  void AddToken(const std::string& name, bool special, bool in_model) {
    added.push_back({{"id", bytes.size()},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
    if (in_model) entries[name] = bytes.size();
    bytes.push_back(special ? "\xFF" + name : name);
  }

  // `parts` and their beginnings: each is one merge.
  void AddWord(const std::vector<std::string>& parts, const std::vector<std::string>& texts) {
    std::string left;
    std::string text;
    for (size_t i = 0; i < parts.size(); ++i) {
      Add(parts[i], texts[i]);
      text += texts[i];
      if (!left.empty() && Add(left + parts[i], text)) merges.push_back({left, parts[i]});
      left += parts[i];
    }
  }

  void AddByteTokens() {
    for (int b = 0; b < 256; ++b) Add(absl::StrFormat("<0x%02X>", b), std::string(1, static_cast<char>(b)));
  }

  json Bpe(bool byte_fallback) const {
    return {{"type", "BPE"},    {"dropout", nullptr},
            {"vocab", entries}, {"unk_token", byte_fallback ? json("<unk>") : json(nullptr)},
            {"fuse_unk", true}, {"byte_fallback", byte_fallback},
            {"merges", merges}};
  }
};

TestTokenizer Make(const Vocabulary& vocabulary, int32_t end_token, const json& model, const json& normalizer,
                   const json& pre_tokenizer, const json& decoder) {
  TestTokenizer made;
  made.bytes = vocabulary.bytes;
  made.end_token = end_token;
  made.json = json({{"version", "1.0"},
                    {"added_tokens", vocabulary.added},
                    {"normalizer", normalizer},
                    {"pre_tokenizer", pre_tokenizer},
                    {"post_processor", nullptr},
                    {"decoder", decoder},
                    {"model", model}})
                  .dump();
  return made;
}

json Replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

std::vector<std::string> Words() {
  return {" the", " name", "name", "{\"", "\":", "true", " \"", "10", "ing", " a", "  ", "na\u00efve", " \u65e5\u672c"};
}

// As gemma-3's: special tokens, added tokens of text, and some words before the byte tokens; no space before a text.
TestTokenizer GemmaTokenizer() {
  Vocabulary vocabulary;
  for (const char* name : {"<pad>", "<eos>", "<bos>", "<unk>", "<end_of_turn>"}) {
    vocabulary.AddToken(name, /*special=*/true, /*in_model=*/true);
  }
  for (const char* text : {"<unused0>", "\n\n", "<table>", "\u2581\u2581\u2581"}) {
    vocabulary.AddToken(text, /*special=*/false, /*in_model=*/true);
    vocabulary.bytes.back() = Unspaced(text);
  }
  vocabulary.AddByteTokens();
  for (const std::string& character : Characters()) vocabulary.Add(character, Unspaced(character));
  for (const std::string& word : Words()) {
    vocabulary.AddWord(SplitCharacters(Spaced(word)), SplitCharacters(word));
  }
  const json decoders = {Replace(kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  return Make(vocabulary, 1, vocabulary.Bpe(/*byte_fallback=*/true), Replace(" ", kSpace), nullptr,
              {{"type", "Sequence"}, {"decoders", decoders}});
}

}  // namespace

std::string NameOfFamily(const ::testing::TestParamInfo<TestTokenizer>& info) {
  std::string name = info.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !absl::ascii_isalnum(static_cast<uint8_t>(c)); }, '_');
  return name;
}

TestTokenizer SentencePieceTokenizer(const std::vector<std::string>& words, ByteTokens order) {
  Vocabulary vocabulary;
  for (const char* name : {"<unk>", "<s>", "</s>"}) vocabulary.AddToken(name, /*special=*/true, /*in_model=*/true);
  if (order == ByteTokens::kFirst) vocabulary.AddByteTokens();
  for (const std::string& character : Characters()) vocabulary.Add(character, Unspaced(character));
  if (order == ByteTokens::kMiddle) vocabulary.AddByteTokens();
  for (const std::string& word : words) vocabulary.AddWord(SplitCharacters(Spaced(word)), SplitCharacters(word));
  if (order == ByteTokens::kLast) vocabulary.AddByteTokens();
  const json normalizers = json::array({json{{"type", "Prepend"}, {"prepend", kSpace}}, Replace(" ", kSpace)});
  const json decoders = {Replace(kSpace, " "),
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}},
                         {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}};
  return Make(vocabulary, 2, vocabulary.Bpe(/*byte_fallback=*/true),
              {{"type", "Sequence"}, {"normalizers", normalizers}}, nullptr,
              {{"type", "Sequence"}, {"decoders", decoders}});
}

TestTokenizer UnigramTokenizer(const std::vector<std::string>& words) {
  Vocabulary vocabulary;
  json pieces = json::array();
  for (const char* name : {"<pad>", "</s>", "<unk>"}) {
    vocabulary.AddToken(name, /*special=*/true, /*in_model=*/true);
    pieces.push_back({name, 0.0});
  }
  const auto add = [&](const std::string& piece, double score) {
    if (vocabulary.Add(piece, Unspaced(piece))) pieces.push_back({piece, score});
  };
  for (const std::string& character : Characters()) add(character, -8);
  add(absl::StrCat(kSpace, kSpace), -9);
  for (const std::string& word : words) add(Spaced(word), -5);
  const json metaspace = {
      {"type", "Metaspace"}, {"replacement", kSpace}, {"prepend_scheme", "always"}, {"split", true}};
  const json model = {{"type", "Unigram"}, {"unk_id", 2}, {"vocab", pieces}, {"byte_fallback", false}};
  return Make(vocabulary, 1, model, nullptr, metaspace, metaspace);
}

TestTokenizer ByteLevelTokenizer(const std::vector<std::string>& first, const std::vector<std::string>& last,
                                 const std::vector<std::string>& texts) {
  Vocabulary vocabulary;
  for (const std::string& name : first) vocabulary.AddToken(name, /*special=*/true, /*in_model=*/true);
  const std::vector<std::string> characters = ByteCharacters();
  const auto add_bytes = [&](bool printable) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const bool itself = characters[byte] < "\u0100";
      if (itself == printable) vocabulary.Add(characters[byte], std::string(1, static_cast<char>(byte)));
    }
  };
  add_bytes(true);
  add_bytes(false);
  std::vector<std::string> words = Words();
  words.emplace_back(" \u8a9e");  // parts of a character after a space
  for (const std::string& word : words) {
    std::vector<std::string> parts;
    std::vector<std::string> bytes;
    for (char c : word) {
      bytes.emplace_back(1, c);
      parts.push_back(characters[static_cast<uint8_t>(c)]);
    }
    vocabulary.AddWord(parts, bytes);
  }
  for (const std::string& name : last) vocabulary.AddToken(name, /*special=*/true, /*in_model=*/false);
  for (const std::string& text : texts) vocabulary.AddToken(text, /*special=*/false, /*in_model=*/false);
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const int32_t end =
      static_cast<int32_t>(first.empty() ? vocabulary.bytes.size() - last.size() - texts.size() : size_t{1});
  return Make(vocabulary, end, vocabulary.Bpe(/*byte_fallback=*/false), nullptr, byte_level, byte_level);
}

std::vector<TestTokenizer> FamilyTokenizers() {
  std::vector<TestTokenizer> all;
  const auto add = [&](const char* name, TestTokenizer made) {
    made.name = name;
    all.push_back(std::move(made));
  };
  add("llama-2", SentencePieceTokenizer(Words(), ByteTokens::kFirst));
  add("gemma-3", GemmaTokenizer());
  add("bytes after the characters", SentencePieceTokenizer(Words(), ByteTokens::kMiddle));
  add("bytes last", SentencePieceTokenizer(Words(), ByteTokens::kLast));
  add("t5", UnigramTokenizer(Words()));
  add("gpt-2", ByteLevelTokenizer({}, {"<|endoftext|>"}, {}));
  add("llama-3.1", ByteLevelTokenizer({}, {"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"}, {}));
  add("qwen-3", ByteLevelTokenizer({}, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, {"<tool_call>", "<think>"}));
  add("deepseek-v3",
      ByteLevelTokenizer({"<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"}, {},
                         {"<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "  "}));
  add("gpt-oss", ByteLevelTokenizer({}, {"<|startoftext|>", "<|return|>", "<|channel|>"}, {"<|reserved_1|>"}));
  return all;
}

}  // namespace berth
