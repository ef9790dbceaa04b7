"""The server as its users meet it, with the bundled models: streaming, sampling, cancellation, limits, metrics, drain."""

import concurrent.futures
import importlib.util
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from google.protobuf import descriptor_pb2

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import (  # noqa: E402
    BIN, ENDLESS_TOKENS, ROOT, SERVER, BerthServer, DidNotStart, api, check_it_goes_on, endless_request, endless_server,
    generate_request, too_late, wait_until)

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
FULL = bool(os.environ.get("BERTH_FULL"))
CHECKS = ["--poison_cache", "--check_integrity", "--log_level=debug"]
STORY = "Tell me a story about a fox."
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def server():
    with BerthServer(DEMO, *CHECKS) as server:
        yield server


@pytest.fixture(scope="module")
def endless():
    with endless_server(DEMO, *CHECKS) as server:
        yield server


@pytest.fixture(autouse=True)
def idle_afterwards(request):
    """Whatever a test did, every byte must have come back."""
    yield
    for name in {"server", "endless"} & set(request.fixturenames):
        request.getfixturevalue(name).wait_idle()


def health(server, name):
    stub = health_pb2_grpc.HealthStub(server.channel)
    return stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60).status


def code_of(call):
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()


def metrics(server):
    """{name: [(labels, value)]} of one scrape."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=60) as response:
        text = response.read().decode()
    series = {}
    for name, labels, value in re.findall(r"^([a-zA-Z_:]+)(\{[^}]*\})? (\S+)$", text, re.M):
        series.setdefault(name, []).append((dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)))
    return series


def test_a_request_without_sampling_parameters_takes_the_models(server):
    with open(os.path.join(DEMO, "generation_config.json"), encoding="utf-8") as file:
        defaults = json.load(file)

    def texts(**sampling):
        requests = [generate_request(chat=STORY, temperature=None) for _ in range(8)]
        for seed, request in enumerate(requests):
            request.sampling.MergeFrom(api().inference_pb2.Sampling(seed=seed, **sampling))
        return [server.inference.Complete(request, timeout=120).text for request in requests]

    unsaid = texts()
    assert unsaid == texts(temperature=defaults["temperature"], top_p=defaults["top_p"])
    assert unsaid != texts(temperature=0)
    assert unsaid != texts(temperature=1, top_p=1)


def test_stream_complete_and_detokenize_agree(server):
    request = generate_request(chat=STORY, logprobs=3, return_prompt_token_ids=True)
    whole = server.inference.Complete(request, timeout=120)
    pieces = list(server.inference.Generate(request, timeout=120))
    ids = [token for piece in pieces for token in piece.token_ids]
    assert "".join(piece.text for piece in pieces) == whole.text
    assert ids == list(whole.token_ids)
    decoded = server.inference.Detokenize(api().inference_pb2.DetokenizeRequest(token_ids=ids), timeout=60).text
    assert decoded == whole.text
    assert list(pieces[0].prompt_token_ids) == list(whole.prompt_token_ids)
    assert pieces[0].request_id and not any(piece.request_id for piece in pieces[1:])
    last = pieces[-1]
    assert last.finish_reason == api().inference_pb2.FINISH_REASON_STOP and last.stop_token_id == ids[-1]
    assert last.usage.completion_tokens == len(ids) == sum(len(piece.logprobs) for piece in pieces)
    assert last.usage.prompt_tokens == len(whole.prompt_token_ids)
    for entry in (entry for piece in pieces for entry in piece.logprobs):
        assert [top.logprob for top in entry.top] == sorted((top.logprob for top in entry.top), reverse=True)
        assert len(entry.top) == 3 and entry.logprob <= entry.top[0].logprob + 1e-6


def test_32_streams_lose_and_repeat_nothing(server):
    animals = ["fox", "cat", "dog", "owl", "bear", "frog", "mouse", "rabbit"]
    questions = [f"Tell me a story about a {animals[i % 8]}." for i in range(32)]
    requests = [generate_request(chat=q) for q in questions]
    expected = {q: list(server.inference.Complete(r, timeout=120).token_ids) for q, r in zip(questions[:8], requests)}

    def stream(request):
        return [token for piece in server.inference.Generate(request, timeout=120) for token in piece.token_ids]

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        for question, tokens in zip(questions, pool.map(stream, requests)):
            assert tokens == expected[question], question


def sampled(seed):
    request = generate_request(chat=STORY, temperature=1.3, max_tokens=60, ignore_eos=True)
    request.sampling.seed = seed
    request.sampling.top_p = 0.95
    return request


def test_a_seed_gives_the_same_tokens_in_any_company(server):
    alone = list(server.inference.Complete(sampled(7), timeout=120).token_ids)
    assert list(server.inference.Complete(sampled(8), timeout=120).token_ids) != alone
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        seeds = [7 if i % 4 == 0 else 100 + i for i in range(16)]
        together = list(pool.map(lambda s: list(server.inference.Complete(sampled(s), timeout=120).token_ids), seeds))
    for seed, tokens in zip(seeds, together):
        assert (tokens == alone) == (seed == 7)


def test_a_stream_with_sinks_outgrows_the_arena():
    """4,000 tokens of a sequence in an arena that holds a few hundred: the window's, and the first four."""
    flags = [*CHECKS, "--arena=512KiB", "--max_sequence_tokens=5000", "--prefill_chunk_tokens=32"]
    with BerthServer(DEMO, *flags) as server:
        assert server.model_info().limits.max_sequence_tokens < 1000
    with BerthServer(DEMO, *flags, "--attention_window=100") as server:
        info = server.model_info()
        assert info.limits.max_sequence_tokens == 5000
        keys = next(group for group in info.cache_groups if group.kind == "sliding")
        assert (keys.window, keys.sink_tokens) == (100, 4)
        request = generate_request(chat=STORY, max_tokens=4000, ignore_eos=True)
        # The sinks' block, and those of a window that starts and ends within blocks.
        most = (1 + (100 - 1 + 1 + 15) // 16 + 1) * keys.unit_bytes
        count = held = 0
        for piece in server.inference.Generate(request, timeout=600):
            count += len(piece.token_ids)
            pool = next(pool for pool in server.load().cache.pools if pool.kind == "sliding")
            held = max(held, pool.live_bytes + pool.shared_bytes)
        assert count == 4000
        assert most - 2 * keys.unit_bytes <= held <= most


def test_stop_strings_end_the_text_before_them(server):
    text = server.inference.Complete(generate_request(chat=STORY), timeout=120).text
    stop = text[30:37]  # crosses tokens
    request = generate_request(chat=STORY)
    request.stopping.stop.append(stop)
    pieces = list(server.inference.Generate(request, timeout=120))
    assert "".join(piece.text for piece in pieces) == text[: text.index(stop)]
    assert pieces[-1].stop_string == stop
    request.stopping.include_stop = True
    assert server.inference.Complete(request, timeout=120).text == text[: text.index(stop) + len(stop)]


def test_min_and_max_tokens(server):
    pb = api().inference_pb2
    request = generate_request(chat="What is 23 + 45?", max_tokens=1)
    response = server.inference.Complete(request, timeout=120)
    assert response.finish_reason == pb.FINISH_REASON_LENGTH and len(response.token_ids) == 1
    request = generate_request(chat="What is 23 + 45?", max_tokens=40)
    request.stopping.min_tokens = 20
    response = server.inference.Complete(request, timeout=120)
    assert len(response.token_ids) >= 20 and 2 not in list(response.token_ids)[:20]


def test_abort_ends_the_stream_and_keeps_its_output(endless):
    stream = endless.inference.Generate(endless_request(prompt="x", request_id="to-be-aborted"), timeout=120)
    first = next(stream)
    pb = api().control_pb2
    answer = endless.control.Abort(pb.AbortRequest(request_ids=["to-be-aborted", "unknown"]), timeout=60)
    assert list(answer.aborted) == ["to-be-aborted"]
    messages = [first, *stream]
    assert messages[-1].finish_reason == api().inference_pb2.FINISH_REASON_CANCELLED
    assert sum(len(message.token_ids) for message in messages) == messages[-1].usage.completion_tokens


def test_a_client_that_goes_gives_its_bytes_back(endless):
    def used():
        return sum(v for labels, v in metrics(endless)["berth_cache_bytes"] if labels["state"] == "live")

    streams = [endless.inference.Generate(endless_request(prompt="x"), timeout=120) for _ in range(8)]
    for stream in streams:
        next(stream)
    assert used() > 0
    for stream in streams:
        stream.cancel()
    endless.wait_idle()
    assert used() == 0


def test_a_killed_client_gives_its_bytes_back(endless):
    client = subprocess.Popen([os.path.join(BIN, "client/berth-cli"), "generate", f"--server={endless.address}",
                               "--prompt=Once upon a time", "--temperature=0", f"--max_tokens={ENDLESS_TOKENS}",
                               "--ignore_eos"], stdout=subprocess.PIPE)
    try:
        assert select.select([client.stdout], [], [], 120)[0], "berth-cli wrote nothing in 120 s"
        assert client.stdout.read(1)
        assert endless.load().running == 1
    finally:
        client.send_signal(signal.SIGKILL)
        client.wait(timeout=60)
    endless.wait_idle()


def test_deadline(endless):
    with pytest.raises(grpc.RpcError) as error:
        endless.inference.Complete(endless_request(prompt="x"), timeout=0.05)
    assert too_late(error.value), error.value


BAD_REQUESTS = [
    (dict(sampling=dict(temperature=-1)), "temperature", "-1"),
    (dict(sampling=dict(temperature=float("nan"))), "temperature", "nan"),
    (dict(sampling=dict(top_p=0)), "top_p", "0"),
    (dict(sampling=dict(min_p=1.5)), "min_p", "1.5"),
    (dict(sampling=dict(repetition_penalty=0)), "repetition_penalty", "0"),
    (dict(sampling=dict(presence_penalty=3)), "presence_penalty", "3"),
    (dict(sampling=dict(logit_bias={1024: 1.0})), "logit_bias", "1024"),
    (dict(stopping=dict(max_tokens=0)), "max_tokens", "0"),
    (dict(stopping=dict(max_tokens=4000000000)), "max_tokens", "4000000000"),
    (dict(stopping=dict(min_tokens=9, max_tokens=8)), "min_tokens", "9"),
    (dict(stopping=dict(stop=[""])), "stop", ""),
    (dict(stopping=dict(stop_token_ids=[-1])), "stop_token_ids", "-1"),
    (dict(logprobs=21), "logprobs", "21"),
    (dict(prompt=""), "prompt", ""),
    (dict(token_ids=dict(ids=[1024])), "token_ids", "1024"),
    (dict(token_ids=dict(ids=[-5])), "token_ids", "-5"),
    (dict(token_ids=dict(ids=[5] * 2048)), "prompt", "2048"),
    (dict(request_id="x" * 129), "request_id", "129"),
]


@pytest.mark.parametrize("fields, name, value", BAD_REQUESTS)
def test_bad_fields_are_named(server, fields, name, value):
    if not {"prompt", "token_ids"} & set(fields):
        fields = dict(fields, prompt="x")
    code, details = code_of(lambda: server.inference.Complete(api().inference_pb2.GenerateRequest(**fields), timeout=60))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert name in details and value in details, details


def test_a_request_without_input_is_refused(server):
    code, details = code_of(lambda: server.inference.Complete(api().inference_pb2.GenerateRequest(), timeout=120))
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "input" in details


def test_a_full_queue_answers_at_once():
    with endless_server(DEMO, *CHECKS, "--max_running=1", "--max_queue=2", "--max_step_tokens=64",
                        "--prefill_chunk_tokens=64") as server:
        request = endless_request(prompt="x")
        streams = [server.inference.Generate(request, timeout=600)]
        next(streams[0])  # runs: those that follow wait
        streams += [server.inference.Generate(request) for _ in range(2)]
        wait_until(lambda: server.load().waiting == 2, "two requests that wait")
        with pytest.raises(grpc.RpcError) as error:
            server.inference.Complete(request, timeout=60)
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "max_queue" in error.value.details()
        assert int(dict(error.value.trailing_metadata())["retry-after-ms"]) > 0
        for stream in streams:
            stream.cancel()
        server.wait_idle()


def test_health_and_reflection(server):
    for name in ("", "liveness", "readiness", "berth.v1.Inference", "berth.v1.Control"):
        assert health(server, name) == SERVING, name
    database = ProtoReflectionDescriptorDatabase(server.channel)
    assert {"berth.v1.Inference", "berth.v1.Control", "grpc.health.v1.Health"} <= set(database.get_services())
    service = database.FindFileContainingSymbol("berth.v1.Inference")
    assert [method.name for method in service.service[0].method] == [
        "Generate", "Complete", "Embed", "Tokenize", "Detokenize"]
    assert database.FindFileContainingSymbol("berth.v1.Inference.Generate").name == service.name
    assert set(database.get_services()) == set(server.control.GetServerInfo(api().control_pb2.GetServerInfoRequest()).services)
    with pytest.raises(KeyError):
        database.FindFileContainingSymbol("berth.v1.TenantsFile")  # of a file, not of the API
    health_file = database.FindFileContainingSymbol("grpc.health.v1.Health")
    theirs = descriptor_pb2.FileDescriptorProto()
    health_pb2.DESCRIPTOR.CopyToProto(theirs)
    for ours, known in ((health_file.service, theirs.service), (health_file.message_type[:2], theirs.message_type[:2])):
        assert list(ours) == list(known)


def test_model_info_says_what_the_cache_is(server):
    info = server.model_info()
    assert info.model_type == "falcon_h1" and info.has_chat_template
    assert [group.kind for group in info.cache_groups] == ["static", "recurrent"]
    assert all(list(group.layers) == [0, 1, 2, 3] for group in info.cache_groups)
    # Keys and values: 4 layers * 2 * 2 heads * 32 * 4 bytes.
    assert info.cache_groups[0].bytes_per_token == 2048
    assert info.limits.max_sequence_tokens == 2048


def test_cache_bytes_add_up_under_churn(server):
    done = threading.Event()

    def churn(i):
        while not done.is_set():
            stream = server.inference.Generate(generate_request(prompt="x" * (1 + 37 * i), max_tokens=50 + 30 * i,
                                                                ignore_eos=True), timeout=120)
            for n, _ in enumerate(stream):
                if n == 5 * i:
                    stream.cancel()
                    break

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        churners = [pool.submit(churn, i) for i in range(8)]
        scrapes, seen = 0, set()

        def seen_enough():
            nonlocal scrapes
            series = metrics(server)
            total = sum(value for _, value in series["berth_cache_bytes"])
            assert total == series["berth_cache_arena_bytes"][0][1]
            seen.add(sum(v for labels, v in series["berth_cache_bytes"] if labels["state"] == "live"))
            scrapes += 1
            return scrapes >= 100 and len(seen) > 5

        try:
            wait_until(seen_enough, "100 scrapes and a load that changes")
        finally:
            done.set()
        for churner in churners:
            churner.result()


def test_metrics_count_requests_and_tokens(server):
    def value(name, **labels):
        return sum(v for have, v in metrics(server)[name] if labels.items() <= have.items())

    before = {name: value(name) for name in ("berth_prompt_tokens_total", "berth_generation_tokens_total")}
    finished = value("berth_requests_finished_total", finish_reason="length")
    usage = server.inference.Complete(generate_request(prompt="Hello", max_tokens=9, ignore_eos=True), timeout=60).usage
    server.wait_idle()
    assert value("berth_prompt_tokens_total") - before["berth_prompt_tokens_total"] == usage.prompt_tokens
    assert value("berth_generation_tokens_total") - before["berth_generation_tokens_total"] == 9
    assert value("berth_requests_finished_total", finish_reason="length") == finished + 1
    assert value("vllm:generation_tokens_total") == value("berth_generation_tokens_total")


def test_sigterm_drains():
    """What runs continues: a stream that ends by itself comes whole, and an endless one continues until it is
    aborted."""
    with endless_server(DEMO, *CHECKS, "--drain_grace=1h") as server:
        endless = server.inference.Generate(endless_request(prompt="x", request_id="endless"), timeout=600)
        next(endless)
        stream = server.inference.Generate(generate_request(prompt="x", max_tokens=1200, ignore_eos=True), timeout=600)
        tokens = len(next(stream).token_ids)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: health(server, "readiness") == NOT_SERVING, "the server to drain")
        assert health(server, "liveness") == SERVING
        code, _ = code_of(lambda: server.inference.Complete(generate_request(prompt="y", max_tokens=1), timeout=60))
        assert code == grpc.StatusCode.UNAVAILABLE
        tokens += sum(len(piece.token_ids) for piece in stream)
        assert tokens == 1200
        check_it_goes_on(server, endless)
        server.control.Abort(api().control_pb2.AbortRequest(request_ids=["endless"]), timeout=60)
        assert [piece.finish_reason for piece in endless][-1] == api().inference_pb2.FINISH_REASON_CANCELLED
        assert server.process.wait(timeout=120) == 0


