"""Alternating measurements: what one row of the table is made of."""

import dataclasses
import statistics
import time

from worker import Failed

PROMPT_TOKENS = 32  # before a decode measurement
MIN_STEPS, MAX_STEPS = 16, 256
CONTEXT_STEPS = 64  # after a long context, which costs more to read than to decode after
BANDWIDTH_BOUND, PRODUCTS_BOUND = 0.6, 0.5  # shares from which a row is called bound


@dataclasses.dataclass
class Row:
    model: str
    weights: str
    kind: str  # "decode", "prefill", "encode"
    size: int  # streams, or the prompt's tokens
    engines: list
    context: int = PROMPT_TOKENS  # tokens before a decode measurement
    bytes_per_step: float | None = None  # of a decode step: weights and cache, and states written
    flops_per_token: float | None = None  # of the products with weights
    peak: float | None = None  # FLOP/s of the fastest product measured in the run
    pairs: list = dataclasses.field(default_factory=list)  # {engine: tokens/s}, in the order measured
    bandwidths: list = dataclasses.field(default_factory=list)  # bytes/s that the machine read just before each pair
    notes: dict = dataclasses.field(default_factory=dict)  # {engine: why it has no figure}

    def median(self, engine):
        values = [pair[engine] for pair in self.pairs if engine in pair]
        return statistics.median(values) if values else None

    def ratios(self, engine, to):
        """engine / to of each pair."""
        return [pair[engine] / pair[to] for pair in self.pairs if engine in pair and to in pair]

    @property
    def what(self):
        after = f" at {self.context:,}" if self.kind == "decode" and self.context != PROMPT_TOKENS else ""
        return f"{self.kind} {self.size:,}{after}"

    def best_peer(self, engine):
        """The fastest of the others that some pair has beside `engine`."""
        peers = [name for name in self.engines if name != engine and self.ratios(engine, name)]
        return max(peers, key=self.median, default=None)

    def products_share(self, engine):
        """Arithmetic over the peak."""
        if not self.flops_per_token or not self.peak or self.median(engine) is None:
            return None
        return self.median(engine) * self.flops_per_token / self.peak

    def bound(self, engine):
        """The limit that `engine` is near: bandwidth, products or neither."""
        if self.median(engine) is None:
            return ""
        if (self.roofline_share(engine) or 0) >= BANDWIDTH_BOUND:
            return "bandwidth"
        return "products" if (self.products_share(engine) or 0) >= PRODUCTS_BOUND else "neither"

    def roofline_share(self, engine):
        """Median over the pairs, each by what the machine read then: its memory's speed changes within minutes."""
        if self.bytes_per_step is None or self.kind != "decode":
            return None
        shares = [pair[engine] / self.size * self.bytes_per_step / bandwidth
                  for pair, bandwidth in zip(self.pairs, self.bandwidths) if engine in pair]
        return statistics.median(shares) if shares else None


def tokens_per_second(engine, row, steps):
    if row.kind == "decode":
        return engine.decode(streams=row.size, prompt_tokens=row.context, steps=steps)
    return row.size / engine.prefill(tokens=row.size)


def steps_for(engine, row, seconds):
    """How many steps take about `seconds` with this engine; measuring it warms it too."""
    if row.kind != "decode":
        tokens_per_second(engine, row, 0)
        return 0
    rate = engine.decode(streams=row.size, prompt_tokens=row.context, steps=MIN_STEPS // 2) / row.size
    return max(MIN_STEPS, min(MAX_STEPS, round(seconds * rate)))


def fill(row, engines, rounds, seconds, limit, read_bandwidth):
    """Measures `engines` ({name: engine}) in turn, `rounds` times, the same steps each; no new round after `limit`
    seconds. An engine that fails leaves the row, with a note. `read_bandwidth`: bytes/s, for rows that decode."""
    start = time.monotonic()
    engines = dict(engines)
    long = row.kind == "decode" and row.context != PROMPT_TOKENS  # reading it warms an engine
    steps = CONTEXT_STEPS if long else None
    for name, engine in [] if long else list(engines.items()):
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
