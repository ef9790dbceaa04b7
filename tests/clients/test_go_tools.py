"""grpcurl and ghz, as their authors publish them: they know nothing of Berth but what its reflection tells them."""

import base64
import glob
import hashlib
import json
import os
import re
import subprocess
import urllib.request

import grpc
import pytest
from berth_server import ROOT, BerthServer, api, generate_request
from google.protobuf import descriptor_pb2

CACHE = os.environ.get("BERTH_CACHE", os.path.expanduser("~/.cache/berth"))
TOOLS = os.path.join(CACHE, "go-tools")  # `./dev test tests/clients` builds them
DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
INFERENCE = "berth.v1.Inference"
REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
SERVICES = {INFERENCE, "berth.v1.Control", "berth.v1.Sessions", "vllm.grpc.engine.VllmEngine", "grpc.health.v1.Health",
            *REFLECTION}
STORY = {"chat": {"messages": [{"role": "user", "content": "Tell me a story about a fox."}]},
         "sampling": {"temperature": 0}, "stopping": {"max_tokens": 40}}
TOKEN = "a-token-of-a-test"


@pytest.fixture(scope="module")
def server():
    with BerthServer(DEMO, "--check_integrity") as server:
        yield server


def run(tool, *arguments):
    return subprocess.run([os.path.join(TOOLS, tool), *arguments], capture_output=True, text=True, timeout=300,
                          cwd=ROOT)


def grpcurl(server, *arguments, data=None):
    """`arguments` are flags, then what to call or describe; returns what is printed."""
    result = grpcurl_result(server, *arguments, data=data)
    assert result.returncode == 0, result.stderr
    return result.stdout


def grpcurl_result(server, *arguments, data=None):
    flags = [argument for argument in arguments if argument.startswith("-")]
    what = [argument for argument in arguments if not argument.startswith("-")]
    if data is not None:
        flags.append("-d=" + (data if isinstance(data, str) else json.dumps(data)))
    return run("grpcurl", "-plaintext", *flags, server.address, *what)


def messages(text):
    """The JSON values that follow each other in `text`."""
    decoder, values = json.JSONDecoder(), []
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:]
    return values


def test_grpcurl_lists_and_describes_everything(server):
    assert set(grpcurl(server, "list").split()) == SERVICES
    for service in SERVICES:
        methods = grpcurl(server, "list", service).split()
        described = grpcurl(server, "describe", service)
        assert methods and f"{service} is a service" in described
        for method in methods:
            assert f"rpc {method.removeprefix(service + '.')} (" in described
            assert f"{method} is a method" in grpcurl(server, "describe", method)
    own = api().inference_pb2.DESCRIPTOR.services_by_name["Inference"].methods
    assert set(grpcurl(server, "list", INFERENCE).split()) == {method.full_name for method in own}
    field = r"\.berth\.v1\.Stopping stopping = 7;"
    assert re.search(field, grpcurl(server, "describe", "berth.v1.GenerateRequest"))


@pytest.mark.parametrize("version", REFLECTION)
def test_both_versions_of_reflection_answer(server, version):
    """grpcurl itself asks v1. This asks v1alpha too: services, a service, a method and a file."""
    questions = [{"listServices": "*"}, {"fileContainingSymbol": INFERENCE},
                 {"fileContainingSymbol": f"{INFERENCE}.Generate"}, {"fileContainingSymbol": "berth.v1.TokenIds"},
                 {"fileByFilename": "berth/v1/inference.proto"}, {"fileContainingSymbol": "berth.v1.Unknown"}]
    answers = messages(grpcurl(server, f"{version}/ServerReflectionInfo",
                               data="\n".join(json.dumps(question) for question in questions)))
    assert {service["name"] for service in answers[0]["list_services_response"]["service"]} == SERVICES
    for answer in answers[1:5]:
        files = [descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(file))
                 for file in answer["file_descriptor_response"]["file_descriptor_proto"]]
        names = {file.name for file in files}
        assert "berth/v1/inference.proto" in names
        assert all(needed in names for file in files for needed in file.dependency)
    assert answers[5]["error_response"]["error_code"] == grpc.StatusCode.NOT_FOUND.value[0]


