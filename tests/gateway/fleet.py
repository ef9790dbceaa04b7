"""Several berth-servers behind one SMG gateway. Each can be stopped and started again on its address."""

import contextlib
import json
import os
import re
import signal
import tempfile
import urllib.request

from berth_server import fixed_port, wait_until
from gateway_server import DEMO, SMG, BerthServer, end, serve

# The gateway notices within a second that a server drains, and that one is back.
QUICK = ["--health-check-interval-secs=1", "--health-success-threshold=1", "--health-failure-threshold=1",
         "--cb-timeout-duration-secs=1"]


class Server(BerthServer):
    """Keeps its address from start to start. `starts` counts them."""

    def __init__(self, model, *flags):
        self.starts = 0
        super().__init__(model, f"--listen=127.0.0.1:{fixed_port()}", *flags)

    def __enter__(self):
        self.starts += 1
        return super().__enter__()

    def requests(self):
        """{id: how it ended, or None} of the requests since this start. Needs --log_level=debug."""
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        found = {name: None for name in re.findall(r"request began: id=\"?([\w.-]+)", text)}
        found.update(re.findall(r"request ended: id=\"?([\w.-]+)\"? .*?reason=(\w+)", text))
        return found

    def halt(self):
        """Stops the process where it is, until SIGCONT."""
        self.process.send_signal(signal.SIGSTOP)

        def stopped():
            with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
                return file.read().rpartition(")")[2].split()[0] == "T"

        wait_until(stopped, "the process to stop")

    def drain(self, while_it_drains):
        """Sends SIGTERM, also to a process that is halted, calls the function, and waits for the end. Returns the requests
        of this start."""
        self.process.send_signal(signal.SIGTERM)
        self.process.send_signal(signal.SIGCONT)
        while_it_drains()
        code = self.process.wait(timeout=600)
        served = self.requests()
        self.__exit__(None)
        assert code == 0
        return served


class Fleet:
    """`servers` behind the gateway at `url`."""

    def __init__(self, size, *flags, gateway_flags=(), model=DEMO):
        self.servers = [Server(model, *flags) for _ in range(size)]
        self.gateway_flags = [*QUICK, *gateway_flags]

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="berth-fleet-"))
            for server in self.servers:
                server.__enter__()
                stack.push(lambda *error, server=server: self.leave(server, *error))
            output = stack.enter_context(open(os.path.join(folder, "gateway.log"), "wb"))
            gateway = serve.Gateway(SMG, [server.address for server in self.servers], flags=self.gateway_flags, output=output)
            gateway.start()
            stack.callback(end, gateway.process)
            self.url, self.metrics_url = gateway.url, gateway.metrics_url
            self.wait_healthy(len(self.servers))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        return self.stack.__exit__(*error)

    @staticmethod
    def leave(server, *error):
        if os.path.exists(server.log_path):  # else it was not started again
            server.__exit__(*error)

    def healthy(self):
        """The addresses that the gateway holds for healthy."""
        with urllib.request.urlopen(f"{self.url}/workers", timeout=60) as response:
            workers = json.load(response)["workers"]
        return {worker["url"].removeprefix("grpc://") for worker in workers if worker["is_healthy"]}

    def metric(self, name, labels):
        """The sum of the gateway's metric over the series whose labels match the regular expression."""
        with urllib.request.urlopen(self.metrics_url, timeout=60) as response:
            text = response.read().decode()
        found = re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.M)
        return sum(float(value) for series, value in found if re.search(labels, series))

    def wait_healthy(self, count):
        wait_until(lambda: len(self.healthy()) == count, lambda: f"{count} healthy servers: {self.healthy()}")
