"""The API of the last release, as its clients know it: protos, and requests as they leave such a client.

The folder last_release has both:
  berth/v1/*.proto  the release's protos without comments
  recorded.json     requests encoded by these protos (bytes in hexadecimal), and what a server answered. The answers are
                    those of the server that was current when the file was written, decoded by the release's protos.

When a release is made, put its protos there, extend REQUESTS, and write recorded.json again with
  python tests/e2e/release_api.py
"""

import functools
import json
import os
import sys
import tempfile

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_tools import protoc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT, BerthServer, api, wait_until  # noqa: E402

FOLDER = os.path.join(ROOT, "tests/e2e/last_release")
RECORDED = os.path.join(FOLDER, "recorded.json")
DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
SUM = {"messages": [{"role": "user", "content": "What is 23 + 45?"}]}
GREEDY = {"temperature": 0}

# Sent in this order, each after the answer of the one before: (method, request as JSON). Together they set every field
# of the requests that a decoder has a use for.
REQUESTS = [
    ("Inference/Complete", {"requestId": "a", "chat": SUM, "sampling": GREEDY, "returnPromptTokenIds": True}),
    ("Inference/Generate", {"chat": {**SUM, "addGenerationPrompt": True}, "sampling": GREEDY, "logprobs": 2,
                            "requestId": "b", "sharePrefix": False, "cacheSalt": "tenant"}),
    ("Inference/Generate", {"requestId": "c", "prompt": "Once upon", "addSpecialTokens": False, "skipSpecialTokens": False,
                            "sampling": GREEDY, "draftTokens": 4,
                            "stopping": {"maxTokens": 30, "minTokens": 5, "stop": ["."], "includeStop": True}}),
    ("Inference/Complete", {"requestId": "d", "tokenIds": {"ids": [5, 6, 7, 8]}, "n": 2, "bestOf": 3, "logprobs": 0,
                            "sampling": {"temperature": 0.5, "topK": 20, "topP": 0.9, "minP": 0.01, "seed": 7,
                                         "repetitionPenalty": 1.1, "presencePenalty": 0.1, "frequencyPenalty": 0.1,
                                         "logitBias": {"9": -5}},
                            "stopping": {"maxTokens": 6, "stopTokenIds": [3], "ignoreEos": True}}),
    ("Inference/Complete", {"requestId": "e", "prompt": "Once upon", "n": 2, "stopping": {"maxTokens": 6},
                            "beamSearch": {"numBeams": 3, "lengthPenalty": 1, "earlyStopping": "EARLY_STOPPING_TRUE"}}),
    ("Inference/Complete", {"prompt": "a", "sampling": {"temperature": 101}}),
    ("Inference/Tokenize", {"text": "Once upon a time", "addSpecialTokens": False}),
    ("Inference/Tokenize", {"chat": {"messages": [{"role": "user", "content": "Hi", "extraJson": "{\"name\": \"Ann\"}"}],
                                     "addGenerationPrompt": False, "toolsJson": "[]",
                                     "templateVariablesJson": "{\"short\": true}"}}),
    ("Inference/Detokenize", {"tokenIds": [70, 71, 72], "skipSpecialTokens": False}),
    ("Inference/Complete", {"requestId": "f", "prompt": "Once upon", "sampling": GREEDY, "stopping": {"maxTokens": 8},
                            "sessionId": "s", "autosaveTokens": 4, "cacheSalt": "tenant"}),
    ("Sessions/Save", {"sessionId": "s", "tenant": "tenant"}),
    ("Sessions/List", {"tenant": "tenant"}),
    ("Sessions/Resume", {"sessionId": "s", "tenant": "tenant", "requestId": "r", "receivedTokens": 3}),
    ("Sessions/Delete", {"sessionId": "s", "tenant": "tenant"}),
    ("Sessions/Resume", {"sessionId": "s", "tenant": "tenant"}),
    ("Control/Abort", {"requestIds": ["a", "unknown"]}),
    ("Control/GetModelInfo", {}),
    ("Control/GetServerInfo", {}),
    ("Control/GetLoad", {}),
]
# What differs from run to run, or with the machine.
VOLATILE = {"timings", "cachedTokens", "sizeBytes"}
# Answers that describe the server and its state. The names of their fields are recorded, not the values.
STATE = {"Control/GetModelInfo", "Control/GetServerInfo", "Control/GetLoad"}