STEP_TIMEOUT_SECONDS = 30  # far longer than a step takes on a busy machine
# A default run stops the server for less than the watchdog allows, and only shows that streams survive it. That a stop
# of any length is one wake-up is for the watchdog's unit test, with virtual time.
STOP_SECONDS = 2 * STEP_TIMEOUT_SECONDS + 5 if FULL else 2


def test_signals_that_do_not_stop_the_server(tmp_path):
    """SIGHUP reloads; SIGSTOP and SIGCONT change nothing, with BERTH_FULL for longer than the watchdog allows a step;
    others are ignored."""
    flags, tenants = tmp_path / "flags", tmp_path / "tenants.json"
    flags.write_text("--log_level=warning\n")
    tenants.write_text("{}")
    with endless_server(DEMO, f"--flagfile={flags}", f"--tenants={tenants}", f"--step_timeout={STEP_TIMEOUT_SECONDS}s",
                        expect_clean_exit=False) as server:
        whole = server.inference.Complete(generate_request(chat=STORY, max_tokens=300, ignore_eos=True), timeout=120)
        for ignored in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE):
            server.process.send_signal(ignored)
        flags.write_text("--log_level=info\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("reload: --log_level=info; other flags take effect at the next start")
        server.wait_for_log(f"--tenants: read {tenants} again: 0 tenants")
        endless = server.inference.Generate(endless_request(chat=STORY), timeout=600)
        next(endless)
        stream = server.inference.Generate(generate_request(chat=STORY, max_tokens=300, ignore_eos=True), timeout=600)
        text = next(stream).text
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(STOP_SECONDS)
        server.process.send_signal(signal.SIGCONT)
        assert text + "".join(message.text for message in stream) == whole.text
        check_it_goes_on(server, endless)
        endless.cancel()
        assert health(server, "liveness") == health(server, "readiness") == SERVING
        assert "hangs" not in server.log()
        # What would only print something at a start does not end a server that runs.
        flags.write_text("--log_level=debug\n--version\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("reload: --log_level=debug")
        # What is wrong leaves the former settings.
        flags.write_text("--log_level=loud\n")
        tenants.write_text("{")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("the former log level stays")
        server.wait_for_log("the former tenants and credentials stay")
        assert health(server, "readiness") == SERVING
        # A second SIGTERM does not wait for the drain.
        streams = [server.inference.Generate(endless_request(chat=STORY), timeout=600) for _ in range(16)]
        for stream in streams:
            next(stream)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("draining")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=120) == 128 + signal.SIGTERM


def test_the_grace_ends():
    with endless_server(DEMO, "--drain_grace=100ms") as server:
        stream = server.inference.Generate(endless_request(prompt="x"), timeout=600)
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError) as error:
            list(stream)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
        assert server.process.wait(timeout=120) == 0


