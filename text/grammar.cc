#include "text/grammar.h"

#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "text/abi_call.h"

namespace berth {
namespace {

// The message as it is: the caller knows which request it is of.
absl::Status TakeStatus(absl::StatusCode code, int32_t result, BerthBytes error) {
  if (result == 0) return absl::OkStatus();
  return absl::Status(code, TakeString(error));
}

const uint32_t* IdsOf(absl::Span<const int32_t> tokens) { return reinterpret_cast<const uint32_t*>(tokens.data()); }

BerthView ViewOf(const std::string& text) { return {BytesOf(text), text.size()}; }

class GrammarConstraint : public TokenConstraint {
 public:
  // `grammar`: owned; null if `status` is an error, which every call then returns.
  GrammarConstraint(std::shared_ptr<const GrammarVocabulary> vocabulary, BerthGrammar* grammar, absl::Status status)
      : vocabulary_(std::move(vocabulary)), grammar_(grammar), status_(std::move(status)) {}
  ~GrammarConstraint() override {
    if (grammar_ != nullptr) berth_grammar_free(grammar_);
  }

  std::unique_ptr<TokenConstraint> Clone() const override {
    BerthGrammar* copy = nullptr;
    BerthBytes error{};
    absl::Status status = status_;
    if (status.ok()) {
      const int32_t result = berth_grammar_clone(grammar_, &copy, &error);
      status = TakeStatus(absl::StatusCode::kInternal, result, error);
    }
    return std::make_unique<GrammarConstraint>(vocabulary_, copy, std::move(status));
  }

  absl::Status FillMasks(absl::Span<const int32_t> drafts, absl::Span<uint32_t> masks) override {
    if (!status_.ok()) return status_;
    const size_t num_words = (drafts.size() + 1) * static_cast<size_t>(MaskWords(vocabulary_->vocab_size()));
    if (masks.size() != num_words) return absl::InternalError(absl::StrCat(masks.size(), " words of masks"));
    BerthBytes error{};
    const int32_t result =
        berth_grammar_fill(grammar_, IdsOf(drafts), drafts.size(), masks.data(), masks.size(), &error);
    return RowStatus(result, error);
  }

  absl::Status Accept(int32_t token) override {
    if (!status_.ok()) return status_;
    BerthBytes error{};
    const int32_t result = berth_grammar_accept(grammar_, static_cast<uint32_t>(token), &error);
    return RowStatus(result, error);
  }

  int64_t CountAllowed(absl::Span<const int32_t> tokens) override {
    if (!status_.ok()) return 0;
    int64_t count = 0;
    BerthBytes error{};
    const int32_t result = berth_grammar_count_allowed(grammar_, IdsOf(tokens), tokens.size(), &count, &error);
    return RowStatus(result, error).ok() ? count : 0;
  }

  absl::Status AppendForced(int64_t limit, std::vector<int32_t>* tokens) override {
    if (!status_.ok()) return status_;
    BerthIds ids{};
    BerthBytes error{};
    const int32_t result = berth_grammar_forced(grammar_, limit, &ids, &error);
    if (absl::Status status = RowStatus(result, error); !status.ok()) return status;
    tokens->insert(tokens->end(), ids.data, ids.data + ids.len);
    berth_ids_free(ids);
    return absl::OkStatus();
  }

  bool IsComplete() override { return status_.ok() && berth_grammar_is_complete(grammar_); }

