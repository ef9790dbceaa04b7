#include "client/request_flags.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace berth::cli {

void RequestFlags::AddTo(FlagSet* flags) {
  flags->AddSection("Sampling (absent: the model's or the server's default)");
  flags->Add("temperature", &temperature, "t", "0: always the likeliest token.");
  flags->Add("top_k", &top_k, "k", "Sample among the k likeliest tokens; 0: all.");
  flags->Add("top_p", &top_p, "p", "Sample among the likeliest tokens that add up to p.");
  flags->Add("min_p", &min_p, "p", "Leave out tokens less likely than p times the likeliest.");
  flags->Add("repetition_penalty", &repetition_penalty, "x", "Above 1: tokens seen before become less likely.");
  flags->Add("presence_penalty", &presence_penalty, "x", "Taken once from the logit of each token generated before.");
  flags->Add("frequency_penalty", &frequency_penalty, "x", "Taken from it once per occurrence.");
  flags->Add("logit_bias", &logit_bias, "id:bias", "Added to that token's logit. Repeatable.");
  flags->Add("seed", &seed, "n", "The same seed, prompt and parameters give the same tokens.");
  flags->AddSection("Stopping");
  flags->Add("max_tokens", &max_tokens, "n", "The most tokens to generate.");
  flags->Add("min_tokens", &min_tokens, "n", "No end token before this many.");
  flags->Add("stop", &stop, "text", "End the text before this string. Repeatable.");
  flags->Add("stop_token_ids", &stop_token_ids, "id,...", "End after one of these tokens. Repeatable.");
  flags->Add("ignore_eos", &ignore_eos, "", "Go on past the model's own end tokens.");
  flags->Add("include_stop", &include_stop, "", "Keep the stop string in the text.");
  flags->AddSection("Output");
  flags->Add("keep_special_tokens", &keep_special_tokens, "", "Show special tokens in the text.");
}

absl::Status RequestFlags::FillLists(v1::GenerateRequest* request) const {
  for (const std::string& entry : logit_bias) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(entry, absl::MaxSplits(':', 1));
    int32_t id = 0;
    float bias = 0;
    if (!absl::SimpleAtoi(parts.first, &id) || !absl::SimpleAtof(parts.second, &bias)) {
      return absl::InvalidArgumentError(absl::StrCat("--logit_bias=", entry, ": expected ID:BIAS such as 42:-1.5"));
    }
    (*request->mutable_sampling()->mutable_logit_bias())[id] = bias;
  }
  for (const std::string& list : stop_token_ids) {
    for (absl::string_view text : absl::StrSplit(list, ',')) {
      int32_t id = 0;
      if (!absl::SimpleAtoi(text, &id)) {
        return absl::InvalidArgumentError(absl::StrCat("--stop_token_ids=", list, ": '", text, "' is no token id"));
      }
      request->mutable_stopping()->add_stop_token_ids(id);
    }
  }
  return absl::OkStatus();
}

absl::Status RequestFlags::Fill(v1::GenerateRequest* request) const {
  v1::Sampling* sampling = request->mutable_sampling();
  if (temperature) sampling->set_temperature(*temperature);
  if (top_k) sampling->set_top_k(*top_k);
  if (top_p) sampling->set_top_p(*top_p);
  if (min_p) sampling->set_min_p(*min_p);
  if (repetition_penalty) sampling->set_repetition_penalty(*repetition_penalty);
  if (presence_penalty) sampling->set_presence_penalty(*presence_penalty);
  if (frequency_penalty) sampling->set_frequency_penalty(*frequency_penalty);
  if (seed) sampling->set_seed(*seed);
  v1::Stopping* stopping = request->mutable_stopping();
  if (max_tokens) stopping->set_max_tokens(*max_tokens);
  if (min_tokens) stopping->set_min_tokens(*min_tokens);
  stopping->mutable_stop()->Add(stop.begin(), stop.end());
  if (ignore_eos) stopping->set_ignore_eos(true);
  if (include_stop) stopping->set_include_stop(true);
  if (keep_special_tokens) request->set_skip_special_tokens(false);
  return FillLists(request);
}

}  // namespace berth::cli