def test_logs_hold_no_prompt_text():
    with BerthServer(DEMO, "--log_level=debug", "--log_format=json") as server:
        parents = ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "not a secret one"]
        for i, parent in enumerate(parents):
            request = generate_request(prompt="a secret sentence", max_tokens=3, request_id=f"traced-{i}")
            server.inference.Complete(request, timeout=60, metadata=[("traceparent", parent)])
        server.wait_idle()
        lines = [json.loads(line) for line in server.log().splitlines()]
    assert any("request ended" in line["message"] for line in lines)
    begun = [line["message"] for line in lines if "request began" in line["message"]]
    assert 'id="traced-0"' in begun[0] and begun[0].endswith(f"traceparent={parents[0]}")
    assert 'id="traced-1"' in begun[1] and begun[1].endswith("traceparent=none")
    assert not any("secret" in json.dumps(line) for line in lines)


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
    result = run_server(f"--model={broken_model}", "--listen=127.0.0.1:0", "--metrics_listen=")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert all(word in last for word in words), result.stderr


def test_end_tokens_outside_the_vocabulary_are_named(broken_model):
    (broken_model / "generation_config.json").write_text('{"eos_token_id": [123456789]}')
    with BerthServer(broken_model) as server:
        log = server.log()
    assert "eos_token_id" in log and "123456789 is outside the vocabulary of" in log and "no end token is left" in log


