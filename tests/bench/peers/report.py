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
    return f"reads {statistics.median(read):.0f} GB/s ({min(read):.0f}-{max(read):.0f}); " if read else ""


def rates(rows):
    return table(
        ["model", "weights", "what", "Berth, tokens/s", "llama.cpp", "Berth / llama.cpp (range, pairs)", "transformers",
         "Berth / transformers", "of the read bandwidth: Berth", "llama.cpp"],
        [[row.model, row.weights, f"{row.kind} {row.size:,}", cell(row, "Berth"), cell(row, "llama.cpp"),
          ratio(row.ratios("Berth", "llama.cpp")), cell(row, "transformers"),
          ratio(row.ratios("Berth", "transformers")), share(row.roofline_share("Berth")),
          share(row.roofline_share("llama.cpp"))] for row in rows])


def agreements(checks):
    return table(["model", "weights", "engine", "largest logprob difference from float32", "mean", "same token",
                  "same or too near to tell", ""],
                 [[c.model, c.weights, c.engine, f"{c.largest:.3f}", f"{c.mean:.4f}", c.same_choice, c.clear_choice,
                   "" if c.weights != "bf16" else "ok" if c.ok else "DIFFERS"] for c in checks])


def overheads(rows):
    return table(["model", "streams", "step in the engine, ms", "step as the client sees it, ms", "not the step"],
                 [[row.model, row.streams, f"{row.engine * 1e3:.3f}", f"{row.client * 1e3:.3f}",
                   f"{1 - row.engine / row.client:.1%}"] for row in rows])


def render(run):
    """`run`: what peers_bench.py collected."""
    parts = [f"{run.date}, {run.machine}; {run.threads} threads for each engine; {bandwidths(run.rows)}"
             f"{run.noise}.", f"Versions: {run.versions}.", f"Command: `{run.command}`, {run.minutes:.0f} minutes."]
    if run.noise.mean > QUIET_CORES:
        parts.append("**Taken on a busy machine:** read the ratios with care. Engines whose threads wait for each other by "
                     "spinning (llama.cpp, transformers) lose most when a core is taken from them.")
    if run.notes:
        parts.append("\n".join(f"- {note}" for note in run.notes))
    if run.rows:
        parts.append(rates(run.rows))
    if run.checks:
        parts.append("Do they compute the same model?\n\n" + agreements(run.checks))
    if run.overheads:
        parts.append("The server around the step:\n\n" + overheads(run.overheads))
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
