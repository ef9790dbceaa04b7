#include "client/load/options.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace berth::cli {
namespace {

std::vector<std::pair<std::string, History>> HistoryChoices() {
  std::vector<std::pair<std::string, History>> choices;
  for (const auto& [name, history] : kHistoryNames) choices.emplace_back(name, history);
  return choices;
}

}  // namespace

const char kLoadIntro[] = R"(berth-cli load [flags]

Sends many requests and reports latency, throughput and errors.
Closed loop (--concurrency): keeps n requests in flight and sends the next one when one ends.
Open loop (--rate, --trace): starts requests at Poisson arrivals, or as they were recorded, however
slow the server is. The latency of a request counts from its intended start, even if it was sent
late. "send lag" shows how late the load test itself was.
With --turns, a request begins a conversation. Each later turn starts when the one before ends.

Definitions
  TTFT      first content token - intended start
  ITL       gaps between tokens. The tokens of one message arrive together: k tokens give one gap
            since the previous message and k - 1 gaps of zero
  TPOT      (last token - first token) / (n - 1), per request of n > 1 tokens
  E2E       end of the stream - intended start
  goodput   requests per second that end OK within all --limit_* flags; --limit_itl applies to the
            largest gap of a request
Latencies cover requests that ended OK. Rates cover the time from the start to the end of the last
request. Percentiles are interpolated linearly.

Exit code: 1 if a request failed (see --allow_errors), --verify found a fault, or --find_capacity
found no limit; 130 after Ctrl-C, which cancels the requests in flight and reports the others.
)";

void LoadOptions::AddTo(FlagSet* flags) {
  flags->AddGroup("Load (times such as 30s or 500ms)");
  flags->Add("concurrency", &concurrency, AtLeast(1), "Closed loop: number of requests in flight. Default: 1.");
  flags->Add("rate", &rate, "r", "Open loop: Poisson arrivals at r requests (with --turns: conversations) per second.");
  flags->Add("trace", &trace, "file",
             "Open loop: replay the arrivals, lengths and shared prefixes of this file, a JSON object a line. See "
             "docs/loadtest.md.");
  flags->Add("trace_speed", &trace_speed, "r", "Divide the time between the arrivals of --trace by this.");
  flags->Add(
      "find_capacity", &find_capacity, "",
      "Search for the highest rate at which 99 % of the requests are within the --limit_* flags, from --rate on. "
      "Each probe lasts --duration, or ends after --requests; with few requests, each rate may hold, and there is no "
      "limit to find. The report is that of the last rate that held.");
  flags->Add("warmup", &warmup, AtLeast(0), "Requests to send before the measurement, with other prompts.");
  flags->Add("requests", &requests, AtLeast(1),
             "Number of requests to send. Default: 100, or no limit with --duration.");
  flags->Add("duration", &duration, "time", "Stop starting requests after this time; wait for those in flight.");
  flags->Add("timeout", &timeout, "time", "Deadline of each request. Default: none.");
  flags->Add("seed", &seed, "n", "Seed of the arrivals, lengths and prompts.");
  flags->AddGroup(
      "Requests (LENGTHS: fixed:N, uniform:MIN:MAX, lognormal:MEAN:SIGMA[:MAX], or W*LENGTHS+W*LENGTHS with weights)");
  flags->Add("prompt_tokens", &prompt_tokens, "LENGTHS",
             "Length of the prompts, which are random token ids. Default: fixed:128.");
  flags->Add("prompt_file", &prompt_file, "file",
             "Send the non-empty lines of this file in turn instead of random prompts.");
  flags->Add("output_tokens", &output_tokens, "LENGTHS",
             "Exact length of the outputs; end tokens are ignored. MEAN is the mean length, SIGMA the standard "
             "deviation of its "
             "logarithm.");
  flags->Add("temperature", &temperature, AtLeast(0),
             "Sampling temperature. 0: greedy. Above 0: each request has its own seed.");
  flags->Add("prefix_tokens", &prefix_tokens, AtLeast(0),
             "Begin each prompt with this many tokens that it shares with others. 0: none.");
  flags->Add("num_prefixes", &num_prefixes, AtLeast(1), "Number of different beginnings of --prefix_tokens.");
  flags->Add("turns", &turns, Between(1, 100000), "Requests of a conversation.");
  flags->Add("turn_tokens", &turn_tokens, "LENGTHS", "New tokens of each later turn.");
  flags->Add(
      "history", &history, OneOf(HistoryChoices()),
      "Prompt of a later turn. With grow, all prompts and outputs so far. With front, eight tokens near the "
      "beginning change too. With strip, the first half of each output is left out. With side, an unrelated request "
      "comes between two turns.");
  flags->AddGroup("Checks");
  flags->Add("verify", &verify, "",
             "Check each stream: token counts, no token lost or repeated, exactly as many tokens as requested, and the "
             "same tokens as when the request was sent alone.");
  flags->Add("verify_prompts", &verify_prompts, AtLeast(1),
             "With --verify: first send n requests alone, then repeat them in turn as the load.");
  flags->Add("allow_errors", &allow_errors, "", "Exit with 0 even if requests failed.");
  flags->Add("limit_ttft", &limits.ttft, "time", "Goodput: maximum time to first token.");
  flags->Add("limit_itl", &limits.itl, "time", "Goodput: maximum gap between tokens.");
  flags->Add("limit_tpot", &limits.tpot, "time", "Goodput: maximum time per output token.");
  flags->Add("limit_e2e", &limits.e2e, "time", "Goodput: maximum duration of a request.");
  flags->AddGroup("Output");
  flags->Add("json_out", &json_out, "file", "Also write the report as JSON. -: JSON to stdout, text to stderr.");
  flags->Add("html_out", &html_out, "file", "Also write the report as a page with plots.");
  flags->Add("vllm_json_out", &vllm_json_out, "file", "Also write the report with the keys of vllm bench serve.");
  flags->Add("progress", &progress, "", "Print progress to stderr. Default: if stderr is a terminal.");
  connection.AddTo(flags);
}

