"""How calls end: errors and what they say, retries, deadlines and cancellation, against a fake server."""

import asyncio
import gc
import pickle
import signal
import sys
import threading

import grpc
import pytest
from berth_client import (AsyncClient, BerthError, CancelledError, Client, DeadlineExceededError, InvalidArgumentError,
                          ResourceExhaustedError, UnavailableError, errors)
from berth_server import api, join, wait_until
from fake_server import FakeServer, Refusal
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

def details(*messages):
    """The trailer with google.rpc.Status, by the published protos."""
    status = status_pb2.Status(code=8, message="full")
    for message in messages:
        packed = any_pb2.Any()
        packed.Pack(message)
        status.details.append(packed)
    return (("grpc-status-details-bin", status.SerializeToString()),)


def refusal(seconds=None, milliseconds=None):
    messages = [error_details_pb2.ErrorInfo(reason="QUEUE_FULL", domain="berth", metadata={"limit": "4"})]
    if seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(seconds * 1000))
        messages.append(error_details_pb2.RetryInfo(retry_delay=delay))
    trailing = details(*messages)
    if milliseconds is not None:
        trailing = (("retry-after-ms", str(milliseconds)),)
    return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", trailing)


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK],
                         ids=lambda code: code.name)
def test_every_code_has_its_exception(server, client, code):
    server.answers = [Refusal(code, "why"), [Refusal(code, "why")]]
    names = {grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED,
             grpc.StatusCode.ABORTED}
    for call in (lambda: client.generate("x"), lambda: list(client.stream("x"))):
        with pytest.raises(BerthError) as error:
            call()
        camel = "".join(part.capitalize() for part in code.name.split("_"))
        assert type(error.value) is (BerthError if code in names else getattr(errors, f"{camel}Error"))
        assert (error.value.code, error.value.message, str(error.value)) == (code, "why", "why")
        assert isinstance(error.value.__cause__, grpc.RpcError)


@pytest.mark.parametrize("message, field", [
    ("sampling.top_p: 2 is outside (0, 1]", "sampling.top_p"), ("stopping.stop[3]: 300 bytes", "stopping.stop[3]"),
    ("chat.messages[0].role: empty", "chat.messages[0].role"), ("n: 0 is outside [1, 4]", "n"),
    ("the prompt: it is too long", None), ("ipv4: cannot be reached", None), ("no field", None)])
def test_errors_name_the_field(server, client, message, field):
    server.answers = [Refusal(grpc.StatusCode.INVALID_ARGUMENT, message)]
    with pytest.raises(InvalidArgumentError) as error:
        client.generate("x")
    assert error.value.field == field


def test_a_refusal_says_why(server):
    server.answers = [refusal(seconds=1.5)]
    with Client(server.address, retries=0) as client, pytest.raises(ResourceExhaustedError) as error:
        client.generate("x")
    assert (error.value.reason, error.value.retry_after, error.value.details) == ("QUEUE_FULL", 1.5, {"limit": "4"})


def test_exceptions_can_be_sent_to_another_process():
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BerthError)]
    assert len(classes) > 10
    for kind in classes:
        error = kind("why")
        error.field, error.retry_after = "n", 1.5
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind and (again.message, again.field, again.retry_after) == ("why", "n", 1.5)


RETRIED = [refusal(seconds=0.001), refusal(milliseconds=1)]


async def run_async(server, call, **settings):
    async with AsyncClient(server.address, **settings) as client:
        return await call(client)


def test_a_refusal_with_a_delay_is_retried(server):
    text = api().inference_pb2.GenerateResponse(text="yes")
    for answers, read in [(text, lambda client: client.generate("x").text),
                          ([text, text], lambda client: "".join(part.text for part in client.stream("x"))[3:])]:
        server.answers = [*RETRIED, answers]
        with Client(server.address) as client:
            assert read(client) == "yes"

    async def generate(client):
        return (await client.generate("x")).text

    async def stream(client):
        return "".join([part.text async for part in client.stream("x")])

    for answers, read in [(text, generate), ([text], stream)]:
        server.answers = [*RETRIED, answers]
        assert asyncio.run(run_async(server, read)) == "yes"
    assert len(server.requests) == 12 and server.answers == []


