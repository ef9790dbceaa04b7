"""What clients do that mean harm, or know no better: each case once took the server down or froze it."""

import collections
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import BIN, ROOT, BerthServer, DidNotStart, api, generate_request, join, wait_until  # noqa: E402
from raw_http2 import RawConnection  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")


def metric(server, name):
    """The sum of the series whose line begins with `name`."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_long_texts_freeze_nobody():
    """Four texts of 3.9 MB once held all of gRPC's threads for 37 s: no health check came through, and no token."""
    with BerthServer(DEMO) as server:
        health = health_pb2_grpc.HealthStub(server.channel)
        text = api().inference_pb2.TokenizeRequest(text="1" * 3_900_000)
        stop = threading.Event()
        codes = collections.Counter()

        def attack(seconds):
            with grpc.insecure_channel(server.address) as channel:
                stub = api().inference_pb2_grpc.InferenceStub(channel)
                while not stop.is_set():
                    try:
                        stub.Tokenize(text, timeout=seconds)
                        codes[grpc.StatusCode.OK] += 1
                    except grpc.RpcError as error:
                        codes[error.code()] += 1

        # No processor spells the text within the last deadline, and none that is usual within the others.
        threads = [threading.Thread(target=attack, args=(seconds,), daemon=True) for seconds in (2, 2, 2, 0.05)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: server.load().texts_running > 0,
                       lambda: f"a text to be tokenised; the attacks ended with {codes}")
            for _ in range(20):
                health.Check(health_pb2.HealthCheckRequest(service="liveness"), timeout=30)
                server.load(timeout=30)
                request = generate_request(ids=[5, 6, 7], max_tokens=3)
                assert server.inference.Complete(request, timeout=30).usage.completion_tokens == 3
            wait_until(lambda: codes[grpc.StatusCode.DEADLINE_EXCEEDED] + codes[grpc.StatusCode.CANCELLED],
                       lambda: f"an attack that ends before its text; they ended with {codes}")
        finally:
            stop.set()
            join(threads, "the attacks to end")
        # Work that no client waits for any more ends soon, not when it is done.
        wait_until(lambda: metric(server, "berth_texts{") == 0, "the texts of the attacks to end")


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenised():
    with BerthServer(DEMO, "--max_sequence_tokens=1000") as server:
        for text in ("1" * 3_900_000, "word " * 20_000):
            with pytest.raises(grpc.RpcError) as error:
                server.inference.Complete(generate_request(prompt=text, max_tokens=3), timeout=60)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "over 2000 tokens, as no token has over 12 bytes" in error.value.details()


