"""The comparison as Markdown, and its place in docs/performance.md."""

import os
import statistics

from machine import ROOT

DOCUMENT = os.path.join(ROOT, "docs/performance.md")
BEGIN = "<!-- {}: made by ./dev bench peers --write; what is between these lines is replaced. -->"
PEERS = ("llama.cpp", "OpenVINO", "vLLM", "transformers")
ENGINES = ("Berth", *PEERS)
QUIET_CORES = 0.1  # that others keep busy without being worth a word
END = "<!-- End of {}. -->"


def number(value):
    return "" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def share(value):
    return "" if value is None else f"{value:.0%}"


def ratio(values):
    """Median of the pairs' ratios, and their range."""
    if not values:
        return ""
    return f"**{statistics.median(values):.2f}** ({min(values):.2f}-{max(values):.2f}, {len(values)})"


def cell(row, engine):
    return number(row.median(engine)) or row.notes.get(engine, "")


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(value).replace("|", "/") for value in row) + " |" for row in rows])


def bandwidths(rows):
    read = [bandwidth / 1e9 for row in rows for bandwidth in row.bandwidths]
    return f"{statistics.median(read):.0f} GB/s ({min(read):.0f}-{max(read):.0f})" if read else ""


def best_ratio(row):
    """Median of Berth over its best peer; infinite without one."""
    peer = row.best_peer("Berth")
    return statistics.median(row.ratios("Berth", peer)) if peer else float("inf")


def rates(rows):
    """The weakest row first."""
    lines = []
    for row in sorted(rows, key=best_ratio):
        peer = row.best_peer("Berth")
        lines.append([ratio(row.ratios("Berth", peer)), peer or "", row.model, row.weights, row.what, row.bound("Berth"),
                      cell(row, "Berth"), *(cell(row, name) for name in PEERS), share(row.roofline_share("Berth")),
                      share(row.roofline_share(peer)), share(row.products_share("Berth")), share(row.products_share(peer))])
    return table(["Berth / best peer (range, pairs)", "best peer", "model", "weights", "what", "bound by", "Berth, tokens/s",
                  *PEERS, "share of read bandwidth: Berth", "share: best peer", "share of products: Berth",
                  "products: best peer"], lines)


def memories(found):
    """`found`: {(model, weights): {engine: bytes}}."""
    return table(["model", "weights", *(f"{engine}, MiB" for engine in ENGINES)],
                 [[*key, *(f"{peaks[engine] / 2**20:,.0f}" if peaks.get(engine) else "" for engine in ENGINES)]
                  for key, peaks in found.items()])


def translations(rows):
    return table(
        ["model", "weights", "what", "Berth, tokens/s", "CTranslate2", "Berth / CTranslate2 (range, pairs)", "transformers",
         "Berth / transformers"],
        [[row.model, row.weights, f"{row.kind} {row.size:,}", cell(row, "Berth"), cell(row, "CTranslate2"),
          ratio(row.ratios("Berth", "CTranslate2")), cell(row, "transformers"),
          ratio(row.ratios("Berth", "transformers"))] for row in rows])


def loads(rows):
    def milliseconds(pair):
        return " / ".join(f"{value * 1e3:,.1f}" for value in pair)

    return table(
        ["server", "arrivals, requests/s", "share of capacity", "TTFT p50 / p99, ms", "time per output token p50 / p99, ms",
         "completed, requests/s"],
        [[row.engine, "closed loop" if row.rate is None else f"{row.rate:.2f}", row.share, milliseconds(row.ttft),
          milliseconds(row.tpot), f"{row.completed:.2f}"] for row in rows])


def agreements(checks):
    return table(["model", "weights", "engine", "largest logprob difference from float32", "mean", "same token",
                  "same, or too close to call", ""],
                 [[c.model, c.weights, c.engine, *differences(c), verdict(c)] for c in checks])


def differences(check):
    return [""] * 4 if check.error else [f"{check.largest:.3f}", f"{check.mean:.4f}", check.same_choice, check.clear_choice]


def verdict(check):
    if check.error:
        return f"NOT COMPARED: {check.error}"
    return "" if not check.judged else "ok" if check.ok else "DIFFERS"


def overheads(rows):
    return table(["model", "streams", "step in the engine, ms", "step at the client, ms", "outside the step"],
                 [[row.model, row.streams, f"{row.engine * 1e3:.3f}", f"{row.client * 1e3:.3f}",
                   f"{1 - row.engine / row.client:.1%}"] for row in rows])


def render(run):
    """`run`: what peers_bench.py collected."""
    facts = [("date", f"{run.date}, {run.minutes:.0f} minutes"), ("machine", run.machine),
             ("threads", f"{run.threads} for each engine"), ("reads memory at", bandwidths(run.rows)),
             ("multiplies at", run.peaks),
             ("other processes", run.noise), ("versions", f"`{run.versions}`"), ("command", f"`{run.command}`")]
    parts = [table(["this run", ""], [fact for fact in facts if fact[1]])]
    if run.noise.mean > QUIET_CORES:
        parts.append("**Taken on a busy machine:** read the ratios with care. Engines whose threads spin while they wait for "
                     "each other (llama.cpp, transformers) lose most when other processes use a core.")
    if run.notes:
        parts.append("\n".join(f"- {note}" for note in run.notes))
    if run.rows:
        parts.append(rates(run.rows))
    if run.loads:
        parts.append("Servers under an open loop, llama-125m in bfloat16:\n\n" + loads(run.loads))
    if run.translations:
        parts.append("Encoder-decoder models:\n\n" + translations(run.translations))
    if run.checks:
        parts.append("Agreement of the engines with transformers in float32:\n\n" + agreements(run.checks))
    if run.memories:
        parts.append("Peak resident memory of each engine's processes, after its rows:\n\n" + memories(run.memories))
    if run.overheads:
        parts.append("Time outside the step:\n\n" + overheads(run.overheads))
    return "\n\n".join(parts)


def write(text, kernels, path=None):
    """Replaces the tables of the processors that run the set of kernels `kernels`; others keep theirs. path: of the
    document, if it is another."""
    path = path or DOCUMENT
    begin, end = BEGIN.format(kernels), END.format(kernels)
    with open(path, encoding="utf-8") as file:
        document = file.read()
    if begin not in document or end not in document:
        raise SystemExit(f"{path} lacks the lines between which the tables go:\n{begin}\n{end}")
    before, rest = document.split(begin, 1)
    after = rest.split(end, 1)[1]
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{begin}\n\n{text}\n\n{end}{after}")