def test_closing_a_stream_ends_the_wait_for_a_retry(server):
    """A retry would come after 20 s, and get an answer."""
    async def read(stream):
        return [part async for part in stream]

    async def run():
        async with AsyncClient(server.address) as client:
            stream = client.stream("x")
            reader = asyncio.create_task(read(stream))
            while stream._attempts._left == client.retries:  # until the refusal has come
                await asyncio.sleep(0.001)
            stream.close()
            assert await reader == []

    server.answers = [refusal(seconds=20)]
    asyncio.run(asyncio.wait_for(run(), 120))
    assert len(server.requests) == 1
    server.answers = [refusal(seconds=20)]
    with Client(server.address) as client:
        stream = client.stream("x")
        read_parts = []
        reader = threading.Thread(target=lambda: read_parts.append(list(stream)), daemon=True)
        reader.start()
        wait_until(lambda: stream._attempts._left < client.retries, "the refusal to come")
        stream.close()
        join([reader], "the reader")
    assert read_parts == [[]] and len(server.requests) == 2


@pytest.mark.parametrize("answers, settings, tries", [
    ([refusal()], {}, 1),  # no delay: a retry cannot succeed
    ([refusal(seconds=0.001)] * 3, {"retries": 1}, 2),
    ([refusal(seconds=40)], {}, 1),  # longer than max_retry_delay
    ([refusal(seconds=20)], {"timeout": 10}, 1),  # longer than the deadline leaves
    ([Refusal(grpc.StatusCode.UNAVAILABLE, "draining")], {}, 1),
])
def test_other_failures_are_not_retried(server, answers, settings, tries):
    async def generate(client):
        await client.generate("x")

    async def stream(client):
        async for _ in client.stream("x"):
            pass

    with Client(server.address, **settings) as client:
        for call in (lambda: client.generate("x"), lambda: list(client.stream("x")),
                     lambda: asyncio.run(run_async(server, generate, **settings)),
                     lambda: asyncio.run(run_async(server, stream, **settings))):
            server.answers = list(answers)
            server.requests.clear()
            with pytest.raises((ResourceExhaustedError, UnavailableError)):
                call()
            assert len(server.requests) == tries


def test_a_stream_that_has_begun_is_not_retried(server, client):
    part = api().inference_pb2.GenerateResponse(text="a")

    server.answers = [[part, refusal(seconds=0.001)]]
    stream = client.stream("x")
    assert next(stream).text == "a"
    with pytest.raises(ResourceExhaustedError):
        next(stream)
    assert len(server.requests) == 1


def test_deadlines_are_sent(server):
    with Client(server.address, timeout=50) as client:
        client.generate("x")
        client.generate("x", timeout=500)
        client.generate("x", timeout=None)
    seconds = [left for *_, left in server.requests]
    assert 0 < seconds[0] < 100 < seconds[1] < 1000  # gRPC rounds them up
    assert seconds[2] is None or seconds[2] > 1e6


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_connection_with_calls_is_pinged(kind):
    expected = {"grpc.keepalive_time_ms": 60_000, "grpc.keepalive_timeout_ms": 20_000,
                "grpc.http2.ping_timeout_ms": 20_000, "grpc.keepalive_permit_without_calls": 0,
                "grpc.http2.max_pings_without_data": 0}
    options = dict(kind().channel_options)
    assert {name: options[name] for name in expected} == expected
    own = dict(kind(channel_options=[("grpc.keepalive_time_ms", 2**31 - 1)]).channel_options)
    assert own == {**options, "grpc.keepalive_time_ms": 2**31 - 1}


def test_a_deadline_ends_a_call(server):
    async def generate(client):
        await client.generate("x", timeout=0.05)

    # For every call: one may end before the server has heard of it.
    server.others = {"Complete": lambda request: FakeServer.HOLD, "Generate": lambda request: FakeServer.HOLD}
    with Client(server.address, timeout=0.05) as client:
        with pytest.raises(DeadlineExceededError):
            client.generate("x")
        with pytest.raises(TimeoutError):
            list(client.stream("x"))
    with pytest.raises(DeadlineExceededError):
        asyncio.run(run_async(server, generate))


def parts(server):
    server.left.clear()
    server.answers = [[api().inference_pb2.GenerateResponse(text="a"), FakeServer.HOLD]]


def waits_for_an_answer(thread):
    """Whether the thread, by its ident, is in gRPC's function that waits for an answer."""
    # A collection inside _current_frames may let other threads run while it holds a lock of the interpreter's, and then
    # nothing runs any more (CPython issue 106883).
    gc.disable()
    try:
        frame = sys._current_frames().get(thread)
    finally:
        gc.enable()
    while frame is not None and (frame.f_globals["__name__"], frame.f_code.co_name) != ("grpc._common", "wait"):
        frame = frame.f_back
    return frame is not None


def break_out(client):
    for _ in client.stream("x"):
        break