@pytest.mark.parametrize("interval, age, rest_seconds", [("200ms", "1h", 2), ("24h", "8s", 10)])
def test_a_client_that_rests_keeps_its_connection(interval, age, rest_seconds):
    """A Python client does not answer pings while its process is idle: the server once closed its connection for that,
    and the next call failed. A rest is ten intervals, or longer than the connection's age with gRPC's jitter of 10 %.
    After that age a call has as long again, far longer than it takes on a busy machine. The client in C++, berth-cli,
    sends its requests on one channel."""
    with BerthServer(DEMO, f"--ping_interval={interval}", f"--connection_age={age}") as server:
        script = os.path.join(ROOT, "tests/e2e/resting_client.py")
        clients = [[sys.executable, script, kind, server.address, str(rest_seconds)] for kind in ("sync", "asyncio")]
        clients.append([os.path.join(BIN, "client/berth-cli"), "load", f"--server={server.address}",
                        f"--rate={1 / rest_seconds}", "--requests=3", "--prompt_tokens=fixed:3", "--output_tokens=fixed:3",
                        "--seed=48"])  # its two gaps are longer than a rest
        running = [subprocess.Popen(client, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                   for client in clients]
        said = [client.communicate(timeout=300)[0] for client in running]
        assert [client.returncode for client in running] == [0, 0, 0], said


# Options of a channel that takes only as much as its reader asks for.
TAKES_LITTLE = [("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]


def test_an_answer_that_nobody_reads_pauses_until_somebody_does():
    """Its place is another's meanwhile, and it continues with the tokens that it would have had."""
    with BerthServer(DEMO, "--max_running=2", "--unread_timeout=1h", "--chunk_invariant_scans") as server:
        request = generate_request(ids=[5, 6, 7], max_tokens=1800, logprobs=20, ignore_eos=True, temperature=1.0, n=2)
        request.sampling.seed = 3

        def outputs(stream):
            tokens = [[], []]
            for message in stream:
                tokens[message.index] += message.token_ids
            return tokens

        expected = outputs(server.inference.Generate(request, timeout=600))
        assert [len(tokens) for tokens in expected] == [1800] * 2
        assert server.load().pauses == 0
        with grpc.insecure_channel(server.address, TAKES_LITTLE) as channel:
            call = api().inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=600)
            wait_until(lambda: server.load().paused == 2, "both outputs to pause", seconds=300)
            load = server.load()
            assert load.running == load.waiting == load.cache.num_leases == 0
            assert 4 << 20 < load.undelivered_bytes < 16 << 20
            assert metric(server, "berth_requests_paused") == 2
            assert server.inference.Complete(generate_request(ids=[5, 6, 7], max_tokens=3), timeout=120)
            assert outputs(call) == expected
        load = server.wait_idle()
        assert load.pauses >= 1 and load.paused == 0 and load.unread_requests_ended == 0


def test_a_drain_waits_for_a_client_that_reads_late():
    """Its tokens are all computed, so the engine is idle. It once was cut 2 s later, whatever --drain_grace was left."""
    with BerthServer(DEMO, "--drain_grace=1h") as server:
        request = generate_request(ids=[5, 6, 7], max_tokens=1000, logprobs=20, ignore_eos=True)
        with grpc.insecure_channel(server.address, TAKES_LITTLE) as channel:
            stream = api().inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=600)

            def computed():
                load = server.load()
                return load.generation_tokens == 1000 and load.running == 0

            wait_until(computed, "the request to be computed", seconds=300)
            assert server.load().undelivered_bytes > 0
            server.process.send_signal(signal.SIGTERM)
            time.sleep(4)  # longer than gRPC gets for what is left when all calls have ended
            assert server.process.poll() is None
            assert sum(len(message.token_ids) for message in stream) == 1000
        assert server.process.wait(timeout=120) == 0


def test_answers_that_nobody_reads_are_bounded():
    """A stream whose client never reads once grew to 67 MB, and counted in nothing once its request had ended."""
    with BerthServer(DEMO, "--max_outputs=16", "--max_running=64", "--unread_timeout=1s") as server:
        with grpc.insecure_channel(server.address, TAKES_LITTLE) as channel:
            stub = api().inference_pb2_grpc.InferenceStub(channel)
            request = generate_request(ids=[5, 6, 7], max_tokens=2000, logprobs=20, ignore_eos=True, temperature=1.0, n=16)
            calls = [stub.Generate(request, timeout=600) for _ in range(3)]  # no message is taken

            def all_ended():
                assert server.load().undelivered_bytes < 100 << 20
                return metric(server, "berth_unread_requests_ended_total") == 3

            wait_until(all_ended, "three requests to end because nobody reads", seconds=300)
            assert server.load().unread_requests_ended == 3 and server.load().pauses >= 3
            assert metric(server, 'berth_requests_finished_total{model_name="falcon_h1-demo",finish_reason="unread"') == 3
            assert server.wait_idle().undelivered_bytes < 3 * (4 << 20)  # the writes under way
            for call in calls:
                with pytest.raises(grpc.RpcError) as error:
                    for _ in call:
                        pass
                assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "the client does not read" in error.value.details()
        wait_until(lambda: server.load().undelivered_bytes == 0, "what was not delivered to be dropped")


def test_answers_of_texts_that_nobody_reads_are_bounded():
    """A connection that reads nothing once kept every answer of its calls: 30 MB each, for hours."""
    with BerthServer(DEMO) as server:
        detokenize = server.inference.Detokenize
        words = server.inference.Tokenize(api().inference_pb2.TokenizeRequest(text="the answer is 42"), timeout=60).token_ids
        longest = max(words, key=lambda token: len(
            detokenize(api().inference_pb2.DetokenizeRequest(token_ids=[token]), timeout=60).text))
        request = api().inference_pb2.DetokenizeRequest(token_ids=[longest] * 1_000_000)
        answer = len(detokenize(request, timeout=300).SerializeToString())
        message, limit = request.SerializeToString(), 128 << 20
        count = limit // (2 * answer) + 3
        with contextlib.closing(RawConnection(server.address)) as connection:
            done = server.load().texts_done
            for i in range(count):
                connection.begin(2 * i + 1, "/berth.v1.Inference/Detokenize", len(message))
                assert connection.send(2 * i + 1, message, timeout=60) == len(message)
                wait_until(lambda i=i: server.load().texts_done == done + i + 1, f"answer {i}")

            def oldest_ended():
                connection.read(1)
                assert server.load().undelivered_bytes <= limit + 8 * answer
                return {1, 3} <= connection.reset

            wait_until(oldest_ended, "the oldest calls to end because nobody reads")
            assert 2 * count - 1 not in connection.reset
            assert server.load().unread_requests_ended >= 2
            assert len(detokenize(request, timeout=300).text) > 1_000_000
        wait_until(lambda: server.load().undelivered_bytes == 0, "what was not delivered to be dropped")


def test_an_answer_that_fits_in_no_message_is_not_tried_again():
    """It once ended with the code of a full queue when all was computed, so clients tried again for ever."""
    with BerthServer(DEMO, "--max_running=64", "--max_logprobs=1000") as server:
        request = generate_request(ids=[5, 6, 7], max_tokens=2000, logprobs=1000, ignore_eos=True)
        with pytest.raises(grpc.RpcError) as error:
            server.inference.Complete(request, timeout=600)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "the answer is over the limit" in error.value.details()
        server.wait_idle()


@contextlib.contextmanager
def model_with_template(source):
    """A folder of the demo model with another chat template."""
    with tempfile.TemporaryDirectory(prefix="berth-template-") as folder:
        for name in os.listdir(DEMO):
            if name not in ("chat_template.jinja", ".berth"):
                os.symlink(os.path.join(DEMO, name), os.path.join(folder, name))
        with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
            file.write(source)
        yield folder


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(x=1) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}",
        "{% set ns = namespace(x='a') %}{% for i in range(45) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    ],
    ids=["nested", "doubled"],
)
def test_a_template_that_needs_too_much_ends_its_request_only(source):
    """These once ended the server by a stack overflow, or took gigabytes for longer than the client waited."""
    with model_with_template(source) as model, BerthServer(model) as server:
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as error:
                server.inference.Complete(generate_request(chat="Hello!", max_tokens=3), timeout=300)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        request = generate_request(ids=[5, 6, 7], max_tokens=3)
        assert server.inference.Complete(request, timeout=120).usage.completion_tokens == 3


