#include "client/load/options.h"

#include "absl/strings/str_cat.h"
#include "client/command.h"

namespace berth::cli {

const char kLoadIntro[] = R"(berth-cli load [flags]

Sends many requests and reports latency, throughput and errors.
Closed loop (--concurrency): always n requests under way; the next is sent when one ends.
Open loop (--rate): requests start at Poisson arrivals, however slow the server is. A request sent
late still counts from its intended start; "send lag" shows how late the harness itself was.

Definitions
  TTFT      first content token - intended start
  ITL       gaps between tokens. The tokens of one message arrive together: k tokens give one gap
            since the message before and k - 1 gaps of zero
  TPOT      (last token - first token) / (n - 1), per request of n > 1 tokens
  E2E       end of the stream - intended start
  goodput   requests per second that end OK within all --limit_* flags; --limit_itl holds for a
            request's largest gap
Latencies are those of requests that ended OK. Rates are over the time from the start to the last
request's end. Percentiles are linear between neighbours.

Exit code: 1 when a request failed (see --allow_errors) or --verify found a fault; 130 after
Ctrl-C, which cancels what is under way and reports what there is.
)";

void LoadOptions::AddTo(FlagSet* flags) {
  server = kDefaultServer;
  flags->AddSection("Load (times such as 30s or 500ms)");
  flags->Add("concurrency", &concurrency, "n", "Closed loop: requests at a time. Default: 1.");
  flags->Add("rate", &rate, "r", "Open loop: Poisson arrivals, r requests a second.");
  flags->Add("requests", &requests, "n", "End after n requests. Default: 100, or no limit with --duration.");
  flags->Add("duration", &duration, "time", "Start no request later than this; wait for those under way.");
  flags->Add("timeout", &timeout, "time", "Deadline of each request. Default: none.");
  flags->Add("seed", &seed, "n", "Of arrivals, lengths and prompts.");
  flags->AddSection("Requests (LENGTHS: fixed:N, uniform:MIN:MAX, or lognormal:MEAN:SIGMA[:MAX])");
  flags->Add("prompt_tokens", &prompt_tokens, "LENGTHS",
             "Length of prompts of random token ids of the model's vocabulary. Default: fixed:128.");
  flags->Add("prompt_file", &prompt_file, "file",
             "Send the lines of this file in turn instead; empty ones are skipped.");
  flags->Add(
      "output_tokens", &output_tokens, "LENGTHS",
      "Length of the outputs, exact: end tokens are ignored. MEAN is the mean length, SIGMA the deviation of its "
      "logarithm.");
  flags->Add("temperature", &temperature, "t", "0: greedy; above: each request has a sampling seed of its own.");
  flags->AddSection("Checks");
  flags->Add("verify", &verify, "",
             "Check each stream: token counts, no token lost or repeated, exactly the tokens asked for, and the same "
             "tokens as when the request was sent alone.");
  flags->Add("verify_prompts", &verify_prompts, "n",
             "With --verify: n requests are sent alone first, then the load repeats them in turn.");
  flags->Add("allow_errors", &allow_errors, "", "Failed requests do not make the exit code 1.");
  flags->Add("limit_ttft", &limits.ttft, "time", "Goodput: the longest time to first token.");
  flags->Add("limit_itl", &limits.itl, "time", "Goodput: the longest gap between tokens.");
  flags->Add("limit_tpot", &limits.tpot, "time", "Goodput: the longest time per output token.");
  flags->Add("limit_e2e", &limits.e2e, "time", "Goodput: the longest request.");
  flags->AddSection("Output");
  flags->Add("json_out", &json_out, "file", "Write the report as JSON too; -: to stdout, the text to stderr.");
  flags->Add("progress", &progress, "", "A progress line on stderr. Default: when stderr is a terminal.");
  AddServerFlag(flags, &server);
}

absl::Status LoadOptions::Validate() const {
  const auto refuse = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  const auto not_positive = [](const std::optional<absl::Duration>& value) {
    return value && *value <= absl::ZeroDuration();
  };
  if (rate && concurrency) return refuse("--rate and --concurrency exclude each other");
  if (!prompt_file.empty() && prompt_tokens) return refuse("--prompt_file and --prompt_tokens exclude each other");
  if (concurrency && *concurrency < 1) return refuse("--concurrency=", *concurrency, ": expected 1 or more");
  if (rate && !(*rate > 0 && *rate <= 1e6)) return refuse("--rate=", *rate, ": expected above 0, at most 1000000");
  if (requests && *requests < 1) return refuse("--requests=", *requests, ": expected 1 or more");
  if (verify_prompts < 1) return refuse("--verify_prompts=", verify_prompts, ": expected 1 or more");
  if (!(temperature >= 0)) return refuse("--temperature=", temperature, ": expected 0 or more");
  if (not_positive(duration)) return refuse("--duration: expected more than 0s");
  if (not_positive(timeout)) return refuse("--timeout: expected more than 0s");
  return absl::OkStatus();
}

}  // namespace berth::cli
