"""The SMG gateway finds servers by the pods that a Kubernetes API lists. The API is a stand-in: fake_kubernetes.py."""

import json
import os
import re
import shlex
import urllib.error
import urllib.request

import pytest

from fake_kubernetes import FakeKubernetes, pod
from gateway_server import DEMO, MODEL, ROOT, SMG, end
from berth_server import BerthServer, wait_until
import serve

QUESTION = {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": "What is 23 + 45?"}]}


def ask(url):
    """The answer's text, or the code of the error; 0: the gateway does not listen yet."""
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(QUESTION).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:
        return 0


@pytest.fixture(scope="module")
def server():
    with BerthServer(DEMO) as server:
        yield server


def documented_flags():
    """The flags of the command in docs/clients.md, after the program."""
    with open(os.path.join(ROOT, "docs/clients.md"), encoding="utf-8") as file:
        (flags,) = re.findall(r"^smg (.*--service-discovery .*)$", file.read(), re.M)
    return shlex.split(flags)


def labels_of_the_chart():
    """The labels that the pods get which deploy/kubernetes/berth.yaml makes."""
    with open(os.path.join(ROOT, "deploy/kubernetes/berth.yaml"), encoding="utf-8") as file:
        (labels,) = re.findall(r"^  template:\n    metadata:\n      labels:\n((?:        \S+: \S+\n)+)", file.read(), re.M)
    return dict(line.split(": ") for line in labels.replace(" " * 8, "").splitlines())


class DiscoveringGateway:
    """A gateway that knows only the servers that the cluster's pods stand for. It is started as docs/clients.md says."""

    def __init__(self, cluster, port, folder):
        kubeconfig = folder / "kubeconfig"
        cluster.kubeconfig(kubeconfig)
        own = serve.free_port()
        self.url = f"http://127.0.0.1:{own}"
        ports = {"--host=0.0.0.0": "--host=127.0.0.1", "--port=8602": f"--port={own}",
                 "--service-discovery-port=8600": f"--service-discovery-port={port}"}
        flags = documented_flags()
        assert set(ports) <= set(flags)
        self.command = [SMG, *(ports.get(flag, flag) for flag in flags), f"--prometheus-port={serve.free_port()}",
                        "--log-level=info"]
        self.environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self.log = folder / "gateway.log"

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.process = serve.spawn(self.command, stdout=log, stderr=log, env=self.environment)
        return self

    def __exit__(self, *_):
        end(self.process)

    def wait_until(self, condition, what):
        def holds():
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            return condition()

        wait_until(holds, lambda: f"{what}; the gateway's log ends with\n{self.log.read_text()[-4000:]}", 300)


def test_a_gateway_finds_ready_pods_and_forgets_those_that_go(server, tmp_path):
    labels = labels_of_the_chart()
    with FakeKubernetes() as cluster:
        cluster.put(pod("another-0", {"app.kubernetes.io/name": "other"}))
        cluster.put(pod("berth-0", labels, ready=False))
        with DiscoveringGateway(cluster, server.ports["grpc"], tmp_path) as gateway:
            gateway.wait_until(lambda: any("watch=" in path for path in cluster.requests), "the gateway to watch")
            gateway.wait_until(lambda: ask(gateway.url), "the gateway to answer")
            assert ask(gateway.url) in (404, 503)
            cluster.put(pod("berth-0", labels))
            gateway.wait_until(lambda: "68" in str(ask(gateway.url)), "the gateway to find the pod")
            cluster.delete("berth-0")
            gateway.wait_until(lambda: ask(gateway.url) in (404, 503), "the gateway to forget the pod")
    server.wait_idle()