def test_a_template_that_cannot_be_parsed_refuses_the_start():
    """A long flat expression once ended the process without a word."""
    with model_with_template("{{ " + "not " * 100_000 + "1 }}") as model:
        with pytest.raises(DidNotStart) as error:
            BerthServer(model).__enter__()
        assert "chat template: too complex" in str(error.value)


def test_slow_scrapes_do_not_stop_others():
    """Fifty connections with an unfinished header once held all threads of the metrics port for 30 s each."""
    with BerthServer(DEMO) as server:
        host, port = server.metrics_address.split(":")
        slow = [socket.create_connection((host, int(port))) for _ in range(50)]
        for one in slow:
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
        assert metric(server, "berth_build_info") == 1  # within its timeout of 30 s; once it took minutes
        for one in slow:
            one.close()


@pytest.mark.parametrize("method, request_bytes", [
    ("Inference/Complete", b"\x12\x02\xff\xfe"),  # a prompt that is not UTF-8
    ("Inference/Generate", b"\xff\xff\xff"),
    ("Control/GetLoad", b"\x0b"),
])
def test_a_request_that_does_not_parse_is_told_so(method, request_bytes):
    """It once looked like a method that is missing: UNIMPLEMENTED without a word."""
    with BerthServer(DEMO) as server:
        kind = server.channel.unary_stream if method == "Inference/Generate" else server.channel.unary_unary
        call = kind(f"/berth.v1.{method}", request_serializer=bytes, response_deserializer=bytes)
        with pytest.raises(grpc.RpcError) as error:
            answer = call(request_bytes, timeout=60)
            list(answer)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "cannot be parsed" in error.value.details()
        missing = server.channel.unary_unary("/berth.v1.Inference/Missing", bytes, bytes)
        with pytest.raises(grpc.RpcError) as error:
            missing(b"", timeout=60)
        assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