def test_grpcurl_calls_with_json(server):
    request = generate_request(chat="Tell me a story about a fox.", max_tokens=40)
    expected = server.inference.Complete(request, timeout=120)
    stream = messages(grpcurl(server, f"{INFERENCE}/Generate", data=STORY))
    assert len(stream) > 1 and "".join(message.get("text", "") for message in stream) == expected.text
    assert stream[-1]["finish_reason"] == "FINISH_REASON_LENGTH" and stream[-1]["usage"]["completion_tokens"] == 40
    (whole,) = messages(grpcurl(server, f"{INFERENCE}/Complete", data=STORY))
    assert whole["text"] == expected.text


def test_grpcurl_shows_the_field_that_is_wrong(server):
    result = grpcurl_result(server, f"{INFERENCE}/Generate", data={"prompt": "Once", "sampling": {"top_p": 1.5}})
    assert result.returncode != 0 and "Code: InvalidArgument" in result.stderr
    assert "sampling.top_p: 1.5 is outside" in result.stderr
    result = grpcurl_result(server, f"{INFERENCE}/Generate", data={"promt": "Once"})
    assert result.returncode != 0 and "promt" in result.stderr


def test_grpcurl_checks_the_health(server):
    for service in ("", "readiness", "liveness", INFERENCE):
        (answer,) = messages(grpcurl(server, "grpc.health.v1.Health/Check", data={"service": service}))
        assert answer == {"status": "SERVING"}
    result = grpcurl_result(server, "grpc.health.v1.Health/Check", data={"service": "unknown"})
    assert result.returncode != 0 and "Code: NotFound" in result.stderr


def commands_of_documents():
    guides = [os.path.join(ROOT, "README.md"), *glob.glob(os.path.join(ROOT, "docs/*.md"))]
    for guide in guides:
        with open(guide, encoding="utf-8") as file:
            for block in re.findall(r"^```sh\n(.*?)^```", file.read(), re.M | re.S):
                yield from (line for line in block.splitlines() if line.startswith(("grpcurl ", "ghz ")))


COMMANDS = sorted(set(commands_of_documents()))


@pytest.mark.parametrize("command", COMMANDS)
def test_the_documents_commands_work(server, command):
    command = command.replace("127.0.0.1:8600", server.address)
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=300, cwd=ROOT,
                            env={**os.environ, "PATH": f"{TOOLS}:{os.environ['PATH']}"})
    assert result.returncode == 0 and result.stdout.strip(), result.stderr


def test_the_documents_name_both_tools():
    assert {command.split()[0] for command in COMMANDS} == {"grpcurl", "ghz"}


def requests_and_seconds(server):
    """How many requests the server has served, and the sum of their times."""
    with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=60) as response:
        text = response.read().decode()
    (count,) = re.findall(r"^berth_e2e_request_latency_seconds_count(?:{.*?})? (\S+)$", text, re.M)
    (seconds,) = re.findall(r"^berth_e2e_request_latency_seconds_sum(?:{.*?})? (\S+)$", text, re.M)
    return int(float(count)), float(seconds)


def ghz(server, method, data, *flags, calls=60, callers=4):
    result = run("ghz", "--insecure", f"--call={INFERENCE}.{method}", f"--total={calls}", f"--concurrency={callers}",
                 f"--data={json.dumps(data)}", "--format=json", *flags, server.address)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["count"] == calls and report["statusCodeDistribution"] == {"OK": calls}, report
    assert not report["errorDistribution"]
    check_figures(report, calls, callers)
    return report


