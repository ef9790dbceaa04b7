"""A client that speaks HTTP/2 by hand: sends requests in part, and reads answers or not, as a test wants it."""

import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
FIRST_WINDOW = 65535


def literal(name, value):
    """A header without compression (HPACK, "literal header field without indexing")."""
    name, value = name.encode(), value.encode()
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


class RawConnection:
    """One connection. `reset` has the streams that the server has ended, `closed` says whether it left."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.address = address
        self.buffer = b""
        self.window = FIRST_WINDOW
        self.first_window = FIRST_WINDOW
        self.windows = {}
        self.reset = set()
        self.closed = False
        self.max_frame = 16384
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self.frame(SETTINGS, 0, 0, b""))

    @staticmethod
    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

    def begin(self, stream, path, announced):
        """Starts a call whose message has `announced` bytes."""
        headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", self.address),
                   ("content-type", "application/grpc"), ("te", "trailers")]
        self.socket.sendall(self.frame(HEADERS, 4, stream, b"".join(literal(*header) for header in headers)))
        self.windows[stream] = self.first_window
        self.send(stream, b"\x00" + struct.pack(">I", announced))

    def send(self, stream, data, timeout=0.2):
        """Sends what the server's windows take until it takes no more for `timeout`. Returns the bytes sent."""
        sent = 0
        while sent < len(data) and not self.closed and stream not in self.reset:
            size = min(len(data) - sent, self.window, self.windows[stream], self.max_frame)
            if size <= 0:
                if not self.read(timeout):
                    break
                continue
            self.socket.sendall(self.frame(DATA, 0, stream, data[sent:sent + size]))
            self.window -= size
            self.windows[stream] -= size
            sent += size
            if sent % (1 << 20) < size:
                self.read(0.0)
        return sent

    def read(self, timeout):
        """Takes what the server says; returns whether it said something."""
        self.socket.settimeout(timeout or 1e-6)
        try:
            data = self.socket.recv(1 << 16)
        except (TimeoutError, BlockingIOError):
            return False
        except ConnectionError:
            data = b""
        finally:
            self.socket.settimeout(60)
        self.closed = self.closed or not data
        self.buffer += data
        while len(self.buffer) >= 9:
            length = struct.unpack(">I", b"\x00" + self.buffer[:3])[0]
            if len(self.buffer) < 9 + length:
                break
            kind, flags, stream = self.buffer[3], self.buffer[4], struct.unpack(">I", self.buffer[5:9])[0] & 0x7FFFFFFF
            self.take(kind, flags, stream, self.buffer[9:9 + length])
            self.buffer = self.buffer[9 + length:]
        return bool(data)

    def take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at:at + 6])
                if name == 4:
                    for known in self.windows:
                        self.windows[known] += value - self.first_window
                    self.first_window = value
            self.socket.sendall(self.frame(SETTINGS, 1, 0, b""))
        elif kind == PING and not flags & 1:
            self.socket.sendall(self.frame(PING, 1, 0, payload))
        elif kind == WINDOW_UPDATE:
            more = struct.unpack(">I", payload)[0] & 0x7FFFFFFF
            if stream == 0:
                self.window += more
            else:
                self.windows[stream] = self.windows.get(stream, 0) + more
        elif kind == RST_STREAM or (kind == HEADERS and flags & 1):
            self.reset.add(stream)
        elif kind == GOAWAY:
            self.goaway = payload

    def close(self):
        self.socket.close()
