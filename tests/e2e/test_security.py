"""TLS, tokens and client certificates, as Python clients and berth-cli meet them."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import urllib.request

import grpc
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import BIN, ROOT, BerthServer, DidNotStart, api, generate_request  # noqa: E402
from certificates import Ca  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")


@pytest.fixture(scope="module")
def server_ca(tmp_path_factory):
    return Ca(tmp_path_factory.mktemp("server"), "server-ca")


@pytest.fixture(scope="module")
def client_ca(tmp_path_factory):
    return Ca(tmp_path_factory.mktemp("clients"), "client-ca")


@pytest.fixture(scope="module")
def tls_flags(server_ca):
    cert, key = server_ca.issue("berth", "DNS:localhost,IP:127.0.0.1")
    return [f"--tls_cert={cert}", f"--tls_key={key}"]


def tenants_flag(tmp_path, *tenants):
    path = tmp_path / "tenants.json"
    path.write_text(json.dumps({"tenants": tenants}))
    return f"--tenants={path}"


def token_entry(secret, **fields):
    return {"name": secret, "sha256": hashlib.sha256(secret.encode()).hexdigest(), **fields}


def read(path):
    with open(path, "rb") as file:
        return file.read()


def channel(server, ca, pair=None):
    cert, key = (read(path) for path in pair) if pair else (None, None)
    return grpc.secure_channel(server.address, grpc.ssl_channel_credentials(read(ca.cert), key, cert))


def complete(channel_, token=None):
    with channel_:
        stub = api().inference_pb2_grpc.InferenceStub(channel_)
        metadata = [("authorization", f"Bearer {token}")] if token else []
        return stub.Complete(generate_request(prompt="Hello", max_tokens=4, ignore_eos=True), timeout=60,
                             metadata=metadata)


def refusal(channel_, token=None):
    with pytest.raises(grpc.RpcError) as error:
        complete(channel_, token)
    return error.value.code()


def read_or_reset(connection):
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


def run_cli(*arguments):
    return subprocess.run([os.path.join(BIN, "client/berth-cli"), *arguments], capture_output=True, text=True,
                          timeout=120, check=False)


def test_a_token_over_tls(tmp_path, server_ca, tls_flags):
    tenants = tenants_flag(tmp_path, {"name": "a", "tokens": [token_entry("alice")]})
    # 0.0.0.0: TLS and a token suffice for the network.
    with BerthServer(DEMO, *tls_flags, tenants, "--listen=0.0.0.0:0") as server:
        assert complete(channel(server, server_ca), "alice").usage.completion_tokens == 4
        assert refusal(channel(server, server_ca), "bob") == grpc.StatusCode.UNAUTHENTICATED
        assert refusal(channel(server, server_ca)) == grpc.StatusCode.UNAUTHENTICATED
        with urllib.request.urlopen(f"http://{server.metrics_address}/metrics", timeout=60) as response:
            assert 'reason="unauthenticated"} 2' in response.read().decode()
        assert refusal(grpc.insecure_channel(server.address), "alice") == grpc.StatusCode.UNAVAILABLE
        assert "TLS; callers need a credential of --tenants" in server.log()

        token = tmp_path / "token"
        token.write_text("alice\n")
        connection = [f"--server={server.address}", f"--tls_ca={server_ca.cert}"]
        shown = run_cli("generate", "--prompt=Hello", "--max_tokens=4", *connection, f"--token_file={token}")
        assert shown.returncode == 0 and shown.stdout.strip(), shown.stderr
        refused = run_cli("generate", "--prompt=Hello", *connection)
        assert refused.returncode == 1 and "UNAUTHENTICATED" in refused.stderr


def test_failed_handshakes_do_not_flood_the_log(tmp_path, tls_flags):
    tenants = tenants_flag(tmp_path, {"name": "a", "tokens": [token_entry("alice")]})
    with BerthServer(DEMO, *tls_flags, tenants) as server:
        host, port = server.address.rsplit(":", 1)
        for _ in range(40):
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.sendall(b"no handshake" * 100)
                while read_or_reset(connection):
                    pass
        lines = [line for line in server.log().splitlines() if "andshake failed" in line]
        assert 1 <= len(lines) < 20, server.log()


def test_mutual_tls(tmp_path, server_ca, client_ca, tls_flags):
    flags = [*tls_flags, f"--tls_client_ca={client_ca.cert}", "--health_listen=127.0.0.1:0"]
    pair = client_ca.issue("pod.a")
    with BerthServer(DEMO, *flags, "--listen=0.0.0.0:0") as server:
        assert complete(channel(server, server_ca, pair)).usage.completion_tokens == 4
        assert refusal(channel(server, server_ca)) == grpc.StatusCode.UNAVAILABLE
        assert refusal(channel(server, server_ca, server_ca.issue("pod.x"))) == grpc.StatusCode.UNAVAILABLE
        assert "TLS; clients need a certificate of --tls_client_ca" in server.log()
    # Two tenants by their certificates.
    tenants = tenants_flag(tmp_path, *({"name": name, "certificates": [{"name": name, "common_name": f"pod.{name}"}]}
                                       for name in "ab"))
    with BerthServer(DEMO, *flags, tenants) as server:
        assert complete(channel(server, server_ca, pair)).usage.completion_tokens == 4
        assert complete(channel(server, server_ca, client_ca.issue("pod.b"))).usage.completion_tokens == 4
        assert refusal(channel(server, server_ca, client_ca.issue("pod.c"))) == grpc.StatusCode.UNAUTHENTICATED
        with grpc.insecure_channel(f"127.0.0.1:{server.ports['health']}") as health:
            check = health.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"\x0a\x09readiness", timeout=60) == b"\x08\x01"  # SERVING
            with pytest.raises(grpc.RpcError) as error:
                health.unary_unary("/berth.v1.Control/GetLoad")(b"", timeout=60)
            assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_what_would_be_open_does_not_start(tls_flags):
    for flags, part in (([], "set --tls_cert and --tls_key"), (tls_flags, "set --tls_client_ca"),
                        (["--listen=127.0.0.1:0", "--metrics_listen=0.0.0.0:0"], "--metrics_listen: 0.0.0.0:0")):
        with pytest.raises(DidNotStart, match="or set --insecure if this is meant") as error:
            BerthServer(DEMO, "--listen=0.0.0.0:0", *flags).__enter__()
        assert part in str(error.value)
    with BerthServer(DEMO, "--listen=0.0.0.0:0", "--insecure") as server:
        assert complete(grpc.insecure_channel(server.address)).usage.completion_tokens == 4
        assert "--insecure: the network can use the server without a credential, and read along" in server.log()