def check_figures(report, calls, callers):
    """ghz's figures agree with each other; times are in nanoseconds. Only ratios are asserted, no speed.

    ghz keeps times in seconds as floats and cuts them to whole nanoseconds, so that two that are equal may differ by one.
    """
    latencies = sorted(call["latency"] for call in report["details"])
    assert len(latencies) == calls and all(call["status"] == "OK" for call in report["details"])
    assert latencies[0] > 0
    assert report["fastest"] == pytest.approx(latencies[0], abs=1) and report["slowest"] == pytest.approx(latencies[-1], abs=1)
    assert report["average"] == pytest.approx(sum(latencies) / calls, rel=0.01)
    assert report["rps"] == pytest.approx(calls / (report["total"] / 1e9), rel=0.01)
    # Each caller has one call at a time.
    assert sum(latencies) <= callers * report["total"] and report["slowest"] <= report["total"] + 1
    percentiles = [entry["latency"] for entry in sorted(report["latencyDistribution"], key=lambda e: e["percentage"])]
    assert percentiles == sorted(percentiles)
    assert latencies[0] - 1 <= percentiles[0] <= percentiles[-1] <= latencies[-1] + 1


def test_ghz_runs_generate(server):
    """A call's latency holds the server's time of the request: ghz measures what the server says, and the way there."""
    count, seconds = requests_and_seconds(server)
    report = ghz(server, "Generate", STORY)
    server.wait_idle()
    served, taken = requests_and_seconds(server)
    assert served - count == 60
    assert 0 < (taken - seconds) / 60 <= report["average"] / 1e9


def test_ghz_runs_tokenize(server):
    ghz(server, "Tokenize", {"text": "Once upon a time"}, calls=200)


def test_ghz_counts_errors():
    """So "no errors" above says something: most of these requests are refused for lack of room, as one takes far longer
    than it takes to send another."""
    long_story = {**STORY, "stopping": {"max_tokens": 1000, "ignore_eos": True}}
    with BerthServer(DEMO, "--max_running=1", "--max_queue=1") as server:
        result = run("ghz", "--insecure", f"--call={INFERENCE}.Generate", "--total=40", "--concurrency=20", "--format=json",
                     f"--data={json.dumps(long_story)}", server.address)
        report = json.loads(result.stdout)
        codes = report["statusCodeDistribution"]
        assert set(codes) == {"OK", "ResourceExhausted"} and sum(codes.values()) == 40
        assert all("the queue is full" in error for error in report["errorDistribution"])


def tenants_file(folder):
    path = os.path.join(folder, "tenants.json")
    token = {"name": "a test", "sha256": hashlib.sha256(TOKEN.encode()).hexdigest()}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"tenants": [{"name": "alice", "tokens": [token]}]}, file)
    return path


def test_with_tokens_reflection_is_off(tmp_path):
    bearer = f"-H=authorization: Bearer {TOKEN}"
    protos = ("-import-path=proto", "-proto=berth/v1/inference.proto")
    with BerthServer(DEMO, f"--tenants={tenants_file(tmp_path)}") as server:
        for arguments in (["list"], ["describe", INFERENCE]):
            result = grpcurl_result(server, bearer, *arguments)
            assert result.returncode != 0 and "does not support the reflection API" in result.stderr
            assert grpcurl_result(server, *arguments).returncode != 0
        # With the protos at hand, a token is enough.
        (answer,) = messages(grpcurl(server, bearer, *protos, f"{INFERENCE}/Complete", data=STORY))
        assert answer["text"]
        for header in ((), ("-H=authorization: Bearer wrong",)):
            result = grpcurl_result(server, *header, *protos, f"{INFERENCE}/Complete", data=STORY)
            assert result.returncode != 0 and "Code: Unauthenticated" in result.stderr
        ghz(server, "Generate", STORY, "--import-paths=proto", "--proto=berth/v1/inference.proto",
            f"--metadata={json.dumps({'authorization': f'Bearer {TOKEN}'})}", calls=8)


def test_with_reflection_on_it_needs_a_token(tmp_path):
    bearer = f"-H=authorization: Bearer {TOKEN}"
    with BerthServer(DEMO, f"--tenants={tenants_file(tmp_path)}", "--reflection=on") as server:
        assert set(grpcurl(server, bearer, "list").split()) == SERVICES
        result = grpcurl_result(server, "list")
        assert result.returncode != 0 and "Unauthenticated" in result.stderr
