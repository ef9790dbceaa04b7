"""TLS, client certificates and bearer tokens, against a fake server with certificates made by openssl."""

import asyncio

import pytest
from berth_client import AsyncClient, BerthError, Client, Tls, UnavailableError
from berth_client._connection import is_local
from tls_files import make_certificates, server_credentials
from fake_server import FakeServer


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


def call_async(target, **settings):
    async def run():
        async with AsyncClient(target, **settings) as client:
            await client.load()

    asyncio.run(run())


def test_tls_with_a_ca_by_path_and_by_bytes(certificates):
    with FakeServer(server_credentials(certificates)) as server:
        for ca in (certificates / "ca.pem", str(certificates / "ca.pem"), (certificates / "ca.pem").read_bytes()):
            with Client(server.address, tls=Tls(ca=ca), token="secret") as client:
                client.load()
        call_async(server.address, tls=Tls(ca=certificates / "ca.pem"), token="secret")
        assert [metadata["authorization"] for _, _, metadata, _ in server.requests] == ["Bearer secret"] * 4


@pytest.mark.parametrize("tls", ["other.pem", True, False])
def test_a_server_that_is_not_trusted_gets_nothing(certificates, tls):
    with FakeServer(server_credentials(certificates)) as server:
        settings = Tls(ca=certificates / tls) if isinstance(tls, str) else tls
        with Client(server.address, tls=settings) as client, pytest.raises(UnavailableError):
            client.load()
        assert server.requests == []


def test_a_client_certificate(certificates):
    with FakeServer(server_credentials(certificates, client_ca="ca.pem")) as server:
        tls = Tls(ca=certificates / "ca.pem", certificate=certificates / "client.pem", key=certificates / "client.key")
        with Client(server.address, tls=tls) as client:
            client.load()
        call_async(server.address, tls=tls)
        with Client(server.address, tls=Tls(ca=certificates / "ca.pem")) as client, pytest.raises(UnavailableError):
            client.load()
        assert len(server.requests) == 2


def test_a_certificate_without_its_key_is_refused(certificates):
    with pytest.raises(ValueError, match="tls: certificate and key belong together; give both"):
        Client(tls=Tls(certificate=certificates / "client.pem"))


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match="/no/ca.pem"):
        Client(tls=Tls(ca="/no/ca.pem"))


LOCAL = ["127.0.0.1:8600", "127.9.9.9:1", "localhost:8600", "localhost", "[::1]:8600", "ipv4:127.0.0.1:8600",
         "ipv6:[::1]:8600", "dns:localhost:8600", "dns:///localhost:8600",
         "dns:///127.0.0.1:8600", "unix:/run/berth.sock", "unix:///run/berth.sock", "unix-abstract:berth"]
REMOTE = ["10.0.0.1:8600", "berth.example:8600", "localhost.example:8600", "127.0.0.1.example:8600", "0.0.0.0:8600",
          "[::]:8600", "[2001:db8::1]:8600", "dns:///berth.example:8600", "ipv4:10.0.0.1:8600", "xds:///berth",
          "ipv4:127.0.0.1:8600,10.0.0.1:8600", "dns://10.0.0.1/localhost:8600", "unix.example:8600", ""]


def test_what_stays_on_this_machine():
    assert [target for target in LOCAL if not is_local(target)] == []
    assert [target for target in REMOTE if is_local(target)] == []


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_tokens_are_not_sent_in_plain_text(client):
    for target in REMOTE:
        with pytest.raises(ValueError) as error:
            client(target, token="secret")
        assert str(error.value) == f"token: it would be sent in plain text to {target}; use tls"
        with pytest.raises(ValueError, match="^metadata: authorization: it would be sent in plain text"):
            client(target, metadata={"Authorization": "Bearer secret"})
    Client("berth.example:8600", token="secret", tls=True).close()


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("tls", [None, 0, 1, "", "/tmp/ca.pem", {"ca": "/tmp/ca.pem"}, b"pem", Tls])
def test_what_is_no_tls_is_refused_and_not_taken_for_it(client, tls):
    for target in ("berth.example:8600", "127.0.0.1:8600"):
        with pytest.raises(TypeError) as error:
            client(target, tls=tls, token="secret")
        assert str(error.value) == f"tls: {type(tls).__name__} is none of True, False and Tls(...)"


@pytest.mark.parametrize("metadata", ["x", [("name", "value")], 3])
def test_what_is_no_metadata_is_named(server, client, metadata):
    error = f"^metadata: {type(metadata).__name__} is no mapping of names to values$"
    for kind in (Client, AsyncClient):
        with pytest.raises(TypeError, match=error):
            kind(server.address, metadata=metadata)
    with pytest.raises(TypeError, match=error):
        client.load(metadata=metadata)


def test_tokens_of_single_calls_are_not_sent_in_plain_text():
    with Client("berth.example:8600") as client, pytest.raises(ValueError, match="plain text to berth.example:8600"):
        client.load(metadata={"authorization": "Bearer secret"})


def test_tokens_over_loopback_and_a_unix_socket(tmp_path):
    for address in ("127.0.0.1:0", f"unix:{tmp_path}/berth.sock"):
        with FakeServer(address=address) as server:
            tokens = iter(["first", "second"])
            with Client(server.address, token=lambda: next(tokens), metadata={"berth-tenant": "acme"}) as client:
                client.load()
                client.load(metadata={"berth-tenant": "other"})
            sent = [(metadata["authorization"], metadata["berth-tenant"]) for _, _, metadata, _ in server.requests]
            assert sent == [("Bearer first", "acme"), ("Bearer second", "other")]


def test_a_proxy_of_the_environment_does_not_see_what_stays_here(monkeypatch):
    """The proxy is a port that nothing listens on: a call that went there would fail."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with FakeServer() as server, Client(server.address) as client:
        client.load()
        with pytest.raises(BerthError), Client(server.address, channel_options=[("grpc.enable_http_proxy", 1)]) as other:
            other.load()
