"""The part of the Kubernetes API that finds pods: list and watch, as a cluster answers them to the SMG gateway."""

import http.server
import json
import queue
import threading
import urllib.parse

LIST_PATHS = ("/api/v1/pods", "/api/v1/namespaces/{namespace}/pods")
EVENT_SECONDS = 60


def pod(name, labels, ready=True, namespace="default", ip="127.0.0.1"):
    """A running pod of one container, with the fields that a cluster fills in."""
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-of-{name}", "labels": labels,
                     "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "berth", "image": "berth"}]},
        "status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
                   "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}}


def selected(labels, selector):
    """Whether the labels match a selector of equalities, key=value,key=value."""
    wanted = [part.partition("=") for part in selector.replace("==", "=").split(",") if part]
    return all(labels.get(key) == value for key, _, value in wanted)


class FakeKubernetes:
    """`with` serves the API on a free port. `requests` are the paths with their queries, in order."""

    def __init__(self):
        self.pods, self.history, self.watchers, self.requests = {}, [], [], []
        self.version = 1
        self.lock = threading.Lock()

    def __enter__(self):
        cluster = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                cluster.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        with self.lock:
            for _, events in self.watchers:
                events.put(None)
        self.server.shutdown()
        self.server.server_close()

    def kubeconfig(self, path):
        """Writes what a client of this cluster has in its KUBECONFIG."""
        address = f"http://127.0.0.1:{self.server.server_address[1]}"
        named = {"apiVersion": "v1", "kind": "Config", "current-context": "fake",
                 "clusters": [{"name": "fake", "cluster": {"server": address}}],
                 "users": [{"name": "fake", "user": {"token": "none"}}],
                 "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": "default"}}]}
        path.write_text(json.dumps(named))

    def put(self, new):
        """Adds a pod, or changes it."""
        name = new["metadata"]["name"]
        self.tell("MODIFIED" if name in self.pods else "ADDED", new)

    def delete(self, name):
        self.tell("DELETED", self.pods[name])

    def tell(self, kind, changed):
        with self.lock:
            self.version += 1
            changed["metadata"]["resourceVersion"] = str(self.version)
            if kind == "DELETED":
                del self.pods[changed["metadata"]["name"]]
            else:
                self.pods[changed["metadata"]["name"]] = changed
            event = {"type": kind, "object": json.loads(json.dumps(changed))}
            self.history.append(event)
            for selector, events in self.watchers:
                if selected(changed["metadata"]["labels"], selector):
                    events.put(event)

    def answer(self, handler):
        url = urllib.parse.urlsplit(handler.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        with self.lock:
            self.requests.append(handler.path)
        if url.path not in [path.format(namespace="default") for path in LIST_PATHS]:
            return self.send(handler, 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                                            "reason": "NotFound", "message": f"no {url.path} here"})
        selector = query.get("labelSelector", "")
        if query.get("watch") in ("1", "true"):
            return self.watch(handler, selector, int(query.get("resourceVersion") or 0))
        with self.lock:
            pods = [each for each in self.pods.values() if selected(each["metadata"]["labels"], selector)]
            body = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": str(self.version)}, "items": pods}
        return self.send(handler, 200, body)

    @staticmethod
    def send(handler, code, body):
        data = json.dumps(body).encode()
        handler.send_response(code)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def watch(self, handler, selector, version):
        """Writes each event after `version` as a line, until the client leaves or the cluster ends."""
        events = queue.Queue()
        with self.lock:
            for event in self.history:
                metadata = event["object"]["metadata"]
                if int(metadata["resourceVersion"]) > version and selected(metadata["labels"], selector):
                    events.put(event)
            self.watchers.append((selector, events))
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        try:
            while (event := events.get(timeout=EVENT_SECONDS)) is not None:
                line = json.dumps(event).encode() + b"\n"
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                handler.wfile.flush()
            handler.wfile.write(b"0\r\n\r\n")
        except (OSError, queue.Empty):
            handler.close_connection = True
        finally:
            with self.lock:
                self.watchers.remove((selector, events))
