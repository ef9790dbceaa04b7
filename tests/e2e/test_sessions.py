"""Sessions and the host tier as their users meet them: a server that is killed in the middle, and another that
continues."""

import math
import os
import shutil
import signal
import sys

import grpc
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import (  # noqa: E402
    ENDLESS_TOKENS, ROOT, BerthServer, DidNotStart, api, endless_server, generate_request, wait_until)

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
GEMMA = os.path.join(ROOT, "models/demo/gemma3-demo")
CHECKS = ["--poison_cache", "--check_integrity", "--log_level=warning"]
STORY = "Tell me a story about a fox."


def story(temperature, max_tokens=120, **fields):
    request = generate_request(chat=STORY, temperature=temperature, max_tokens=max_tokens, ignore_eos=True, logprobs=2,
                               **fields)
    request.sampling.seed = 11
    request.sampling.repetition_penalty = 1.1
    return request


def resume_request(session_id="s", received=0, tenant=""):
    return api().sessions_pb2.ResumeSessionRequest(session_id=session_id, received_tokens=received, tenant=tenant)


def collect(messages, count=math.inf):
    """Tokens, text, logprobs, and the last message. An endless stream is left after this number of tokens."""
    tokens, text, logprobs, last = [], "", [], None
    for last in messages:
        tokens += last.token_ids
        text += last.text
        logprobs += [(entry.token_id, entry.logprob, [(top.token_id, top.logprob) for top in entry.top])
                     for entry in last.logprobs]
        if len(tokens) >= count:
            messages.cancel()
            break
    return tokens, text, logprobs, last


def code_of(call):
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()


def sessions_of(server):
    return server.sessions.List(api().sessions_pb2.ListSessionsRequest(), timeout=60).sessions


@pytest.mark.parametrize("temperature", [0.0, 1.2], ids=["greedy", "sampled"])
def test_a_killed_server_loses_nothing(tmp_path, temperature):
    """Killed in the middle of an endless output, which another server continues as if nothing had been."""
    folder = tmp_path / "sessions"
    tokens, text = [], ""
    with endless_server(DEMO, *CHECKS, f"--session_dir={folder}", expect_clean_exit=False) as server:
        request = story(temperature, max_tokens=ENDLESS_TOKENS, session_id="s", autosave_tokens=5)
        with pytest.raises(grpc.RpcError):
            for message in server.inference.Generate(request, timeout=300):
                tokens += message.token_ids
                text += message.text
                if len(tokens) >= 40 and list(folder.glob("s@*.session")):
                    assert server.kill() == -signal.SIGKILL
        assert server.process.poll() == -signal.SIGKILL
    count = len(tokens) + 80
    with endless_server(DEMO, *CHECKS) as server:
        request = story(temperature, max_tokens=ENDLESS_TOKENS)
        whole, whole_text, whole_logprobs, _ = collect(server.inference.Generate(request, timeout=300), count)
    assert tokens == whole[: len(tokens)]
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    for received in (len(tokens), 0, 33):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        with endless_server(DEMO, *CHECKS, f"--session_dir={folder}") as server:
            (session,) = sessions_of(server)
            assert not session.ended and session.output_tokens > 0 and session.output_tokens % 5 == 0, session
            resumed = server.sessions.Resume(resume_request(received=received), timeout=300)
            rest, rest_text, logprobs, _ = collect(resumed, count - received)
            server.wait_idle()
        assert rest[: count - received] == whole[received:count]
        assert logprobs[: count - received] == whole_logprobs[received:count]
        if received in (0, len(tokens)):
            joined = text + rest_text if received else rest_text
            common = min(len(joined), len(whole_text))
            assert joined[:common] == whole_text[:common]
            # Tokens after the story's end have no text, and a slow client may have read all of it before the kill.
            assert common > len(text) or text == whole_text


def test_deliver_saved_only_loses_nothing_at_any_moment(tmp_path):
    """Killed after any message, the first included: the session has at least the client's tokens."""
    with BerthServer(DEMO, *CHECKS) as server:
        whole, _, _, whole_last = collect(server.inference.Generate(story(0.0), timeout=120))
    for kill_at in (1, 2, 11, 37):
        folder = tmp_path / f"sessions{kill_at}"
        tokens = []
        with BerthServer(DEMO, *CHECKS, f"--session_dir={folder}", expect_clean_exit=False) as server:
            request = story(0.0, session_id="s", autosave_tokens=1, deliver_saved_only=True)
            try:
                for message in server.inference.Generate(request, timeout=120):
                    tokens += message.token_ids
                    if len(tokens) >= kill_at:
                        server.kill()
            except grpc.RpcError:
                pass
        with BerthServer(DEMO, *CHECKS, f"--session_dir={folder}") as server:
            assert sessions_of(server)[0].output_tokens >= len(tokens) >= kill_at
            rest, _, _, last = collect(server.sessions.Resume(resume_request(received=len(tokens)), timeout=120))
        assert tokens + rest == whole
        assert last.finish_reason == whole_last.finish_reason
        assert last.usage.completion_tokens == len(whole)


def test_what_does_not_belong_is_refused_and_stays(tmp_path):
    folder = tmp_path / "sessions"
    flags = [*CHECKS, f"--session_dir={folder}"]
    request = story(0.0, session_id="s", cache_salt="me")
    with BerthServer(DEMO, *flags) as server:
        answer = list(server.inference.Complete(request, timeout=120).token_ids)
    (path,) = folder.glob("s@*.session")
    good = path.read_bytes()
    resume = resume_request(tenant="me")

    def refusal(model, request=resume, *more):
        with BerthServer(model, *flags, *more) as server:
            return code_of(lambda: list(server.sessions.Resume(request, timeout=60)))

    code, why = refusal(GEMMA)
    assert code == grpc.StatusCode.FAILED_PRECONDITION and "another model" in why
    for flag in ("--cache_dtype=int8", "--state_checkpoint_dtype=int8", "--chunk_invariant_scans"):
        code, why = refusal(DEMO, resume, flag)
        assert code == grpc.StatusCode.FAILED_PRECONDITION and "with flags that change its output" in why, flag
    code, why = refusal(DEMO, resume_request(tenant="you"))
    assert code == grpc.StatusCode.NOT_FOUND and why == 'session_id: there is no session "s"'
    path.write_bytes(good[: len(good) // 2])
    code, why = refusal(DEMO)
    assert code == grpc.StatusCode.DATA_LOSS and "torn" in why
    assert path.read_bytes() == good[: len(good) // 2]
    path.write_bytes(good[:8] + bytes([9]) + good[9:])
    code, why = refusal(DEMO)
    assert code == grpc.StatusCode.FAILED_PRECONDITION and "version 9" in why
    path.write_bytes(good)
    with BerthServer(DEMO, *flags) as server:
        assert collect(server.sessions.Resume(resume, timeout=60))[0] == answer

        def delete():
            try:
                server.sessions.Delete(api().sessions_pb2.DeleteSessionRequest(session_id="s", tenant="me"), timeout=60)
                return True
            except grpc.RpcError as error:  # the store has not let go of it yet
                assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
                return False

        wait_until(delete, "the store to let go of the session")
    assert not path.exists()


def test_a_session_dir_that_cannot_be_used_is_said_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DidNotStart, match="--session_dir"):
        with BerthServer(DEMO, f"--session_dir={tmp_path}/file"):
            pass
