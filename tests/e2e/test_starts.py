"""How the server starts, and which starts it refuses: flags, models, devices, ports, memory."""

import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import time

import grpc
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import BIN, ROOT, SERVER, BerthServer, DidNotStart, api, generate_request  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
CHECKS = ["--poison_cache", "--check_integrity"]

def run_server(*flags, libraries=()):
    environment = dict(os.environ, LD_LIBRARY_PATH=":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]))
    return subprocess.run([SERVER, *flags], capture_output=True, text=True, timeout=300, env=environment)


@pytest.mark.parametrize("flags, words", [
    (["--nonsense=1"], ["nonsense"]),
    ([f"--model={DEMO}", "--max_step_tokens=8", "--max_running=9"], ["max_step_tokens", "8", "9"]),
    ([f"--model={DEMO}", "--block_tokens=12"], ["block_tokens", "12"]),
    ([f"--model={DEMO}", "--listen=nowhere"], ["listen", "nowhere"]),
    ([f"--model={DEMO}", "--arena=1KiB"], ["arena", "1024"]),
    (["--model=/nonexistent"], ["/nonexistent"]),
    ([f"--model={DEMO}", "--device=cuda"], ["cuda"]),
    ([f"--model={DEMO}", "--device=gpu"], ["--device", "gpu", "auto, cpu, cuda or cuda:N"]),
    ([f"--model={DEMO}", "--cuda_graphs"], ["cuda_graphs", "device cuda", "cpu"]),
    ([f"--model={DEMO}", "--arena=1000TiB"], ["--arena", "1000 TiB"]),
    ([f"--model={DEMO}", "--disk_tier=/proc/tier", "--host_tier=1MiB"], ["--disk_tier", "/proc/tier"]),
    ([f"--model={DEMO}", "--session_dir=/proc/sessions"], ["--session_dir", "/proc/sessions"]),
    ([f"--model={DEMO}", "--listen=127.0.0.1:0", "--metrics_listen=", "--port_file=/proc/ports"],
     ["--port_file", "/proc/ports"]),
    ([f"--model={DEMO}", "stray"], ["stray"]),
])
def test_bad_starts_say_why(flags, words):
    result = run_server(*flags)
    assert result.returncode == 1, result
    message = result.stdout + result.stderr
    assert all(word in message for word in words), message


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_without_a_driver_says_so(device):
    # The CUDA half of the LibTorch that the server was built with, from the oracle's wheel, and all that it needs: what
    # `./dev serve --device=cuda` gives the server too.
    torch = os.path.dirname(importlib.util.find_spec("torch").origin)
    result = run_server(f"--model={DEMO}", f"--device={device}", libraries=[os.path.join(torch, "lib")])
    assert result.returncode == 1
    message = result.stdout + result.stderr
    assert f"device: {device}: NVIDIA's driver is not installed: libcuda.so.1" in message


# NVIDIA's driver as far as the server asks it: it says that there is a GPU, which nothing can use.
FAKE_DRIVER = """
    #include <stddef.h>
    #include <string.h>
    int cuInit(unsigned flags) { return 0; }
    int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
    int cuDeviceGetCount(int* count) { *count = 1; return 0; }
    int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
    int cuDeviceGetName(char* name, int length, int device) { strncpy(name, "GPU", length); return 0; }
    int cuDeviceGetAttribute(int* value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return 0; }
    int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = (size_t)80 << 30; return 0; }
    int cuGetErrorString(int error, const char** text) { *text = "?"; return 0; }
"""


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is a GPU")
@pytest.mark.parametrize("has_cuda, cause", [
    (False, "libtorch_cuda.so: cannot open shared object file"),
    (True, "no GPU found: "),  # and what LibTorch says
])
def test_a_gpu_that_cannot_be_used_names_its_cause(tmp_path, has_cuda, cause):
    (tmp_path / "driver.c").write_text(FAKE_DRIVER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c"], check=True,
                   timeout=120)
    torch = os.path.dirname(importlib.util.find_spec("torch").origin)
    libraries = [str(tmp_path)] + ([os.path.join(torch, "lib")] if has_cuda else [])
    result = run_server(f"--model={DEMO}", "--device=cuda", libraries=libraries)
    assert result.returncode == 1
    assert f"device: cuda: {cause}" in result.stdout + result.stderr
    # The CPU takes its place, so that the start reaches the next error.
    result = run_server("--model=/nonexistent", libraries=libraries)
    assert result.returncode == 1
    message = result.stdout + result.stderr
    assert f"device auto: the CPU, because no GPU can be used: {cause}" in message and "/nonexistent" in message


def test_cuda_graphs_find_what_they_name():
    # What this library uses of LibTorch's CUDA half is looked up when it is loaded; no GPU is needed for that.
    program = ("import ctypes, os, sys, torch; ctypes.CDLL(sys.argv[1], mode=os.RTLD_GLOBAL); "
               "ctypes.CDLL(sys.argv[2], mode=os.RTLD_NOW).BerthCudaGraphRecorder")
    torch = os.path.dirname(importlib.util.find_spec("torch").origin)
    libraries = [os.path.join(torch, "lib/libtorch_cuda.so"), os.path.join(BIN, "server/libberth_cuda_graph.so")]
    result = subprocess.run([sys.executable, "-c", program, *libraries], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def test_help_reads_well():
    result = run_server("--help")
    assert result.returncode == 0, result
    assert "--model" in result.stdout and "--drain_grace" in result.stdout
    assert "absl" not in result.stdout and len(result.stdout.splitlines()) < 160


@pytest.fixture
def broken_model(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns(".berth"))
    return folder


def edit_config(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    config.update(fields)
    (folder / "config.json").write_text(json.dumps(config))


def test_a_start_that_hangs_says_where_and_ends(broken_model):
    """A file that never comes, as of a dead network disk: opening a pipe that has no writer blocks. The end must come,
    not in a certain time."""
    (broken_model / "config.json").unlink()
    os.mkfifo(broken_model / "config.json")
    result = run_server(f"--model={broken_model}", "--start_timeout=200ms")
    assert result.returncode == 4
    log = result.stdout + result.stderr
    assert "the start hangs: phase start, in " in log and "no progress for 200ms (--start_timeout)" in log, log
    assert "ends with exit code 4, because the start hangs" in log, log


@pytest.mark.parametrize("fields, words", [
    (dict(model_type="llama9"), ["llama9", "falcon_h1", "mamba2"]),
    (dict(rope_parameters=dict(rope_type="spiral", rope_theta=1e4)), ["rope_type", "spiral"]),
    (dict(hidden_act="gelu"), ["hidden_act", "gelu"]),
    (dict(quantization_config=dict(quant_method="gptq")), ["quantization_config"]),
    (dict(num_hidden_layers=-3), ["num_hidden_layers", "-3"]),
    (dict(num_hidden_layers=3), ["model.layers.3"]),
    (dict(num_hidden_layers=5), ["model.layers.4"]),
    (dict(hidden_size=256), ["256", "128"]),
])
def test_configurations_that_cannot_be_served_are_refused(broken_model, fields, words):
    edit_config(broken_model, **fields)
    with pytest.raises(DidNotStart) as error:
        with BerthServer(broken_model):
            pass
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("file, text, words", [
    ("tokenizer_config.json", "{", ["tokenizer_config.json is not valid JSON"]),
    ("tokenizer_config.json", "[]", ["tokenizer_config.json is not a JSON object"]),
    ("tokenizer_config.json", '{"chat_template": 5}', ["tokenizer_config.json", "chat_template"]),
    ("special_tokens_map.json", "nonsense", ["special_tokens_map.json is not valid JSON"]),
    ("generation_config.json", '{"eos_token_id": "</s>"}', ["generation_config.json", "eos_token_id", "</s>"]),
    ("generation_config.json", '{"eos_token_id": [1, true]}', ["generation_config.json", "eos_token_id", "true"]),
    ("generation_config.json", '{"eos_token_id": 1.5}', ["generation_config.json", "eos_token_id", "1.5"]),
])
def test_text_files_that_are_wrong_are_refused(broken_model, file, text, words):
    (broken_model / "chat_template.jinja").unlink(missing_ok=True)
    (broken_model / file).write_text(text)
    for flags in (["--listen=127.0.0.1:0", "--metrics_listen="], ["--dry_run"]):
        result = run_server(f"--model={broken_model}", *flags)
        assert result.returncode == 1
        last = result.stderr.splitlines()[-1]
        assert all(word in last for word in words), result.stderr


def test_end_tokens_outside_the_vocabulary_are_named(broken_model):
    (broken_model / "generation_config.json").write_text('{"eos_token_id": [123456789]}')
    with BerthServer(broken_model) as server:
        log = server.log()
    assert "eos_token_id" in log and "123456789 is outside the vocabulary of" in log and "no end token is left" in log


def test_ports_that_are_taken_are_named():
    """The ports of gRPC and of the metrics; with the same flags, only the flag's name differs."""
    with BerthServer(DEMO) as server:
        for flag, taken, other in (("--listen", server.address, "--metrics_listen="),
                                   ("--metrics_listen", server.metrics_address, "--listen=127.0.0.1:0")):
            result = run_server(f"--model={DEMO}", f"{flag}={taken}", other)
            assert result.returncode == 1
            last = result.stderr.splitlines()[-1]
            assert flag in last and taken in last, result.stderr


def test_too_little_memory_is_said_at_the_start():
    def limited():
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    # From what loads the program's libraries on; each ends with a line, none with a crash.
    for limit in (3 << 30, 2 << 30, 1 << 30):
        result = subprocess.run([SERVER, f"--model={DEMO}", "--listen=127.0.0.1:0", "--metrics_listen=",
                                 "--arena=4GiB", "--packed_weights=none"],
                                capture_output=True, text=True, timeout=300, preexec_fn=limited)
        assert result.returncode in (1, 127), (limit, result)  # 127: the loader found no room for a library
        assert "memory" in result.stderr or "arena" in result.stderr, (limit, result.stderr)


def test_the_environment_names_the_kernels(monkeypatch):
    monkeypatch.setenv("BERTH_CPU_CAPABILITY", "baseline")
    with BerthServer(DEMO) as server:
        info = server.control.GetServerInfo(api().control_pb2.GetServerInfoRequest(), timeout=60)
        assert info.cpu_capability == "baseline"
    monkeypatch.setenv("BERTH_CPU_CAPABILITY", "sse9")
    with pytest.raises(DidNotStart, match='BERTH_CPU_CAPABILITY: there are no kernels "sse9"; this processor runs .*base'):
        with BerthServer(DEMO):
            pass


def test_kernels_are_listed_best_first_and_the_first_that_runs_is_chosen(monkeypatch):
    def listed():
        server = os.path.join(BIN, "server/berth-server")
        printed = subprocess.run([server, "--list_kernels"], capture_output=True, text=True, check=True,
                                 timeout=120).stdout
        return [line[2:].split(maxsplit=1) for line in printed.splitlines()], printed

    sets, printed = listed()
    assert [name for name, _ in sets] == ["amx", "avx512_bf16", "avx512_vnni", "avx512", "avx2_vnni", "avx2", "baseline"]
    best = next(i for i, line in enumerate(printed.splitlines()) if line.startswith("*"))
    assert sets[best][1].startswith("the fastest set that this processor runs"), printed
    for _, says in sets[:best]:  # Intel's dot products of bfloat16 may be slower than its float32 products
        assert says.startswith("the processor lacks ") or says == "runs here too, but slower", printed
    if best > 0:  # why not the next better one
        name, says = sets[best - 1]
        needs = says.replace("the processor lacks", "needs").replace("runs here too, but slower", "is slower")
        assert sets[best][1].endswith(f"; {name} {needs}"), printed
    assert [line[0] for line in printed.splitlines()] == ["*" if i == best else " " for i in range(len(sets))]
    monkeypatch.setenv("BERTH_CPU_CAPABILITY", "baseline")
    sets, printed = listed()
    assert sets[-1] == ["baseline", "set by BERTH_CPU_CAPABILITY"]
    assert "slower" not in printed


def test_a_truncated_checkpoint_is_refused(broken_model):
    path = broken_model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DidNotStart) as error:
        with BerthServer(broken_model):
            pass
    assert "model.safetensors" in str(error.value)


def test_a_model_without_tokenizer_serves_token_ids(broken_model):
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (broken_model / name).unlink()
    with BerthServer(broken_model, *CHECKS) as server:
        response = server.inference.Complete(generate_request(ids=[5, 6], max_tokens=4, ignore_eos=True), timeout=120)
        assert len(response.token_ids) == 4
        with pytest.raises(grpc.RpcError) as error:
            server.inference.Complete(generate_request(prompt="x"), timeout=120)
        code, details = error.value.code(), error.value.details()
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
        assert "tokenizer" in details
