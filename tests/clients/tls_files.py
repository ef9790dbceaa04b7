"""Certificates made by openssl, and the credentials of a server that uses them."""

import subprocess

import grpc


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_certificates(folder):
    """ca.pem, and server.pem and client.pem that it signs, each with its key; other.pem is a CA that signs nothing."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for ca in ("ca", "other"):
        openssl(folder, "req", "-x509", *curve, "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}")
    for name in ("server", "client"):
        (folder / f"{name}.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        openssl(folder, "req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-extfile", f"{name}.ext")


def server_credentials(folder, client_ca=None):
    """With `client_ca`, the server wants a certificate of the client that this CA has signed."""
    pair = ((folder / "server.key").read_bytes(), (folder / "server.pem").read_bytes())
    ca = (folder / client_ca).read_bytes() if client_ca else None
    return grpc.ssl_server_credentials([pair], ca, client_ca is not None)
