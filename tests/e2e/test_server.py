"""The server as its users meet it, with the bundled models: streaming, sampling, cancellation, limits, metrics, drain."""

import concurrent.futures
import json
import os
import re
import resource
import select
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
    BIN, ENDLESS_TOKENS, ROOT, BerthServer, api, check_it_goes_on, endless_request, endless_server, generate_request,
    too_late, wait_until)

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
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


def test_vllms_names_of_metrics_can_be_left_out():
    with BerthServer(DEMO, "--metrics_compat=none") as server:
        names = set(metrics(server))
    assert "berth_requests_running" in names and not any(name.startswith("vllm:") for name in names)


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