def test_ports_that_are_taken_are_named(server):
    """The ports of gRPC and of the metrics; with the same flags, only the flag's name differs."""
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


def test_a_full_disk_fails_saves_and_nothing_else(tmp_path):
    """The limit of a file's size stands for the disk: writes fail in the same place, and the server serves."""
    flags = [f"--session_dir={tmp_path}/sessions", f"--disk_tier={tmp_path}/tier", "--host_tier=1MiB", "--tier_idle=0s"]
    with BerthServer(DEMO, *CHECKS, *flags) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
        request = generate_request(chat=STORY, max_tokens=300, ignore_eos=True, session_id="s")
        whole = server.inference.Complete(request, timeout=120)
        assert len(whole.token_ids) == 300
        server.wait_for_log("was not saved")
        assert not list((tmp_path / "sessions").glob("s@*.session"))
        request.autosave_tokens = 1
        request.deliver_saved_only = True
        code, details = code_of(lambda: server.inference.Complete(request, timeout=120))
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED and "the session was not saved" in details
        assert str(tmp_path) not in details
        # The disk has room again.
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        request.session_id = "t"
        assert server.inference.Complete(request, timeout=120).token_ids == whole.token_ids
        assert list((tmp_path / "sessions").glob("t@*.session"))


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
    lacking = [says.startswith("the processor lacks ") for _, says in sets]
    best = lacking.index(False)
    assert sets[best][1].startswith("the best set that this processor runs"), printed
    if best > 0:  # what the next better one needs
        assert sets[best][1].endswith(sets[best - 1][1].removeprefix("the processor lacks ")), printed
    assert [line[0] for line in printed.splitlines()] == ["*" if i == best else " " for i in range(len(sets))]
    monkeypatch.setenv("BERTH_CPU_CAPABILITY", "baseline")
    assert listed()[0][-1] == ["baseline", "set by BERTH_CPU_CAPABILITY"]


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
        code, details = code_of(lambda: server.inference.Complete(generate_request(prompt="x"), timeout=120))
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
        assert "tokenizer" in details
