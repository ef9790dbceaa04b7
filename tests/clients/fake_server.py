"""A server of berth.v1 that answers what a test tells it, and keeps what it was sent.

It speaks by stubs that grpcio-tools makes of proto/, not by those of the client.
"""

import threading
from concurrent import futures

import grpc
from berth_server import api, wait_until


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, code, message, trailing=()):
        super().__init__(message)
        self.code, self.message, self.trailing = code, message, trailing


class FakeServer(grpc.GenericRpcHandler):
    """`answers` holds what the next calls get: a Refusal, a message, or for a stream a list of messages. A call that comes
    to `HOLD` stays until the client leaves. Without answers, a call gets what `others` makes of its request, by the name
    of the method, or an empty message. The end of a call sets `left`."""

    HOLD = object()

    def __init__(self, credentials=None, address="127.0.0.1:0"):
        self.answers = []
        self.others = {}
        self.requests = []  # (method, message, metadata, seconds left)
        self.left = threading.Event()
        self.server = grpc.server(futures.ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers((self,))
        port = (self.server.add_secure_port(address, credentials) if credentials
                else self.server.add_insecure_port(address))
        self.address = address if address.startswith("unix:") else f"127.0.0.1:{port}"

    def __enter__(self):
        self.server.start()
        return self

    def __exit__(self, *_):
        assert self.server.stop(None).wait(120), "calls have not ended after 120 s"

    def wait_until_left(self):
        """Waits until a call has ended. A held call that its client does not end fails this: it ends later by itself."""
        wait_until(self.left.is_set, "the client to leave", 60)

    @staticmethod
    def method(path):
        """Its descriptor: the path is /berth.v1.Inference/Generate."""
        _, service, name = path.split("/")
        module = getattr(api(), f"{service.rsplit('.', 1)[-1].lower()}_pb2")
        return module.DESCRIPTOR.services_by_name[service.rsplit(".", 1)[-1]].methods_by_name[name]

    def service(self, details):
        method = self.method(details.method)
        request = message_class(method.input_type)
        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        behaviour = self.stream if method.server_streaming else self.answer
        return make(lambda message, context: behaviour(method, message, context), request.FromString,
                    lambda message: message.SerializeToString())

    def next_answer(self, method, message, context):
        context.add_callback(self.left.set)
        self.requests.append((method.name, message, dict(context.invocation_metadata()), context.time_remaining()))
        if self.answers:
            answer = self.answers.pop(0)
        elif method.name in self.others:
            answer = self.others[method.name](message)
        else:
            answer = message_class(method.output_type)()
        if isinstance(answer, Refusal):
            context.set_trailing_metadata(tuple(answer.trailing))
            context.abort(answer.code, answer.message)
        return answer

    def answer(self, method, message, context):
        answer = self.next_answer(method, message, context)
        if answer is self.HOLD:
            self.hold(context)
        return answer

    def stream(self, method, message, context):
        answers = self.next_answer(method, message, context)
        for answer in answers if isinstance(answers, list) else [answers]:
            if answer is self.HOLD:
                self.hold(context)
            elif isinstance(answer, Refusal):
                context.abort(answer.code, answer.message)
            else:
                yield answer

    def hold(self, context):
        """Waits until the client leaves, at most for two minutes."""
        gone = threading.Event()
        if context.add_callback(gone.set):
            gone.wait(120)
        context.abort(grpc.StatusCode.CANCELLED, "the client left")


def message_class(descriptor):
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(descriptor)
