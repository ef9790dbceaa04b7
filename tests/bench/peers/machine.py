"""The machine that a run is on: its name, how fast it reads, and how busy others keep it meanwhile."""

import os
import re
import statistics
import subprocess
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
READ_BANDWIDTH = os.path.join(os.environ.get("BERTH_BIN", os.path.join(ROOT, "bazel-bin")), "tests/bench/read_bandwidth")
INSTRUCTIONS = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"]


def describe():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        text = file.read()
    name = re.search(r"^model name\s*: (.*)$", text, re.M)
    flags = re.search(r"^flags\s*: (.*)$", text, re.M)
    known = [flag for flag in INSTRUCTIONS if flags and flag in flags[1].split()]
    with open("/proc/meminfo", encoding="utf-8") as file:
        memory = int(file.readline().split()[1]) / 2**20
    return f"{os.cpu_count()} cores of {name[1] if name else 'an unknown CPU'} ({', '.join(known)}), {memory:.0f} GiB"


def read_bandwidth(threads):
    """Bytes per second; read_bandwidth.cc says how."""
    return float(subprocess.run([READ_BANDWIDTH, str(threads)], check=True, capture_output=True, text=True).stdout) * 1e9


class Noise:
    """How many cores others keep busy, sampled while this run computes nothing."""

    def __init__(self):
        self.samples = []

    def sample(self, seconds=0.3):
        before = self._busy()
        start = time.monotonic()
        time.sleep(seconds)
        self.samples.append((self._busy() - before) / (time.monotonic() - start))

    @staticmethod
    def _busy():
        with open("/proc/stat", encoding="utf-8") as file:
            user, nice, system, _, _, interrupts, soft, stolen = map(int, file.readline().split()[1:9])
        return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")

    @property
    def mean(self):
        return statistics.mean(self.samples)

    def __str__(self):
        return f"kept {self.mean:.2f} cores busy on average, {max(self.samples):.2f} at most"
