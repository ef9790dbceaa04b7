"""The machine that a run is on: its name, how fast it reads, and how busy others keep it meanwhile."""

import collections
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.append(os.path.join(ROOT, "tools/dev"))
sys.path.append(os.path.join(ROOT, "tests/testing"))

from berth_server import BIN, SERVER  # noqa: E402
from processors import count as num_processors  # noqa: E402

READ_BANDWIDTH = os.path.join(BIN, "bench/read_bandwidth")
MATMUL = os.path.join(BIN, "bench/matmul_bench")
REGISTERS = [f"MultiplyRegisters/{kind}" for kind in ("Floats", "Pairs", "Bytes", "Nibbles")]
PRODUCTS = {"bf16": (*REGISTERS[:2], "Berth/kBFloat16", "ATen/kBFloat16"),
            "int8": (*REGISTERS[:3], "Berth/kInt8"), "int4": (*REGISTERS, "Berth/kInt4")}
INSTRUCTIONS = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"]


def describe():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        text = file.read()
    name = re.search(r"^model name\s*: (.*)$", text, re.M)
    flags = re.search(r"^flags\s*: (.*)$", text, re.M)
    known = [flag for flag in INSTRUCTIONS if flags and flag in flags[1].split()]
    with open("/proc/meminfo", encoding="utf-8") as file:
        memory = int(file.readline().split()[1]) / 2**20
    return f"{num_processors()} cores of {name[1] if name else 'an unknown CPU'} ({', '.join(known)}), {memory:.0f} GiB"


def kernels():
    """The set that Berth runs on this processor (docs/numerics.md)."""
    listed = subprocess.run([SERVER, "--list_kernels"], check=True, capture_output=True, text=True).stdout
    return re.search(r"^\* (\w+) ", listed, re.M)[1]


def read_bandwidth(threads):
    """Bytes per second; read_bandwidth.cc says how."""
    return float(subprocess.run([READ_BANDWIDTH, str(threads)], check=True, capture_output=True, text=True).stdout) * 1e9


def product_peaks(threads):
    """{weights: FLOP/s}: the fastest of products from registers alone, Berth's of 512 rows, and LibTorch's."""
    command = [MATMUL, f"--threads={threads}", "--benchmark_format=json", "--benchmark_min_time=0.5",
               "--benchmark_filter=^(MultiplyRegisters|(Berth/k(BFloat16|Int8|Int4)|ATen/kBFloat16)/in:2048/out:5632/rows:512)/"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rates = [(one["name"], one.get("GFLOP/s", 0) * 1e9) for one in json.loads(done.stdout)["benchmarks"]]
    return {weights: max((rate for name, rate in rates if name.startswith(names)), default=0)
            for weights, names in PRODUCTS.items()}


def peak_resident_bytes(pid):
    """The sum of the peaks of the process and of those that it started and that still run; None if it is gone."""
    peaks, children = {}, collections.defaultdict(list)
    for path in glob.glob("/proc/[0-9]*/status"):
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                fields = dict(re.findall(r"^(Pid|PPid|VmHWM):\s+(\d+)", file.read(), re.M))
        except OSError:  # it ended meanwhile
            continue
        peaks[int(fields["Pid"])] = int(fields.get("VmHWM", 0)) * 1024
        children[int(fields["PPid"])].append(int(fields["Pid"]))
    total, left = 0, [pid]
    while left:
        one = left.pop()
        total += peaks.get(one, 0)
        left += children[one]
    return total or None


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
