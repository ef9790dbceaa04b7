#include "server/delivery/output_assembler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/time/time.h"

namespace berth {
namespace {

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
    default:
      return v1::FINISH_REASON_UNSPECIFIED;
  }
}

}  // namespace

OutputAssembler::OutputAssembler(const TextCodec* codec, OutputOptions options, int64_t num_prompt_tokens)
    : codec_(codec),
      logprobs_(options.logprobs),
      include_stop_(options.text.include_stop),
      skip_special_tokens_(options.text.skip_special_tokens),
      at_text_start_(options.text.context.empty()),
      num_prompt_tokens_(num_prompt_tokens),
      skip_tokens_(options.skip_tokens) {
  text_ = codec->NewStream(std::move(options.text));
}

bool OutputAssembler::AddPiece(TextPiece piece, v1::GenerateResponse* message) {
  message->mutable_text()->append(piece.text);
  if (!piece.stopped) return false;
  message->set_finish_reason(v1::FINISH_REASON_STOP);
  message->set_stop_string(std::move(piece.stop_string));
  return true;
}

void OutputAssembler::WriteLogprobs(const TokenLogprob& own, absl::Span<const TokenLogprob> likeliest, bool first,
                                    v1::TokenLogprobs* out) const {
  const auto set = [&](const TokenLogprob& token, auto* entry) {
    TokenText text = codec_->TextOf(token.token, first);
    entry->set_token_id(token.token);
    entry->set_logprob(token.logprob);
    entry->set_text(std::move(text.text));
    if (!text.bytes.empty()) entry->set_bytes(std::move(text.bytes));
  };
  set(own, out);
  for (const TokenLogprob& likely : likeliest) {
    if (std::isnan(likely.logprob)) continue;  // fewer tokens are possible
    set(likely, out->add_top());
  }
}

void OutputAssembler::AddPromptLogprobs(const PromptLogprobs& logprobs, v1::GenerateResponse* message) const {
  for (absl::Span<const TokenLogprob> left = logprobs.entries; !left.empty();) {
    const absl::Span<const TokenLogprob> entries = left.first(logprobs.entries_per_token);
    WriteLogprobs(entries[0], entries.subspan(1), /*first=*/false, message->add_prompt_logprobs());
    left.remove_prefix(entries.size());
  }
}

void OutputAssembler::FillUsage(v1::Usage* usage) const {
  usage->set_prompt_tokens(static_cast<uint32_t>(num_prompt_tokens_));
  usage->set_completion_tokens(static_cast<uint32_t>(num_tokens_));
  usage->set_cached_tokens(static_cast<uint32_t>(num_cached_tokens_));
}

absl::StatusOr<TextPiece> OutputAssembler::AddText(const TokenEvent& event) {
  // The text ends before the token that ends the output, as before a stop string.
  if (event.stop_token >= 0 && !include_stop_) return TextPiece();
  return text_->Add(event.token);
}

absl::StatusOr<bool> OutputAssembler::AddToken(const TokenEvent& event, v1::GenerateResponse* message) {
  absl::StatusOr<TextPiece> piece = AddText(event);
  if (!piece.ok()) return piece.status();
  ++num_tokens_;
  message->add_token_ids(event.token);
  if (logprobs_) {
    WriteLogprobs({.token = event.token, .logprob = event.logprob}, event.top, at_text_start_, message->add_logprobs());
  }
  at_text_start_ = at_text_start_ && !codec_->Reads(event.token, skip_special_tokens_);
  AddPromptLogprobs(event.prompt_logprobs, message);
  FillUsage(message->mutable_usage());
  return AddPiece(*std::move(piece), message);
}

absl::Status OutputAssembler::Finish(FinishReason reason, int32_t stop_token, v1::GenerateResponse* message) {
  absl::StatusOr<TextPiece> piece = text_->Flush();
  if (!piece.ok()) return piece.status();
  FillUsage(message->mutable_usage());
  if (AddPiece(*std::move(piece), message)) return absl::OkStatus();
  message->set_finish_reason(ToProto(reason));
  if (reason == FinishReason::kStop && stop_token >= 0) message->set_stop_token_id(stop_token);
  return absl::OkStatus();
}

// As torch.nn.functional.normalize does: a vector of zeros stays as it is.
std::vector<float> MakeEmbedding(const TokenEvent& event, const OutputOptions& options) {
  constexpr double kSmallestNorm = 1e-12;
  std::vector<float> out = event.embedding;
  if (!options.normalize) return out;
  double squares = 0;
  for (const float x : out) squares += static_cast<double>(x) * x;
  const double norm = std::max(std::sqrt(squares), kSmallestNorm);
  for (float& x : out) x = static_cast<float>(x / norm);
  return out;
}

v1::Timings MakeTimings(const RequestTimes& times) {
  const auto seconds = [](absl::Time from, absl::Time to) {
    if (from == absl::InfinitePast() || to == absl::InfinitePast()) return 0.0;
    return std::max(0.0, absl::ToDoubleSeconds(to - from));
  };
  v1::Timings out;
  const bool scheduled = times.first_scheduled != absl::InfinitePast();
  out.set_queue_seconds(seconds(times.arrival, scheduled ? times.first_scheduled : times.finished));
  out.set_prefill_seconds(seconds(times.first_scheduled, times.first_token));
  out.set_decode_seconds(seconds(times.first_token, times.finished));
  out.set_preemptions(static_cast<uint32_t>(times.num_preemptions));
  return out;
}

}  // namespace berth
