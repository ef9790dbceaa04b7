"""What operators do to a running server: drain it, flush its cache, erase a tenant, draw its last steps. And what the log
never holds."""

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import stat
import subprocess
import sys

import grpc
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import (  # noqa: E402
    BIN, ROOT, BerthServer, api, check_it_goes_on, endless_request, endless_server, generate_request, wait_until)

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
CLI = os.path.join(BIN, "client/berth-cli")


def prompt(length, seed):
    generator = random.Random(seed)
    return [generator.randrange(3, 400) for _ in range(length)]


def complete(server, ids, **fields):
    return server.inference.Complete(generate_request(ids=ids, max_tokens=8, ignore_eos=True, **fields), timeout=120)


def cli(server, *arguments):
    return subprocess.run([CLI, *arguments, f"--server={server.address}"], capture_output=True, text=True, timeout=300)


def files_of(folder, suffix):
    found = {}
    for path in folder.glob(f"*{suffix}"):
        with contextlib.suppress(FileNotFoundError):  # deleted since
            found[path.name] = path.read_bytes()
    return found


def cached(load):
    return sum(pool.cached_units for pool in load.cache.pools)


@pytest.fixture
def umask_0():
    before = os.umask(0)
    yield
    os.umask(before)


def test_erase_leaves_nothing_of_a_tenant(tmp_path, umask_0):
    sessions, tier = tmp_path / "sessions", tmp_path / "tier"
    flags = ["--arena=12MiB", "--check_integrity", "--host_tier=64MiB", "--tier_idle=0s", "--always_copy",
             f"--disk_tier={tier}", f"--session_dir={sessions}"]
    prompts = {tenant: prompt(300, seed) for seed, tenant in enumerate(("alice", "bob"))}
    with endless_server(DEMO, *flags) as server:
        for tenant, ids in prompts.items():
            complete(server, ids, cache_salt=tenant, session_id=f"of-{tenant}")
        wait_until(lambda: server.load().disk_tier_bytes > 0 and len(files_of(sessions, ".session")) == 2,
                   "a file of each session")
        wait_until(lambda: {b"alice", b"bob"} <= {salt for salt in (b"alice", b"bob")
                                                  for data in files_of(tier, ".prefix").values() if salt in data},
                   lambda: f"a prefix's file of each tenant: {sorted(files_of(tier, ''))} {server.load()}")
        for folder, suffix in ((sessions, ".session"), (tier, ".prefix")):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.glob(f"*{suffix}")}
            assert modes == {0o600}
        running = server.inference.Generate(
            endless_request(ids=prompt(20, 9), cache_salt="alice", session_id="running"), timeout=600)
        next(running)
        result = cli(server, "erase", "--tenant=alice")
        assert result.returncode == 0, result.stderr
        assert "requests ended: 1\nsessions deleted: 2, " in result.stdout
        assert [message.finish_reason for message in running][-1] == api().inference_pb2.FINISH_REASON_CANCELLED
        for folder, suffix in ((sessions, ".session"), (tier, ".prefix")):
            left = files_of(folder, suffix)
            assert left and not any(b"alice" in data for data in left.values())
            assert all(b"bob" in data for data in left.values())
        server.wait_idle()
        wait_until(lambda: server.load().disk_tier_bytes == sum(map(len, files_of(tier, ".prefix").values())),
                   "files of as many bytes as the load tells")
        assert complete(server, [*prompts["alice"], 5, 6], cache_salt="alice").usage.cached_tokens == 0
        assert complete(server, [*prompts["bob"], 5, 6], cache_salt="bob").usage.cached_tokens > 0
        for tenant in prompts:
            assert cli(server, "erase", f"--tenant={tenant}").returncode == 0
        load = server.wait_idle()
        assert cached(load) == load.host_tier_prefix_bytes == load.disk_tier_bytes == 0
        free = load.cache.free_bytes + sum(pool.free_bytes for pool in load.cache.pools)
        assert free + load.cache.overhead_bytes == load.cache.arena_bytes
        assert not files_of(sessions, ".session") and not files_of(tier, ".prefix")
    assert not files_of(sessions, ".session") and not files_of(tier, ".prefix")
    with endless_server(DEMO, *flags) as server:
        assert complete(server, [*prompts["alice"], 5, 6], cache_salt="alice").usage.cached_tokens == 0


def test_flush_drops_all_prefixes():
    with BerthServer(DEMO, "--max_sequence_tokens=2048", "--check_integrity") as server:
        ids = prompt(300, 1)
        complete(server, ids)
        longer = [*ids, 5, 6]
        assert complete(server, longer).usage.cached_tokens > 0
        assert cached(server.wait_idle()) > 0
        result = cli(server, "flush")
        assert result.returncode == 0 and "prefixes dropped: " in result.stdout, result.stderr
        assert cached(server.load()) == 0
        assert complete(server, longer).usage.cached_tokens == 0


