"""Certificates for tests of TLS, made by the openssl command when they run."""

import os
import subprocess


def _openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=120)


class Ca:
    """A certificate authority; its files are in `folder`."""

    def __init__(self, folder, name):
        self.folder = str(folder)
        self.cert = os.path.join(self.folder, f"{name}.crt")
        self.key = os.path.join(self.folder, f"{name}.key")
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1",
                 "-subj", f"/CN={name}", "-keyout", self.key, "-out", self.cert)

    def issue(self, name, san=None):
        """Paths of a certificate and its key."""
        base = os.path.join(self.folder, name)
        _openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                 "-subj", f"/CN={name}", "-keyout", f"{base}.key", "-out", f"{base}.csr")
        extensions = []
        if san:
            with open(f"{base}.ext", "w", encoding="utf-8") as file:
                file.write(f"subjectAltName={san}\n")
            extensions = ["-extfile", f"{base}.ext"]
        _openssl("x509", "-req", "-days", "1", "-in", f"{base}.csr", "-CA", self.cert, "-CAkey", self.key,
                 "-CAcreateserial", "-out", f"{base}.crt", *extensions)
        return f"{base}.crt", f"{base}.key"