def rss_mb(server):
    with open(f"/proc/{server.process.pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) >> 10


def test_requests_sent_in_part_take_bounded_memory():
    """One connection with 40 streams, each just under 16 MB, once took 590 MB; 1,024 streams would take 16 GB.
    Now all that is received in part has 512 MiB: gRPC's quota ends calls over it."""
    with BerthServer(DEMO) as server:
        before = rss_mb(server)
        connection = RawConnection(server.address)
        connection.begin(1, "/berth.v1.Inference/Tokenize", 1 << 30)  # a message is refused when it has arrived
        chunk = b"x" * (1 << 20)
        sent = 0
        while 1 not in connection.reset and not connection.closed and sent < 1 << 30:
            taken = connection.send(1, chunk, timeout=30)
            assert taken or 1 in connection.reset or connection.closed, f"nothing was taken for 30 s after {sent} bytes"
            sent += taken
        assert sent < 700 << 20
        connection.close()

        connection = RawConnection(server.address)
        for stream in range(1, 2 * 120, 2):  # 960 MB
            if connection.closed:
                break
            connection.begin(stream, "/berth.v1.Inference/Tokenize", 8_000_000)
            connection.send(stream, b"x" * (8_000_000 - 100), timeout=30)
        assert connection.closed or len(connection.reset) > 20
        assert rss_mb(server) - before < 700
        request = generate_request(ids=[5, 6, 7], max_tokens=3)
        with contextlib.closing(grpc.insecure_channel(server.address)) as channel:
            answer = api().inference_pb2_grpc.InferenceStub(channel).Complete(request, timeout=300, wait_for_ready=True)
        assert answer.usage.completion_tokens == 3
        connection.close()


def test_the_times_of_texts_are_measured():
    with BerthServer(DEMO) as server:
        server.inference.Complete(generate_request(prompt="x", max_tokens=1), timeout=120)
        server.inference.Complete(generate_request(chat="x", max_tokens=1), timeout=120)
        assert metric(server, "berth_tokenise_time_seconds_count") == 2
        assert metric(server, "berth_render_time_seconds_count") == 1


def test_connections_are_limited():
    flags = ["--max_connections=3", "--max_connections_per_address=2", "--health_listen=127.0.0.1:0"]
    with BerthServer(DEMO, *flags) as server:  # one connection is the helper's
        assert server.load().running == 0
        with contextlib.closing(RawConnection(server.address)) as second:
            assert second.read(120) and not second.closed
            with contextlib.closing(RawConnection(server.address)) as third:

                def closed():
                    third.read(1)
                    return third.closed

                wait_until(closed, "the server to close the third connection")
            assert metric(server, "berth_connections_refused_total") == 1
            assert metric(server, "berth_connections{") == 2
            # Probes have their own.
            with grpc.insecure_channel(f"127.0.0.1:{server.ports['health']}") as health:
                check = health.unary_unary("/grpc.health.v1.Health/Check")
                assert check(b"\x0a\x08liveness", timeout=60) == b"\x08\x01"  # SERVING
