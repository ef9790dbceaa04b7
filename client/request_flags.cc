#include "client/request_flags.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace berth::cli {

void RequestFlags::AddTo(FlagSet* flags) {
  flags->AddGroup("Sampling (default: the model's or the server's)");
  flags->Add("temperature", &temperature, "t", "Divide the logits by t. 0: always choose the most likely token.");
  flags->Add("top_k", &top_k, "k", "Sample from the k most likely tokens. 0: from all.");
  flags->Add("top_p", &top_p, "p", "Sample from the most likely tokens whose probabilities add up to p.");
  flags->Add("min_p", &min_p, "p", "Exclude tokens less likely than p times the most likely one.");
  flags->Add("repetition_penalty", &repetition_penalty, "x",
             "Penalty on tokens that occurred before. Above 1: less likely. 1: none.");
  flags->Add("presence_penalty", &presence_penalty, "x", "Subtract x from the logit of each token generated before.");
  flags->Add("frequency_penalty", &frequency_penalty, "x", "Subtract x from that logit once per occurrence.");
  flags->Add("logit_bias", &logit_bias, "id:bias", "Add a bias to the logit of a token. May be repeated.");
  flags->Add("seed", &seed, "n", "Seed of the sampler. The same seed, prompt and parameters give the same tokens.");
  flags->AddGroup("Stopping");
  flags->Add("max_tokens", &max_tokens, "n", "Maximum number of tokens to generate.");
  flags->Add("min_tokens", &min_tokens, "n", "Minimum number of tokens before an end token.");
  flags->Add("stop", &stop, "text", "End the text before this string. May be repeated.");
  flags->Add("stop_token_ids", &stop_token_ids, "id,...", "End after one of these tokens. May be repeated.");
  flags->Add("ignore_eos", &ignore_eos, "", "Continue past the model's end tokens.");
  flags->Add("include_stop", &include_stop, "", "Include the stop string in the text.");
  flags->AddGroup("Output");
  flags->Add("keep_special_tokens", &keep_special_tokens, "", "Show special tokens in the text.");
}

absl::Status RequestFlags::FillLists(v1::GenerateRequest* request) const {
  for (const std::string& entry : logit_bias) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(entry, absl::MaxSplits(':', 1));
    int32_t id = 0;
    float bias = 0;
    if (!absl::SimpleAtoi(parts.first, &id) || !absl::SimpleAtof(parts.second, &bias)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--logit_bias: ", entry, " is not ID:BIAS; write for example 42:-1.5"));
    }
    (*request->mutable_sampling()->mutable_logit_bias())[id] = bias;
  }
  for (const std::string& list : stop_token_ids) {
    for (absl::string_view text : absl::StrSplit(list, ',')) {
      int32_t id = 0;
      if (!absl::SimpleAtoi(text, &id)) {
        return absl::InvalidArgumentError(absl::StrCat("--stop_token_ids: ", text, " is not a token id"));
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
