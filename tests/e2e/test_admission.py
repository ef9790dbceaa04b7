"""Refusals as a client sees them: google.rpc details that its own library reads."""

import json
import os
import re
import subprocess
import sys
import urllib.request

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.rpc import error_details_pb2, status_pb2
from grpc_tools import protoc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import BIN, ROOT, endless_request, endless_server, generate_request  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """The messages of proto/google/rpc by name, in a pool of their own."""
    path = str(tmp_path_factory.mktemp("descriptors") / "set.bin")
    include = os.path.join(os.path.dirname(protoc.__file__), "_proto")
    files = [os.path.join(ROOT, "proto/google/rpc", name) for name in ("status.proto", "error_details.proto")]
    assert protoc.main(["protoc", f"-I{ROOT}/proto", f"-I{include}", "--include_imports",
                        f"--descriptor_set_out={path}", *files]) == 0
    with open(path, "rb") as file:
        descriptors = descriptor_pb2.FileDescriptorSet.FromString(file.read())
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors.file:
        pool.Add(file)
    return {name: pool.FindMessageTypeByName(name)
            for name in ("google.rpc.Status", "google.rpc.ErrorInfo", "google.rpc.RetryInfo")}


def fields(message):
    """What the wire sees: number, name, type and label of each field, and the same of messages inside."""
    def inner(field):
        return fields(field.message_type) if field.message_type and field.message_type.GetOptions().map_entry else (
            field.message_type.full_name if field.message_type else None)
    return sorted((f.number, f.name, f.json_name, f.type, f.label, inner(f)) for f in message.fields)


@pytest.mark.parametrize("theirs", [status_pb2.Status, error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo],
                         ids=lambda message: message.DESCRIPTOR.full_name)
def test_our_protos_are_those_of_google(ours, theirs):
    assert fields(ours[theirs.DESCRIPTOR.full_name]) == fields(theirs.DESCRIPTOR)


TENANTS = {"tenants": [{"name": "one", "running_sequences": 1},
                       {"name": "slow", "requests_per_second": 0.01, "burst_seconds": 1},
                       {"name": "short", "queued_tokens": 4}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("tenants") / "tenants.json"
    path.write_text(json.dumps(TENANTS))
    with endless_server(DEMO, f"--tenants={path}", "--max_queued_tokens=600") as server:
        yield server


def refusal(call):
    """The ErrorInfo and the RetryInfo (None: there is none) of a refused call, read by Google's own protos."""
    with pytest.raises(grpc.RpcError) as error:
        call()
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error.value.details()
    trailers = dict(error.value.trailing_metadata())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert status.code == error.value.code().value[0] and status.message == error.value.details()
    info, retry = error_details_pb2.ErrorInfo(), None
    assert status.details[0].Unpack(info) and info.domain == "berth"
    if len(status.details) > 1:
        retry = error_details_pb2.RetryInfo()
        assert status.details[1].Unpack(retry)
        assert int(trailers["retry-after-ms"]) == retry.retry_delay.ToMilliseconds()
        assert trailers["grpc-retry-pushback-ms"] == trailers["retry-after-ms"]
    else:
        assert "retry-after-ms" not in trailers and trailers["grpc-retry-pushback-ms"] == "-1"
    return info, retry


def complete(server, tenant, ids, max_tokens=2):
    request = generate_request(ids=ids, max_tokens=max_tokens, ignore_eos=True)
    request.cache_salt = tenant
    return server.inference.Complete(request, timeout=120)


def test_a_tenant_at_its_limit_is_refused_and_served_again(server):
    stream = server.inference.Generate(endless_request(ids=[1, 2, 3], cache_salt="one"), timeout=600)
    next(stream)
    info, retry = refusal(lambda: complete(server, "one", [1]))
    assert info.reason == "TENANT_RUNNING" and retry is not None
    assert dict(info.metadata) == {"setting": "running_sequences", "limit": "1", "value": "2", "tenant": "one"}
    complete(server, "another", [1])
    stream.cancel()
    server.wait_idle()
    complete(server, "one", [1])


def test_a_rate_says_how_long_to_wait(server):
    complete(server, "slow", [1])
    info, retry = refusal(lambda: complete(server, "slow", [1]))
    assert info.reason == "TENANT_REQUEST_RATE" and 50 <= retry.retry_delay.seconds <= 100


def test_a_request_that_would_wait_too_long_is_refused():
    """By count: one place, and the sequence before takes over a millisecond, however fast the machine is."""
    with endless_server(DEMO, "--max_running=1", "--max_wait=1ms") as server:
        assert server.load().predicted_wait_ms == 0
        complete(server, "", [1], max_tokens=300)  # the time of a sequence is known from now on
        assert server.load().predicted_wait_ms == 0, "nothing is before the next one"
        stream = server.inference.Generate(endless_request(ids=[1, 2, 3]), timeout=600)
        next(stream)
        wait_ms = server.load().predicted_wait_ms
        assert wait_ms > 1
        info, retry = refusal(lambda: complete(server, "", [1]))
        assert info.reason == "WAIT" and info.metadata["setting"] == "max_wait" and info.metadata["limit"] == "1ms"
        assert retry is not None
        assert server.load().queued == 0
        stream.cancel()
        server.wait_idle()
        complete(server, "", [1])


def test_what_is_too_large_alone_gets_no_delay(server):
    info, retry = refusal(lambda: complete(server, "short", [1, 2, 3, 4, 5]))
    assert info.reason == "TENANT_QUEUED_TOKENS" and retry is None
    info, retry = refusal(lambda: complete(server, "", [1] * 700))
    assert info.reason == "QUEUED_TOKENS" and info.metadata["setting"] == "max_queued_tokens" and retry is None


def test_the_client_shows_the_delay_and_the_metric_counts_the_reason(server):
    def count():
        with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=60) as response:
            return float(re.search(r'berth_requests_rejected_total\{.*reason="tenant_request_rate".*\} (\S+)',
                                   response.read().decode())[1])

    complete_or_refuse = [os.path.join(BIN, "client/berth-cli"), "generate", f"--server={server.address}", "--prompt=x",
                          "--max_tokens=2", "--cache_salt=slow"]
    subprocess.run(complete_or_refuse, capture_output=True, timeout=120)  # the tenant's only request of this minute
    before = count()
    run = subprocess.run(complete_or_refuse, capture_output=True, text=True, timeout=120)
    assert run.returncode == 1 and run.stdout == ""
    assert re.search(r'tenant "slow": requests_per_second of 0.01 is used up.*\(retry in .*s\)$', run.stderr), run.stderr
    assert count() == before + 1
