#include "client/load/options.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/command.h"

namespace berth::cli {

const char kLoadIntro[] = R"(berth-cli load [flags]

Sends many requests and reports latency, throughput and errors.
Closed loop (--concurrency): keeps n requests in flight and sends the next one when one ends.
Open loop (--rate): starts requests at Poisson arrivals, however slow the server is. The latency of
a request counts from its intended start, even if it was sent late. "send lag" shows how late the
load test itself was.

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

Exit code: 1 if a request failed (see --allow_errors) or --verify found a fault; 130 after Ctrl-C,
which cancels the requests in flight and reports the others.
)";

void LoadOptions::AddTo(FlagSet* flags) {
  server = kDefaultServer;
  flags->AddGroup("Load (times such as 30s or 500ms)");
  flags->Add("concurrency", &concurrency, AtLeast(1), "Closed loop: number of requests in flight. Default: 1.");
  flags->Add("rate", &rate, "r", "Open loop: Poisson arrivals at r requests per second.");
  flags->Add("requests", &requests, AtLeast(1),
             "Number of requests to send. Default: 100, or no limit with --duration.");
  flags->Add("duration", &duration, "time", "Stop starting requests after this time; wait for those in flight.");
  flags->Add("timeout", &timeout, "time", "Deadline of each request. Default: none.");
  flags->Add("seed", &seed, "n", "Seed of the arrivals, lengths and prompts.");
  flags->AddGroup("Requests (LENGTHS: fixed:N, uniform:MIN:MAX, or lognormal:MEAN:SIGMA[:MAX])");
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
  flags->Add("progress", &progress, "", "Print progress to stderr. Default: if stderr is a terminal.");
  AddServerFlag(flags, &server);
}

absl::Status LoadOptions::Validate() const {
  const auto refuse = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  if (rate && concurrency) return refuse("--rate and --concurrency exclude each other");
  if (!prompt_file.empty() && prompt_tokens) return refuse("--prompt_file and --prompt_tokens exclude each other");
  if (rate && !(*rate > 0 && *rate <= 1e6)) return refuse("--rate: ", *rate, " is not above 0 and at most 1000000");
  for (const auto& [name, time] : {std::pair("--duration: ", duration), std::pair("--timeout: ", timeout)}) {
    if (time && *time <= absl::ZeroDuration()) return refuse(name, absl::FormatDuration(*time), " is not above 0s");
  }
  return absl::OkStatus();
}

}  // namespace berth::cli
