"""gRPC's own retries, of clients in Python and Go whose service config has a retry policy. They wait for the time that the
server names, and do not repeat what can never succeed. //tests/server/api:refusals_test has the same tests in C++."""

import base64
import json
import os
import re
import subprocess
import urllib.request

import grpc
import pytest
from berth_server import ROOT, BerthServer, api, generate_request
from test_other_languages import DEMO, installed

METHOD = "/berth.v1.Inference/Complete"
TENANTS = {"tenants": [{"name": "slow", "requests_per_second": 2, "burst_seconds": 0.5},
                       {"name": "small", "cache_bytes": 1}]}
CALLS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("tenants") / "tenants.json"
    path.write_text(json.dumps(TENANTS))
    with BerthServer(DEMO, f"--tenants={path}") as server:
        yield server


def config(backoff):
    """Up to five tries, with this time between them where the server names none."""
    return json.dumps({"methodConfig": [{"name": [{}], "retryPolicy": {
        "maxAttempts": 5, "initialBackoff": backoff, "maxBackoff": backoff, "backoffMultiplier": 1,
        "retryableStatusCodes": ["RESOURCE_EXHAUSTED", "UNAVAILABLE"]}}]})


def request_of(tenant):
    request = generate_request(ids=[1, 2, 3], max_tokens=1, ignore_eos=True)
    request.cache_salt = tenant
    return request


def call_python(server, backoff, tenant, calls):
    codes = []
    with grpc.insecure_channel(server.address, options=[("grpc.service_config", config(backoff))]) as channel:
        stub = api().inference_pb2_grpc.InferenceStub(channel)
        for _ in range(calls):
            try:
                stub.Complete(request_of(tenant), timeout=120)
                codes.append("OK")
            except grpc.RpcError as error:
                codes.append(error.code().name)
    return codes


@pytest.fixture(scope="module")
def call_go(tmp_path_factory):
    program = str(tmp_path_factory.mktemp("go") / "client")
    subprocess.run([installed("go-venv", "go"), "build", "-buildvcs=false", "-mod=readonly", "-o", program, "./retries"],
                   check=True, cwd=os.path.join(ROOT, "tests/clients/go"), timeout=1800)

    def call(server, backoff, tenant, calls):
        message = base64.b64encode(request_of(tenant).SerializeToString()).decode()
        printed = subprocess.run([program, server.address, config(backoff), METHOD, message, str(calls)], check=True,
                                 capture_output=True, text=True, timeout=600).stdout
        return [re.sub("(?<=[a-z])(?=[A-Z])", "_", code).upper() for code in printed.split()]  # ResourceExhausted

    return call


@pytest.fixture(params=["Python", "Go"])
def call(request):
    return call_python if request.param == "Python" else request.getfixturevalue("call_go")


def refusals(server, reason):
    text = urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=60).read().decode()
    return float(re.search(rf'^berth_requests_rejected_total{{[^}}]*reason="{reason}"}} (\S+)$', text, re.M).group(1))


def test_a_retry_waits_as_long_as_the_server_says(server, call):
    """By its own policy the client would wait for an hour."""
    before = refusals(server, "tenant_request_rate")
    for _ in range(25):  # a slow client may stay below the rate
        assert call(server, "3600s", "slow", CALLS) == ["OK"] * CALLS
        if refusals(server, "tenant_request_rate") > before:
            return
    pytest.fail("no call came too soon")


def test_what_can_never_succeed_is_not_repeated(server, call):
    """By its own policy the client would try five times, within milliseconds."""
    before = refusals(server, "tenant_cache")
    assert call(server, "0.001s", "small", 1) == ["RESOURCE_EXHAUSTED"]
    assert refusals(server, "tenant_cache") == before + 1
