"""Sessions and the host tier as their users meet them: a server that is killed in the middle, and another that
continues."""

import os
import shutil
import sys

import grpc
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT, BerthServer, DidNotStart, api, generate_request, wait_until  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
GEMMA = os.path.join(ROOT, "models/demo/gemma3-demo")
CHECKS = ["--poison_cache", "--check_integrity", "--log_level=warning"]
STORY = "Tell me a story about a fox."


def story(temperature, **fields):
    request = generate_request(chat=STORY, temperature=temperature, max_tokens=120, ignore_eos=True, logprobs=2, **fields)
    request.sampling.seed = 11
    request.sampling.repetition_penalty = 1.1
    return request


def resume_request(session_id="s", received=0, tenant=""):
    return api().sessions_pb2.ResumeSessionRequest(session_id=session_id, received_tokens=received, tenant=tenant)


def collect(messages):
    """Tokens, text, logprobs, and the last message."""
    tokens, text, logprobs, last = [], "", [], None
    for last in messages:
        tokens += last.token_ids
        text += last.text
        logprobs += [(entry.token_id, entry.logprob, [(top.token_id, top.logprob) for top in entry.top])
                     for entry in last.logprobs]
    return tokens, text, logprobs, last


def code_of(call):
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code(), error.value.details()


def sessions_of(server):
    return server.sessions.List(api().sessions_pb2.ListSessionsRequest(), timeout=60).sessions


@pytest.fixture(scope="module")
def whole():
    """Uninterrupted outputs, by temperature. Each of a cold server: logprobs are compared to the last bit."""
    answers = {}
    for temperature in (0.0, 1.2):
        with BerthServer(DEMO, *CHECKS) as server:
            answers[temperature] = collect(server.inference.Generate(story(temperature), timeout=120))
    return answers


@pytest.mark.parametrize("temperature", [0.0, 1.2], ids=["greedy", "sampled"])
def test_a_killed_server_loses_nothing(tmp_path, whole, temperature):
    folder = tmp_path / "sessions"
    tokens, text = [], ""
    with BerthServer(DEMO, *CHECKS, f"--session_dir={folder}", expect_clean_exit=False) as server:
        try:
            request = story(temperature, session_id="s", autosave_tokens=5)
            for message in server.inference.Generate(request, timeout=120):
                tokens += message.token_ids
                text += message.text
                if len(tokens) >= 40 and list(folder.glob("s@*.session")):
                    server.kill()
        except grpc.RpcError:
            pass
    assert tokens == whole[temperature][0][: len(tokens)]
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    for received in (len(tokens), 0, 33):
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
        with BerthServer(DEMO, *CHECKS, f"--session_dir={folder}") as server:
            assert sessions_of(server)[0].output_tokens % 5 == 0 or sessions_of(server)[0].ended
            resumed = server.sessions.Resume(resume_request(received=received), timeout=120)
            rest, rest_text, logprobs, last = collect(resumed)
            server.wait_idle()
        assert rest == whole[temperature][0][received:]
        assert logprobs == whole[temperature][2][received:]
        assert whole[temperature][1].endswith(rest_text)
        if received == len(tokens):
            assert text + rest_text == whole[temperature][1]
        assert last.finish_reason == whole[temperature][3].finish_reason
        assert last.usage.completion_tokens == len(whole[temperature][0])


def test_deliver_saved_only_loses_nothing_at_any_moment(tmp_path, whole):
    """Killed after any message, the first included: the session has at least the client's tokens."""
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
            rest = collect(server.sessions.Resume(resume_request(received=len(tokens)), timeout=120))[0]
        assert tokens + rest == whole[0.0][0]


def test_what_does_not_belong_is_refused_and_stays(tmp_path):
    folder = tmp_path / "sessions"
    flags = [*CHECKS, f"--session_dir={folder}"]
    request = story(0.0, session_id="s", cache_salt="me")
    with BerthServer(DEMO, *flags) as server:
        answer = list(server.inference.Complete(request, timeout=120).token_ids)
    (path,) = folder.glob("s@*.session")
    good = path.read_bytes()
    resume = resume_request(tenant="me")

    def refusal(model, request=resume):
        with BerthServer(model, *flags) as server:
            return code_of(lambda: list(server.sessions.Resume(request, timeout=60)))

    code, why = refusal(GEMMA)
    assert code == grpc.StatusCode.FAILED_PRECONDITION and "another model" in why
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
