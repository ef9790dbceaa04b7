"""What the stages of check.py share: where programs and libraries are, how to run them, and how to skip a stage.

A stage is a function of a Setup. It prints its log, returns its figures in a line, and raises what is wrong.
"""

import dataclasses
import glob
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.setdefault("BERTH_BIN", str(ROOT / "bazel-bin")))
DEMO_MODELS = [ROOT / "models/demo/falcon_h1-demo", ROOT / "models/demo/gemma3-demo"]
# The tests that run their kernels on the device named by BERTH_TEST_DEVICE, relative to BIN.
DEVICE_TESTS = [
    "tests/models/runner/device_probe_test",
    *(f"tests/models/ops/{name}_test" for name in (
        "causal_conv", "rg_lru", "elementwise", "paged_attention", "quantised_kv", "bidirectional_attention", "mamba",
        "gated_delta_net", "cuda_matmul", "checkpoint")),
    "tests/models/step/tensor_storage_test",
    "tests/models/sampling/sample_step_test",
    "tests/models/runner/decode_graphs_test",
]

for folder in ("tests/testing", "tools/parity", "bench/peers"):
    sys.path.insert(0, str(ROOT / folder))


class Skip(Exception):
    """The stage cannot run here; the message says why."""


def reason_of(error):
    """The error in a line. The last line of a server's log says why it did not start."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    kind = type(error).__name__
    return lines[0] if kind == "AssertionError" else f"{kind}: {lines[-1 if kind == 'DidNotStart' else 0]}"


@dataclasses.dataclass(frozen=True)
class Setup:
    device: str  # as berth-server's --device
    small: bool  # sizes for a test of the stages, not of the device
    out: pathlib.Path  # for logs and what stages leave for later ones
    seconds: float = 0  # that the stage may run; 0: no limit

    @property
    def on_gpu(self):
        return self.device != "cpu"

    def need_gpu(self, why):
        if not self.on_gpu:
            raise Skip(f"--device=cpu: {why}")

    def size(self, full, small):
        return small if self.small else full


@dataclasses.dataclass(frozen=True)
class Stage:
    run: object  # a function of a Setup
    seconds: int  # its time limit
    alone: bool = True  # else it may run beside others, after those that run alone

    @property
    def name(self):
        return self.run.__name__.replace("_", "-")


def library_path():
    """Where programs find shared libraries: the archive's own, and Python's torch with CUDA's."""
    folders = [ROOT / "lib"]
    torch = importlib.util.find_spec("torch")
    if torch is not None:
        torch_folder = pathlib.Path(torch.origin).parent
        folders += [torch_folder / "lib", torch_folder.parent / "nvidia/cu13/lib"]
    given = [pathlib.Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return ":".join(str(folder) for folder in folders + given if folder.is_dir())


def program_environment(**more):
    return {**os.environ, "LD_LIBRARY_PATH": library_path(), **more}


def find_tool(name, *places):
    """The path of a tool of CUDA's, from PATH or where its installers put it. Skips the stage if there is none."""
    found = shutil.which(name) or next((path for place in ("/usr/local/cuda/bin", *places)
                                        for path in sorted(glob.glob(f"{place}/{name}"), reverse=True)), None)
    if found is None:
        raise Skip(f"{name} is not installed")
    return found


def watched(tool, *command, **environment):
    """The command that runs a program under a tool, with its environment. The tool keeps the machine's own libraries: those of
    the archive are for the program alone."""
    ours = {"LD_LIBRARY_PATH": library_path(), **environment}
    return [*tool, "env", *(f"{name}={value}" for name, value in ours.items()), *command]


def run_program(*command, check=True, **environment):
    """Runs a program of the archive, prints what it prints, and returns it."""
    print("$", *command, flush=True)
    done = subprocess.run([str(part) for part in command], env=program_environment(**environment), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    print(done.stdout, flush=True)
    if check and done.returncode != 0:
        raise AssertionError(f"{pathlib.Path(str(command[0])).name} ended with {done.returncode}")
    return done.stdout