 private:
  static absl::Status RowStatus(int32_t result, BerthBytes error) {
    return TakeStatus(absl::StatusCode::kInvalidArgument, result, error);
  }

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  BerthGrammar* grammar_;
  absl::Status status_;
};

absl::Status CheckSize(const GrammarSpec& spec, const GrammarLimits& limits) {
  size_t size = spec.text.size() + spec.begin_text.size();
  for (const std::string& choice : spec.choices) size += choice.size();
  if (static_cast<int64_t>(size) <= limits.max_text_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("structure: ", size, " bytes are over ", limits.max_text_bytes));
}

BerthGrammarSpec AbiSpec(const GrammarSpec& spec, const GrammarLimits& limits, absl::Span<const BerthView> choices) {
  return {.kind = static_cast<int32_t>(spec.kind),
          .whitespace = static_cast<int32_t>(spec.whitespace),
          .begin_token = spec.begin_token,
          .own_text = spec.own_text,
          .refuse_unknown = spec.refuse_unknown,
          .any_order = spec.any_order,
          .text = ViewOf(spec.text),
          .begin_text = ViewOf(spec.begin_text),
          .choices = choices.data(),
          .num_choices = choices.size(),
          .max_grammar_size = static_cast<uint64_t>(limits.max_grammar_size),
          .max_lexer_states = static_cast<uint64_t>(limits.max_lexer_states),
          .initial_lexer_fuel = static_cast<uint64_t>(limits.initial_lexer_fuel),
          .step_lexer_fuel = static_cast<uint64_t>(limits.step_lexer_fuel),
          .step_max_items = static_cast<uint64_t>(limits.step_max_items),
          .max_items_in_row = static_cast<uint64_t>(limits.max_items_in_row)};
}

}  // namespace

absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> GrammarVocabulary::Create(const Tokenizer* tokenizer,
                                                                                   int64_t vocab_size,
                                                                                   absl::Span<const int32_t> end_tokens,
                                                                                   int64_t mask_bytes) {
  BerthVocabulary* vocabulary = nullptr;
  BerthBytes error{};
  const int32_t result = berth_vocabulary_create(tokenizer->get(), vocab_size, IdsOf(end_tokens), end_tokens.size(),
                                                 static_cast<size_t>(mask_bytes), &vocabulary, &error);
  if (absl::Status status = CallStatus(result, error, "tokenizer"); !status.ok()) return status;
  return absl::WrapUnique(new GrammarVocabulary(vocabulary, vocab_size));
}

GrammarVocabulary::GrammarVocabulary(BerthVocabulary* vocabulary, int64_t vocab_size)
    : vocabulary_(vocabulary), vocab_size_(vocab_size) {}

GrammarVocabulary::~GrammarVocabulary() { berth_vocabulary_free(vocabulary_); }

std::string GrammarVocabulary::Bytes(int32_t token) const {
  BerthBytes bytes{};
  BerthBytes error{};
  const int32_t result = berth_vocabulary_word(vocabulary_, static_cast<uint32_t>(token), &bytes, &error);
  return CallStatus(result, error, "token").ok() ? TakeString(bytes) : "";
}

absl::StatusOr<CompiledGrammar> CompileGrammar(const GrammarSpec& spec,
                                               std::shared_ptr<const GrammarVocabulary> vocabulary,
                                               const GrammarLimits& limits, std::stop_token stop, CompileWork* work) {
  if (absl::Status status = CheckSize(spec, limits); !status.ok()) return status;
  std::vector<BerthView> choices;
  for (const std::string& choice : spec.choices) choices.push_back(ViewOf(choice));
  const BerthGrammarSpec abi_spec = AbiSpec(spec, limits, choices);

  const std::unique_ptr<BerthCancel, decltype(&berth_cancel_free)> cancel(berth_cancel_create(), &berth_cancel_free);
  const std::stop_callback on_stop(stop, [&cancel] { berth_cancel_request(cancel.get()); });
  BerthGrammar* grammar = nullptr;
  BerthBytes warnings{};
  BerthBytes error{};
  const int32_t result = berth_grammar_compile(vocabulary->get(), &abi_spec, cancel.get(), &grammar, &warnings, &error);
  if (work != nullptr) berth_cancel_work(cancel.get(), &work->steps, &work->longest);
  if (absl::Status status = TakeStatus(absl::StatusCode::kInvalidArgument, result, error); !status.ok()) {
    return stop.stop_requested() ? absl::CancelledError("compiling the grammar was cancelled") : status;
  }
  CompiledGrammar compiled;
  compiled.warnings = absl::StrSplit(TakeString(warnings), '\n', absl::SkipEmpty());
  compiled.size_bytes = static_cast<int64_t>(berth_grammar_size_bytes(grammar));
  compiled.start = std::make_shared<GrammarConstraint>(std::move(vocabulary), grammar, absl::OkStatus());
  return compiled;
}

}  // namespace berth