def descriptors(folder):
    """The files of package berth.v1 below the folder, compiled: a FileDescriptorSet."""
    names = sorted(os.listdir(os.path.join(folder, "berth/v1")))
    protos = [f"berth/v1/{name}" for name in names if name.endswith(".proto")]
    with tempfile.NamedTemporaryFile() as out:
        assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={out.name}", *protos]) == 0
        return descriptor_pb2.FileDescriptorSet.FromString(out.read())


@functools.cache
def release():
    """Services and messages of the release, apart from those of today."""
    pool = descriptor_pool.DescriptorPool()
    for file in in_order(descriptors(FOLDER).file):
        pool.Add(file)
    return pool


def in_order(files):
    """Each file after those that it imports."""
    left, added = list(files), set()
    while left:
        (file, *_) = [each for each in left if set(each.dependency) <= added]
        added.add(file.name)
        left.remove(file)
        yield file


def method_of(name):
    service, _, method = name.partition("/")
    return release().FindServiceByName(f"berth.v1.{service}").FindMethodByName(method)


def encode(name, request):
    message = message_factory.GetMessageClass(method_of(name).input_type)()
    return json_format.ParseDict(request, message).SerializeToString(deterministic=True)


def decode(name, answer):
    """The answer as a client of the release reads it: it skips fields that it does not know."""
    return json_format.MessageToDict(message_factory.GetMessageClass(method_of(name).output_type).FromString(answer))


def call(channel, name, request):
    """What the server answers to the bytes: {"answer": ...}, {"fields": ...}, for a stream {"stream": ...}, or {"code": ...}."""
    path = f"/berth.v1.{name}"
    try:
        if method_of(name).server_streaming:
            answers = channel.unary_stream(path)(request, timeout=120)
            return {"stream": joined([decode(name, answer) for answer in answers])}
        answer = decode(name, channel.unary_unary(path)(request, timeout=120))
        return {"fields": sorted(answer)} if name in STATE else {"answer": without_volatile(answer)}
    except grpc.RpcError as error:
        return {"code": error.code().name}


def answers_of(server, requests):
    """The answers to pairs of a method and bytes, sent one after the other."""
    answers = []
    for name, request in requests:
        if name == "Sessions/Save":
            wait_until_saved(server)
        answers.append(call(server.channel, name, request))
    return answers


def wait_until_saved(server):
    """The answer may come before the last save of its session has ended."""
    request = api().sessions_pb2.ListSessionsRequest(tenant="tenant")
    wait_until(lambda: [session.ended for session in server.sessions.List(request, timeout=120).sessions] == [True],
               "the session to be saved at its end")


def joined(messages):
    """A stream's messages as one: it may be cut differently each time. Its last message comes last."""
    whole = {"text": "".join(message.get("text", "") for message in messages)}
    for field in ("tokenIds", "logprobs", "promptTokenIds"):
        whole[field] = [entry for message in messages for entry in message.get(field, [])]
    last = without_volatile(messages[-1])
    return {**whole, **{key: value for key, value in last.items() if key not in whole}}


def without_volatile(value):
    if isinstance(value, dict):
        return {key: without_volatile(entry) for key, entry in value.items() if key not in VOLATILE}
    return [without_volatile(entry) for entry in value] if isinstance(value, list) else value


def serve(folder):
    """In float32, so that the processors' rounding decides no token."""
    return BerthServer(DEMO, "--dtype=float32", f"--session_dir={folder}")


def main():
    sent = [(name, encode(name, request)) for name, request in REQUESTS]
    with tempfile.TemporaryDirectory() as folder, serve(folder) as server:
        answers = answers_of(server, sent)
    recorded = [{"method": name, "request": request.hex(), **answer} for (name, request), answer in zip(sent, answers)]
    with open(RECORDED, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(entry) for entry in recorded) + "\n]\n")


if __name__ == "__main__":
    main()