def test_drain_finishes_requests_and_exits():
    with endless_server(DEMO, "--drain_grace=10m") as server:
        endless = server.inference.Generate(endless_request(ids=prompt(20, 8), request_id="endless"), timeout=600)
        next(endless)
        running = server.inference.Generate(generate_request(ids=prompt(20, 9), max_tokens=300, ignore_eos=True),
                                            timeout=600)
        next(running)
        result = cli(server, "drain")
        # By then the one that ends by itself may have done so.
        assert re.fullmatch("the server drains: [12] requests have 600 s to end\n", result.stdout), result
        with pytest.raises(grpc.RpcError) as refused:
            complete(server, prompt(5, 1))
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert sum(len(message.token_ids) for message in running) >= 298
        check_it_goes_on(server, endless)
        server.control.Abort(api().control_pb2.AbortRequest(request_ids=["endless"]), timeout=60)
        assert [message.finish_reason for message in endless][-1] == api().inference_pb2.FINISH_REASON_CANCELLED
        assert server.process.wait(timeout=120) == 0


SECRETS = {"alice": "alices-secret-8d41", "ops": "operators-secret-77ab"}
MARKS = ["QWMARKPROMPT", "QWMARKCHAT", "QWMARKSTOP", "QWMARKSCHEMA", "QWMARKTEXT", "QWMARKBAD", "QWMARKTEMPLATE",
         "QWMARKSECRET"]


def test_the_log_holds_no_prompt_no_output_and_no_secret(tmp_path):
    tokens = {name: {"name": f"{name}-token", "sha256": hashlib.sha256(secret.encode()).hexdigest(),
                     "roles": ["user"] if name == "alice" else ["operator"]} for name, secret in SECRETS.items()}
    tenants = tmp_path / "tenants.json"
    tenants.write_text(json.dumps({"tenants": [{"name": name, "tokens": [token]} for name, token in tokens.items()]}))
    audit_log = tmp_path / "audit.log"
    flags = [f"--tenants={tenants}", "--log_level=trace", f"--audit_log={audit_log}", "--max_sequence_tokens=256",
             f"--session_dir={tmp_path}/sessions", f"--disk_tier={tmp_path}/tier", "--host_tier=16MiB", "--tier_idle=0s"]
    with BerthServer(DEMO, *flags) as server:
        outputs = talk(server)
        log_path = server.log_path
        # A token in the place of its hash.
        tenants.write_text(json.dumps({"tenants": [{"name": "alice",
                                                    "tokens": [{"name": "a", "sha256": SECRETS["alice"]}]}]}))
        server.wait_for_log("the former tenants and credentials stay")
        server.stop()
        with open(log_path, "rb") as file:
            text = (file.read() + audit_log.read_bytes()).decode()
    assert "request began" in text and "refused credential" in text and "operator call" in text
    assert len(outputs) >= 4 and all(len(output) >= 8 for output in outputs)
    for hidden in [*MARKS[:-1], *SECRETS.values(), "QWMARKSECRET-as-token", *outputs]:
        assert hidden not in text, f"{hidden!r} is in the log"