def leave_with(client):
    with client.stream("x") as stream:
        next(stream)


def close(client):
    stream = client.stream("x")
    next(stream)
    stream.close()
    assert list(stream) == []


@pytest.mark.parametrize("leave", [break_out, leave_with, close])
def test_leaving_a_stream_ends_the_request(server, client, leave):
    parts(server)
    leave(client)
    server.wait_until_left()


def test_closing_a_stream_in_another_thread_ends_its_reader(server, client):
    parts(server)
    stream = client.stream("x")
    assert next(stream).text == "a"
    read = []
    reader = threading.Thread(target=lambda: read.append(list(stream)), daemon=True)
    reader.start()
    wait_until(lambda: waits_for_an_answer(reader.ident), "the reader to wait")
    stream.close()
    join([reader], "the reader")
    assert read == [[]]  # an exception would leave nothing
    server.wait_until_left()


def test_closing_an_async_stream_in_another_task_ends_its_reader(server):
    async def read(stream):
        return [part async for part in stream]

    async def run():
        async with AsyncClient(server.address) as client:
            stream = client.stream("x")
            assert (await anext(stream)).text == "a"
            reader = asyncio.create_task(read(stream))
            await asyncio.sleep(0)  # the reader now waits
            stream.close()
            assert await reader == []
            await asyncio.to_thread(server.wait_until_left)

    parts(server)
    asyncio.run(run())


async def break_out_async(client):
    async for _ in client.stream("x"):
        break
    await asyncio.sleep(0)


async def leave_with_async(client):
    async with client.stream("x") as stream:
        await anext(stream)


async def close_async(client):
    stream = client.stream("x")
    await anext(stream)
    stream.close()
    assert [part async for part in stream] == []


async def cancel_reader(client):
    started = asyncio.Event()

    async def read():
        async for _ in client.stream("x"):
            started.set()

    task = asyncio.create_task(read())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [break_out_async, leave_with_async, close_async, cancel_reader])
def test_leaving_an_async_stream_ends_the_request(server, leave):
    async def run():
        async with AsyncClient(server.address) as client:
            await leave(client)
            await asyncio.to_thread(server.wait_until_left)  # while the channel is open

    parts(server)
    asyncio.run(run())


def test_cancelling_a_task_ends_its_request(server):
    async def run():
        async with AsyncClient(server.address) as client:
            task = asyncio.create_task(client.generate("x"))
            await asyncio.to_thread(wait_until, lambda: server.requests, "the request to come")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(server.wait_until_left)

    server.answers = [FakeServer.HOLD]
    asyncio.run(run())


@pytest.fixture
def interrupts():
    """Python raises KeyboardInterrupt, also where the tests are a shell's background job, which ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_ends_the_request(server, client):
    """An interrupt of the keyboard, as in a notebook: its connection stays, and it keeps the last traceback."""
    main = threading.main_thread().ident

    def interrupt():
        wait_until(lambda: server.requests, "the request to come")
        # Before, a call that has been sent has no name yet.
        wait_until(lambda: waits_for_an_answer(main), "the client to wait for its answer")
        signal.pthread_kill(main, signal.SIGINT)

    for call in (lambda: client.generate("x"), lambda: next(client.stream("x"))):
        server.left.clear()
        server.requests.clear()
        server.answers = [FakeServer.HOLD]
        thread = threading.Thread(target=interrupt, daemon=True)
        thread.start()
        with pytest.raises(KeyboardInterrupt) as kept:
            call()
        join([thread], "the interrupt")
        server.wait_until_left()
        assert kept.traceback


def test_an_interrupt_of_a_loop_ends_the_request(server):
    """An interrupt that a coroutine itself raises. Its traceback is kept, and no task cancels what it waits for."""
    async def run(call):
        server.left.clear()
        server.requests.clear()
        server.answers = [FakeServer.HOLD]
        async with AsyncClient(server.address) as client:
            waiting = call(client)
            waiting.send(None)
            await asyncio.to_thread(wait_until, lambda: server.requests, "the request to come")
            with pytest.raises(KeyboardInterrupt) as kept:
                waiting.throw(KeyboardInterrupt())
            await asyncio.to_thread(server.wait_until_left)
            assert kept.traceback

    for call in (lambda client: client.generate("x"), lambda client: client.stream("x").__anext__()):
        asyncio.run(run(call))


def test_a_stream_that_the_server_cancels_raises(server, client):
    server.answers = [[Refusal(grpc.StatusCode.CANCELLED, "ended")]]
    with pytest.raises(CancelledError, match="ended"):
        list(client.stream("x"))