std::string LoadOptions::DescribeConversations() const {
  if (turns == 1) return "";
  const auto* const named = std::find_if(std::begin(kHistoryNames), std::end(kHistoryNames),
                                         [&](const HistoryName& each) { return each.history == history; });
  return absl::StrCat(turns, " turns of ", turn_tokens.text(), " new tokens, ", named->name);
}

absl::Status LoadOptions::Validate() const {
  const auto refuse = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  const std::pair<const char*, bool> given[] = {{"--rate", rate.has_value()},
                                                {"--concurrency", concurrency.has_value()},
                                                {"--trace", !trace.empty()},
                                                {"--prompt_file", !prompt_file.empty()},
                                                {"--turns", turns > 1},
                                                {"--prefix_tokens", prefix_tokens > 0},
                                                {"--verify", verify},
                                                {"--prompt_tokens", prompt_tokens.has_value()},
                                                {"--find_capacity", find_capacity}};
  const auto is_given = [&](absl::string_view name) {
    return std::any_of(std::begin(given), std::end(given),
                       [&](const auto& flag) { return flag.second && flag.first == name; });
  };
  constexpr std::pair<const char*, const char*> kExclusive[] = {{"--rate", "--concurrency"},
                                                                {"--rate", "--trace"},
                                                                {"--concurrency", "--trace"},
                                                                {"--prompt_file", "--prompt_tokens"},
                                                                {"--prompt_file", "--trace"},
                                                                {"--prompt_tokens", "--trace"},
                                                                {"--prompt_file", "--turns"},
                                                                {"--prompt_file", "--prefix_tokens"},
                                                                {"--trace", "--turns"},
                                                                {"--trace", "--prefix_tokens"},
                                                                {"--verify", "--turns"},
                                                                {"--verify", "--trace"},
                                                                {"--find_capacity", "--concurrency"},
                                                                {"--find_capacity", "--trace"},
                                                                {"--find_capacity", "--verify"}};
  for (const auto& [one, other] : kExclusive) {
    if (is_given(one) && is_given(other)) return refuse(one, " and ", other, " exclude each other");
  }
  if (rate && !(*rate > 0 && *rate <= 1e6)) return refuse("--rate: ", *rate, " is not above 0 and at most 1000000");
  if (!(trace_speed > 0 && trace_speed <= 1e6)) {
    return refuse("--trace_speed: ", trace_speed, " is not above 0 and at most 1000000");
  }
  if (find_capacity && !limits.any()) return refuse("--find_capacity requires a --limit_* flag");
  if (find_capacity && !duration) return refuse("--find_capacity requires --duration, the time of each probe");
  for (const auto& [name, time] : {std::pair("--duration: ", duration), std::pair("--timeout: ", timeout)}) {
    if (time && *time <= absl::ZeroDuration()) return refuse(name, absl::FormatDuration(*time), " is not above 0s");
  }
  return absl::OkStatus();
}

}  // namespace berth::cli
