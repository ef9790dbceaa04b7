"""Berth's server against vLLM's under an open loop: requests arrive at Poisson times, however slow the server is.

First each server's capacity: requests/s of a closed loop. Then each serves rates that are shares of Berth's capacity and
of its peer's. Berth is called by `berth-cli load` over gRPC; vLLM by the client below, over its OpenAI API with streamed
answers. Both clients draw their own Poisson times, and count from when a request was due. Prompts are random token ids.
The packages of llama.cpp and OpenVINO that this comparison installs bring no server that batches.
"""

import asyncio
import dataclasses
import json
import random
import statistics
import subprocess
import tempfile
import time
import urllib.request

import berth_engine
import vllm_engine
from worker import Failed

PROMPT, OUTPUT, IN_FLIGHT = 128, 64, 32
SHARES = (0.5, 0.8)
START_SECONDS = 300


@dataclasses.dataclass
class Load:
    engine: str
    rate: float | None  # of arrivals, requests/s; None: the closed loop
    share: str  # of whose capacity
    ttft: tuple  # seconds: 50th and 99th percentile
    tpot: tuple  # likewise, of each request's (last token - first) / (tokens - 1)
    completed: float  # requests/s, from the start to the last end


def arrivals(rate, count, seed):
    """Seconds from the start, of a Poisson process."""
    generator, now, times = random.Random(seed), 0.0, []
    for _ in range(count):
        now += generator.expovariate(rate)
        times.append(now)
    return times


def percentiles(values):
    """The 50th and the 99th, interpolated as berth-cli load does."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[98]


class Berth:
    name = "Berth"

    def __init__(self, checkpoint, threads, flags):
        self.server = berth_engine.start(checkpoint, threads, "bf16", flags)

    def close(self):
        self.server.__exit__(None, None, None)

    def serve(self, rate, count):
        loop = f"--rate={rate}" if rate else f"--concurrency={IN_FLIGHT}"
        done = subprocess.run([berth_engine.CLI, "load", f"--server={self.server.address}", loop, f"--requests={count}",
                               f"--prompt_tokens=fixed:{PROMPT}", f"--output_tokens=fixed:{OUTPUT}", "--progress=false",
                               "--json_out=-"], capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"berth-cli load: {done.stderr.strip().splitlines()[-1]}")
        found = json.loads(done.stdout)
        latency = found["latency_seconds"]
        return (*((latency[what]["p50"], latency[what]["p99"]) for what in ("ttft", "tpot")),
                found["throughput"]["requests_per_second"])


class Vllm:
    name = "vLLM"

    def __init__(self, checkpoint, threads, python, vocab):
        self.vocab, self.port = vocab, vllm_engine.free_port()
        self.log = tempfile.TemporaryFile("w+")
        environment = vllm_engine.environment(threads, python)
        self.process = subprocess.Popen(
            [python, "-m", "vllm.entrypoints.openai.api_server", f"--model={checkpoint}", "--served-model-name=model",
             "--host=127.0.0.1", f"--port={self.port}", "--dtype=bfloat16", "--no-enable-prefix-caching",
             f"--max-model-len={vllm_engine.MAX_TOKENS}", f"--max-num-seqs={vllm_engine.MAX_STREAMS}"],
            env=environment, stdout=self.log, stderr=self.log)
        try:
            self.wait()
        except Failed:
            self.close()
            raise

    def wait(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return
            except OSError:
                time.sleep(0.5)
        self.log.seek(0)
        raise Failed("vLLM's server did not start: " + (self.log.read().strip().splitlines() or ["nothing was said"])[-1])

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    async def request(self, prompt, due):
        """(time to the first token, time per output token, when it ended), from when it was due."""
        body = json.dumps({"model": "model", "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True,
                           "stream": True, "return_token_ids": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                     b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        first, last, tokens = None, None, 0
        async for line in reader:
            if line.startswith(b"data: {"):
                last = time.perf_counter()
                first = first or last
                tokens += sum(len(choice.get("token_ids") or []) for choice in json.loads(line[6:]).get("choices", []))
        writer.close()
        if tokens != OUTPUT:
            raise Failed(f"vLLM's server sent {tokens} tokens of {OUTPUT}")
        return first - due, (last - first) / (tokens - 1), last

    async def run(self, rate, count):
        generator = random.Random(count)
        prompts = [[generator.randrange(3, self.vocab) for _ in range(PROMPT)] for _ in range(count)]
        times = arrivals(rate, count, seed=count) if rate else [0] * count
        places = asyncio.Semaphore(count if rate else IN_FLIGHT)
        start = time.perf_counter()

        async def one(prompt, after):
            await asyncio.sleep(max(0, start + after - time.perf_counter()))
            async with places:
                return await self.request(prompt, start + after if rate else time.perf_counter())

        found = await asyncio.gather(*(one(prompt, after) for prompt, after in zip(prompts, times)))
        return found, max(end for _, _, end in found) - start

    def serve(self, rate, count):
        try:
            found, seconds = asyncio.run(self.run(rate, count))
        except (OSError, ValueError) as error:
            raise Failed(f"vLLM's server: {error}") from error
        return percentiles([row[0] for row in found]), percentiles([row[1] for row in found]), count / seconds


def compare(makers, requests, seconds):
    """[Load]. `makers`: what starts each server, Berth first; only one runs at a time for its rates."""
    loads, capacity = [], {}
    for make in makers:  # capacities first, as the rates are shares of both
        server = make()
        try:
            server.serve(None, IN_FLIGHT)  # warms it
            loads.append(Load(server.name, None, "", *server.serve(None, requests)))
            capacity[server.name] = loads[-1].completed
        finally:
            server.close()
    for make in makers:
        server = make()
        try:
            server.serve(None, IN_FLIGHT)
            for owner in capacity:
                for share in SHARES:
                    rate = share * capacity[owner]
                    count = max(2, min(requests, round(rate * seconds)))
                    loads.append(Load(server.name, rate, f"{share:.0%} of {owner}'s", *server.serve(rate, count)))
        finally:
            server.close()
    return loads