def talk(server):
    """Calls of all kinds, right and wrong; returns what the model said."""
    pb, control, sessions = api().inference_pb2, api().control_pb2, api().sessions_pb2
    outputs = []

    def call(stub, request, secret=SECRETS["alice"]):
        metadata = [("authorization", f"Bearer {secret}")] if secret else []
        try:
            return stub(request, timeout=120, metadata=metadata)
        except grpc.RpcError as error:
            return error

    def succeed(stub, request, secret=SECRETS["alice"]):
        answer = call(stub, request, secret)
        assert not isinstance(answer, grpc.RpcError), answer
        return answer

    def complete_with(secret=SECRETS["alice"], **fields):
        answer = call(server.inference.Complete, generate_request(**{"max_tokens": 24, "ignore_eos": True, **fields}),
                      secret)
        if isinstance(answer, pb.GenerateResponse) and answer.text:
            outputs.append(answer.text)
        return answer

    assert complete_with(prompt="Once upon a time QWMARKPROMPT").text
    assert complete_with(chat="Tell me a story. QWMARKCHAT", session_id="kept").text
    stops = generate_request(prompt="Lily the fox", max_tokens=24, ignore_eos=True)
    stops.stopping.stop.append("QWMARKSTOP")
    outputs.append(succeed(server.inference.Complete, stops).text)
    template = generate_request(chat="Tell me a story. QWMARKCHAT", max_tokens=24, ignore_eos=True)
    template.chat.template_variables_json = '{"mark": "QWMARKTEMPLATE"}'
    outputs.append(succeed(server.inference.Complete, template).text)
    template.chat.template_variables_json = '{"mark": "QWMARKTEMPLATE'
    assert call(server.inference.Complete, template).code() == grpc.StatusCode.INVALID_ARGUMENT
    template.chat.ClearField("template_variables_json")
    template.chat.tools_json = '[{"type": "function", "function": {"name": "QWMARKTEMPLATE"}}]'
    refused = call(server.inference.Complete, template)  # the model's template has no place for tools
    assert refused.code() == grpc.StatusCode.INVALID_ARGUMENT and "tools" in refused.details(), refused
    schema = generate_request(prompt="A record:", max_tokens=24)
    schema.structure.json_schema = json.dumps({"type": "object", "properties": {"QWMARKSCHEMA": {"type": "integer"}},
                                               "required": ["QWMARKSCHEMA"]})
    succeed(server.inference.Complete, schema)
    schema.structure.json_schema = '{"type": "QWMARKBAD'
    assert call(server.inference.Complete, schema).code() == grpc.StatusCode.INVALID_ARGUMENT
    schema.structure.regex = "(QWMARKBAD"
    assert call(server.inference.Complete, schema).code() == grpc.StatusCode.INVALID_ARGUMENT
    assert complete_with(prompt="QWMARKBAD " * 4000).code() == grpc.StatusCode.INVALID_ARGUMENT
    assert complete_with(chat=[("QWMARKBAD", "QWMARKCHAT")], max_tokens=100000).code() == grpc.StatusCode.INVALID_ARGUMENT
    succeed(server.inference.Tokenize, pb.TokenizeRequest(text="QWMARKTEXT"))
    stream = server.inference.Generate(generate_request(prompt="The bear QWMARKPROMPT", max_tokens=24, ignore_eos=True),
                                       timeout=120, metadata=[("authorization", f"Bearer {SECRETS['alice']}")])
    outputs.append("".join(message.text for message in stream))
    resumed = server.sessions.Resume(sessions.ResumeSessionRequest(session_id="kept"), timeout=120,
                                     metadata=[("authorization", f"Bearer {SECRETS['alice']}")])
    outputs.append("".join(message.text for message in resumed))
    for secret in (None, "QWMARKSECRET-as-token"):
        refused = complete_with(secret, prompt="QWMARKPROMPT")
        assert refused.code() == grpc.StatusCode.UNAUTHENTICATED, refused
    # gRPC may close the connection of a header that is too long.
    with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as other:
        refused = call(api().inference_pb2_grpc.InferenceStub(other).Complete, generate_request(prompt="QWMARKPROMPT"),
                       "QWMARKSECRET-as-token" * 600)
        assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, refused
    succeed(server.control.FlushCache, control.FlushCacheRequest(), SECRETS["ops"])
    assert call(server.control.FlushCache, control.FlushCacheRequest()).code() == grpc.StatusCode.PERMISSION_DENIED
    succeed(server.control.EraseTenant, control.EraseTenantRequest(tenant="alice"), SECRETS["ops"])
    return outputs


def test_the_last_steps_as_a_trace_and_after_a_crash(tmp_path):
    """A server that ends by a fault leaves its last steps, and its supervisor sees the fault."""
    with BerthServer(DEMO, f"--crash_dir={tmp_path}", "--fail_step_every=7", expect_clean_exit=False) as server:
        server.inference.Complete(generate_request(prompt="x", max_tokens=5, ignore_eos=True), timeout=120)
        with pytest.raises(grpc.RpcError):
            server.inference.Complete(generate_request(prompt="y", max_tokens=5, ignore_eos=True), timeout=120)
        get_steps, request = server.control.GetSteps, api().control_pb2.GetStepsRequest
        # The engine completes the record of a step when it has sent the answers.
        wait_until(lambda: get_steps(request(last=1), timeout=60).steps[0].free_bytes, "the last step's record")
        steps = get_steps(request(), timeout=60).steps
        assert [step.number for step in steps] == list(range(1, len(steps) + 1))
        assert [step.failed for step in steps[:7]] == [0, 0, 0, 0, 0, 0, 1]
        assert steps[0].tokens > 0 and steps[0].run_us > 0 and steps[1].decode_rows == steps[1].rows == 1
        assert get_steps(request(last=2), timeout=60).steps[0] == steps[-2]
        live, dead = tmp_path / "live.json", tmp_path / "dead.json"
        assert cli(server, "trace", f"--out={live}").returncode == 0
        server.process.send_signal(signal.SIGSEGV)
        assert server.process.wait(timeout=120) == -signal.SIGSEGV
        crash_file = tmp_path / f"berth-{server.process.pid}.steps"
        subprocess.run([CLI, "trace", f"--from={crash_file}", f"--out={dead}"], check=True, timeout=60)
        assert json.loads(live.read_text()) == json.loads(dead.read_text())
        assert sum(event["name"] == "failed step" for event in json.loads(live.read_text())["traceEvents"]) == 1
