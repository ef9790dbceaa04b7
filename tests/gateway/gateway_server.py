"""A berth-server with the SMG gateway before it, for tests. Run them with the Python of tests/gateway/requirements.txt."""

import os
import signal
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.insert(0, os.path.join(ROOT, "tests/testing"))
sys.path.insert(0, os.path.join(ROOT, "tools/openai"))
from berth_server import STOP_SECONDS, BerthServer  # noqa: E402
import serve  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
MODEL = "falcon_h1-demo"
SMG = os.path.join(os.path.dirname(sys.executable), "smg")


def end(process):
    """Ends a gateway, by SIGKILL if it does not end by itself."""
    serve.stop(process)
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        serve.stop(process, signal.SIGKILL)
        process.wait(timeout=STOP_SECONDS)


class GatewayServer(BerthServer):
    """`url` is the gateway's. The server's checks are on, so a lost byte ends it."""

    def __init__(self, *flags, gateway_flags=(), model=DEMO):
        super().__init__(model, "--check_integrity", "--poison_cache", *flags)
        self.gateway_flags = gateway_flags

    def __enter__(self):
        super().__enter__()
        self.gateway_log = open(os.path.join(self.folder.name, "gateway.log"), "wb")
        self.gateway = serve.Gateway(SMG, [self.address], flags=self.gateway_flags, output=self.gateway_log)
        try:
            self.gateway.start()
        except BaseException as error:
            self.gateway_log.close()
            with open(self.gateway_log.name, encoding="utf-8", errors="replace") as log:
                print(log.read()[-4000:])
            super().__exit__(type(error), error, None)
            raise
        self.url = self.gateway.url
        return self

    def __exit__(self, kind, *rest):
        end(self.gateway.process)
        self.gateway_log.close()
        super().__exit__(kind, *rest)
