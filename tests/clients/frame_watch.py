"""A proxy before a server that counts its clients' connections and the HTTP/2 frames on them, whatever the client is."""

import collections
import os
import socket
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import join  # noqa: E402
from raw_http2 import GOAWAY, PING, RST_STREAM  # noqa: E402

PREFACE_BYTES = 24  # of a client, before its first frame
HEADER_BYTES = 9
ACK = 1


class FrameWatch:
    """`address` is the proxy's. The counts are complete once the `with` block of the clients has ended."""

    def __init__(self, server_address):
        host, port = server_address.rsplit(":", 1)
        self.server = (host, int(port))
        self.connections = 0
        self.frames = {"client": collections.Counter(), "server": collections.Counter()}
        self.threads = []

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.start(self.accept)
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        join(self.threads, "the connections to end")

    def start(self, function, *arguments):
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(self.server, timeout=120)
            server.settimeout(None)
            for connection in (client, server):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.start(self.forward, client, server, "client", PREFACE_BYTES)
            self.start(self.forward, server, client, "server", 0)

    def forward(self, source, target, sender, skip):
        """Passes bytes on, and counts frames: (type, whether it is an acknowledgement)."""
        buffer = b""
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
                buffer += data
                if skip and len(buffer) >= skip:
                    buffer, skip = buffer[skip:], 0
                while not skip and len(buffer) >= HEADER_BYTES:
                    end = HEADER_BYTES + int.from_bytes(buffer[:3], "big")
                    if len(buffer) < end:
                        break
                    kind = buffer[3]
                    self.frames[sender][kind, kind == PING and bool(buffer[4] & ACK)] += 1
                    buffer = buffer[end:]
        except OSError:
            pass  # a side has closed its connection
        for connection in (source, target):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def goaways(self):
        """GOAWAY frames of the server."""
        return self.frames["server"][GOAWAY, False]

    def pings(self, sender):
        return self.frames[sender][PING, False]

    def answered(self, sender):
        """Pings of the other side that `sender` answered."""
        return self.frames[sender][PING, True]

    def resets(self):
        """Streams that the clients reset."""
        return self.frames["client"][RST_STREAM, False]
