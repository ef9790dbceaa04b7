"""Alternating measurements: what one row of the table is made of."""

import dataclasses
import statistics
import time

from worker import Failed

PROMPT_TOKENS = 32  # before a decode measurement
MIN_STEPS, MAX_STEPS = 16, 256


@dataclasses.dataclass
class Row:
    model: str
    weights: str
    kind: str  # "decode", "prefill"
    size: int  # streams, or the prompt's tokens
    engines: list
    bytes_per_step: float | None = None  # of a decode step: weights and cache, read once
    pairs: list = dataclasses.field(default_factory=list)  # {engine: tokens/s}, in the order measured
    bandwidths: list = dataclasses.field(default_factory=list)  # bytes/s that the machine read just before each pair
    notes: dict = dataclasses.field(default_factory=dict)  # {engine: why it has no figure}

    def median(self, engine):
        values = [pair[engine] for pair in self.pairs if engine in pair]
        return statistics.median(values) if values else None

    def ratios(self, engine, to):
        """engine / to of each pair."""
        return [pair[engine] / pair[to] for pair in self.pairs if engine in pair and to in pair]

    def roofline_share(self, engine):
        """Median over the pairs, each by what the machine read then: its memory's speed changes within minutes."""
        if self.bytes_per_step is None or self.kind != "decode":
            return None
        shares = [pair[engine] / self.size * self.bytes_per_step / bandwidth
                  for pair, bandwidth in zip(self.pairs, self.bandwidths) if engine in pair]
        return statistics.median(shares) if shares else None


def tokens_per_second(engine, row, steps):
    if row.kind == "decode":
        return engine.decode(streams=row.size, prompt_tokens=PROMPT_TOKENS, steps=steps)
    return row.size / engine.prefill(tokens=row.size)


def steps_for(engine, row, seconds):
    """How many steps take about `seconds` with this engine; measuring it warms it too."""
    if row.kind == "prefill":
        return 0
    rate = engine.decode(streams=row.size, prompt_tokens=PROMPT_TOKENS, steps=MIN_STEPS // 2) / row.size
    return max(MIN_STEPS, min(MAX_STEPS, round(seconds * rate)))


def fill(row, engines, rounds, seconds, limit, read_bandwidth):
    """Measures `engines` ({name: engine}) in turn, `rounds` times, the same steps each; no new round after `limit`
    seconds. An engine that fails leaves the row, with a note. `read_bandwidth`: bytes/s, for rows that decode."""
    start = time.monotonic()
    engines = dict(engines)
    steps = None
    for name, engine in list(engines.items()):
        try:
            if steps is None:
                steps = steps_for(engine, row, seconds)
            else:
                tokens_per_second(engine, row, MIN_STEPS // 2)  # warms it
        except Failed as error:
            row.notes[name] = str(error)
            del engines[name]
    while engines and len(row.pairs) < rounds and (not row.pairs or time.monotonic() - start < limit):
        if row.kind == "decode":
            row.bandwidths.append(read_bandwidth())
        row.pairs.append({})
        for name, engine in list(engines.items()):
            try:
                row.pairs[-1][name] = tokens_per_second(engine, row, steps)
            except Failed as error:
                row.notes[name] = str(error)
                del engines[name]
