"""tools/openai/serve.py, which `./dev serve --openai` calls: server and gateway start together and end together."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading

import openai
import pytest

from gateway_server import DEMO, MODEL, ROOT, SMG
from berth_server import LIBRARY_PATH, SERVER
import serve

SCRIPT = os.path.join(ROOT, "tools/openai/serve.py")
START_SECONDS = 300


@contextlib.contextmanager
def started(*server_flags, listen="127.0.0.1:0"):
    """The script. A test that fails leaves neither it nor what it has started."""
    command = [sys.executable, SCRIPT, f"--gateway={SMG}", f"--listen={listen}", "--", SERVER, f"--model={DEMO}",
               "--listen=127.0.0.1:0", "--metrics_listen=", *server_flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "LD_LIBRARY_PATH": LIBRARY_PATH}) as process:
        try:
            yield process
        finally:
            kill(process)


def kill(process):
    if process.poll() is None:
        for pid in [process.pid, *children(process)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def base_url(process):
    late = threading.Timer(START_SECONDS, kill, [process])  # ends the output that is read here
    late.start()
    try:
        for line in process.stdout:
            if line.startswith("OpenAI base URL: "):
                return line.split()[-1]
    finally:
        late.cancel()
    raise AssertionError(f"no base URL, or none in {START_SECONDS} s\n{process.stderr.read()}")


def children(process):
    """The server and the gateway."""
    with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="utf-8") as file:
        return [int(pid) for pid in file.read().split()]


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ask(url):
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=300)
    answer = client.chat.completions.create(model=MODEL, temperature=0,
                                            messages=[{"role": "user", "content": "What is 23 + 45?"}])
    return answer.choices[0].message.content


def test_it_prints_a_base_url_that_works_and_ends_both_at_sigterm():
    with started() as process:
        url = base_url(process)
        assert "68" in ask(url)
        pids = children(process)
        assert len(pids) == 2
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
        assert process.returncode == 0
        assert not any(runs(pid) for pid in pids)


@pytest.mark.parametrize("killed", [0, 1], ids=["server", "gateway"])
def test_if_one_ends_so_does_the_other(killed):
    with started() as process:
        base_url(process)
        pids = children(process)
        os.kill(pids[killed], signal.SIGKILL)
        process.communicate(timeout=300)
        assert process.returncode == 1
        assert not any(runs(pid) for pid in pids)


def test_a_server_that_does_not_start_ends_it():
    with started("--max_running=none") as process:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 1 and "the server ended with" in errors


def test_a_bad_address_is_refused():
    with started(listen="8602") as process:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 2 and "--listen: 8602 is not HOST:PORT" in errors


@pytest.fixture
def tenants(tmp_path):
    """A file of tenants with a token."""
    path = tmp_path / "tenants.json"
    token = {"name": "laptop", "sha256": hashlib.sha256(b"secret").hexdigest()}
    path.write_text(json.dumps({"tenants": [{"name": "acme", "tokens": [token]}, {"name": "web"}]}))
    return path


def test_a_server_that_the_gateway_cannot_reach_is_refused_at_once(tenants, tmp_path):
    """The program of the server is not there: it must not be started."""
    flag_file = tmp_path / "flags"
    flag_file.write_text(f"# flags\n--tenants={tenants}\n")
    for flags, reason in [
            ([f"--tenants={tenants}"], f"--tenants={tenants}: it sends no credential, and this file has some"),
            (["--tenants", str(tenants)], f"--tenants={tenants}: it sends no credential, and this file has some"),
            ([f"--flagfile={flag_file}"], f"--tenants={tenants}: it sends no credential, and this file has some"),
            (["--insecure", "--tls_cert=a.crt", "--tls_key=a.key"], "--tls_cert=a.crt: it speaks plaintext"),
            (["--listen=unix:/s"], "--listen=unix:/s: it cannot connect to a Unix socket"),
            (["--gateway_listen=unix:/g"], "--gateway_listen=unix:/g: it cannot connect to a Unix socket")]:
        done = subprocess.run([sys.executable, SCRIPT, "--gateway=/none", "--", "/none", *flags], capture_output=True,
                              text=True, timeout=60)
        assert done.returncode == 2
        assert f"the gateway cannot reach this server by {reason}. Add --gateway_listen=127.0.0.1:0" in done.stderr


def test_the_listener_of_the_gateway_serves_beside_credentials(tenants):
    with started(f"--tenants={tenants}", "--gateway_listen=127.0.0.1:0", "--gateway_tenant=web") as process:
        assert "68" in ask(base_url(process))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
        assert process.returncode == 0


@pytest.mark.parametrize("flags, worker", [
    ([], "127.0.0.1:1"), (["--listen=0.0.0.0:8600"], "127.0.0.1:1"), (["--listen=[::]:8600"], "[::1]:1"),
    (["--listen", "127.0.0.2:0"], "127.0.0.2:1"), (["--listen=unix:/s", "--gateway_listen=[::1]:0"], "[::1]:2")])
def test_the_gateway_gets_the_address_of_its_listener(flags, worker):
    listener = serve.Listener(serve.read_flags(flags))
    assert listener.why_not() is None
    assert listener.worker({"grpc": 1, "gateway": 2}) == worker


def test_tenants_without_credentials_need_no_listener_of_their_own(tmp_path):
    path = tmp_path / "tenants.json"
    for text in ('{"tenants": [{"name": "a", "weight": 2}]}', '{"default": {}}', "not JSON", "[]"):
        path.write_text(text)
        assert serve.Listener({"tenants": str(path)}).why_not() is None
