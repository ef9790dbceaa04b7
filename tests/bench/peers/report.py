"""The comparison as Markdown, and its place in docs/performance.md."""

import os
import statistics

from machine import ROOT

DOCUMENT = os.path.join(ROOT, "docs/performance.md")
BEGIN = "<!-- Made by ./dev bench peers --write; what is between these lines is replaced. -->"
QUIET_CORES = 0.1  # that others keep busy without being worth a word
END = "<!-- End of what ./dev bench peers --write made. -->"


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


def rates(rows):
    return table(
        ["model", "weights", "what", "Berth, tokens/s", "llama.cpp", "Berth / llama.cpp (range, pairs)", "transformers",
         "Berth / transformers", "share of read bandwidth: Berth", "share: llama.cpp"],
        [[row.model, row.weights, f"{row.kind} {row.size:,}", cell(row, "Berth"), cell(row, "llama.cpp"),
          ratio(row.ratios("Berth", "llama.cpp")), cell(row, "transformers"),
          ratio(row.ratios("Berth", "transformers")), share(row.roofline_share("Berth")),
          share(row.roofline_share("llama.cpp"))] for row in rows])


def agreements(checks):
    return table(["model", "weights", "engine", "largest logprob difference from float32", "mean", "same token",
                  "same, or too close to call", ""],
                 [[c.model, c.weights, c.engine, f"{c.largest:.3f}", f"{c.mean:.4f}", c.same_choice, c.clear_choice,
                   "" if c.weights != "bf16" else "ok" if c.ok else "DIFFERS"] for c in checks])


def overheads(rows):
    return table(["model", "streams", "step in the engine, ms", "step at the client, ms", "outside the step"],
                 [[row.model, row.streams, f"{row.engine * 1e3:.3f}", f"{row.client * 1e3:.3f}",
                   f"{1 - row.engine / row.client:.1%}"] for row in rows])


def render(run):
    """`run`: what peers_bench.py collected."""
    facts = [("date", f"{run.date}, {run.minutes:.0f} minutes"), ("machine", run.machine),
             ("threads", f"{run.threads} for each engine"), ("reads memory at", bandwidths(run.rows)),
             ("other processes", run.noise), ("versions", f"`{run.versions}`"), ("command", f"`{run.command}`")]
    parts = [table(["this run", ""], [fact for fact in facts if fact[1]])]
    if run.noise.mean > QUIET_CORES:
        parts.append("**Taken on a busy machine:** read the ratios with care. Engines whose threads spin while they wait for "
                     "each other (llama.cpp, transformers) lose most when other processes use a core.")
    if run.notes:
        parts.append("\n".join(f"- {note}" for note in run.notes))
    if run.rows:
        parts.append(rates(run.rows))
    if run.checks:
        parts.append("Agreement of the engines with transformers in float32:\n\n" + agreements(run.checks))
    if run.overheads:
        parts.append("Time outside the step:\n\n" + overheads(run.overheads))
    return "\n\n".join(parts)


def write(text):
    with open(DOCUMENT, encoding="utf-8") as file:
        document = file.read()
    if BEGIN not in document or END not in document:
        raise SystemExit(f"{DOCUMENT} lacks the lines between which the table goes:\n{BEGIN}\n{END}")
    before, rest = document.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
