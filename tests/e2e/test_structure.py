"""Structured output holds in every regime: random schemas, regular expressions and choices, each in a regime that a
seed draws. A complete output validates with Python's jsonschema; one that was cut short is the beginning of a valid
one. BERTH_FULL runs more of them."""

import concurrent.futures
import dataclasses
import functools
import json
import os
import random
import re
import signal
import sys

import grpc
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import random_models  # noqa: E402
import structures  # noqa: E402
from berth_server import (  # noqa: E402
    ENDLESS_TOKENS, ROOT, BerthServer, DidNotStart, api, dry_run, endless_server, generate_request, wait_until)

DEMOS = [os.path.join(ROOT, "models/demo", name) for name in ("falcon_h1-demo", "gemma3-demo")]
CHECKS = ["--poison_cache", "--check_integrity", "--log_level=warning"]
FULL = bool(os.environ.get("BERTH_FULL"))
CASES_EACH = 340 if FULL else 34  # of each regime
PARALLEL = 24
TIMEOUT = 600  # of a request, in seconds: it may be preempted many times
MAX_TOKENS = 240
TIGHT_TOKENS = 420  # the longest sequence of a server with a tight arena
PROMPTS = ["Tell me a story about a fox.", "Write a record about a river as JSON.", "What is 12 + 30?",
           "Write a record: {\"name\": \"Ann\", \"age\": 7, \"colour\": \"red\"}. Again as JSON."]


@dataclasses.dataclass
class Case:
    seed: int
    regime: str
    structure: structures.Structure
    request: object

    def __str__(self):
        return f"seed {self.seed}, {self.regime}, {self.structure.fields}"


def make_case(seed, regime):
    rng = random.Random(seed)
    structure = structures.make_structure(rng)
    request = generate_request(chat=rng.choice(PROMPTS), max_tokens=MAX_TOKENS, temperature=rng.choice([0.0, 0.7, 1.0]))
    request.sampling.seed = seed
    structures.set_structure(request, structure.fields)
    return Case(seed, regime, structure, request)


def check(case, text, reason):
    """One output: complete if it ended by itself, and else the beginning of a complete one."""
    pb = api().inference_pb2
    if reason == pb.FINISH_REASON_STOP:
        assert case.structure.is_complete(text), f"{case}: {text!r}"
    else:
        assert reason == pb.FINISH_REASON_LENGTH, f"{case}: {reason}"
        assert case.structure.is_prefix(text), f"{case}: {text!r} cannot become one"
    return reason == pb.FINISH_REASON_STOP


def check_complete(server, case):
    answer = server.inference.Complete(case.request, timeout=TIMEOUT)
    return [check(case, output.text, output.finish_reason) for output in (answer, *answer.other_outputs)]


def collect(messages):
    text, last = "", None
    for last in messages:
        text += last.text
    return text, last


# The regimes. Each returns whether its outputs were complete.


def alone(server, case):
    return check_complete(server, case)


def streamed(server, case):
    text, last = collect(server.inference.Generate(case.request, timeout=TIMEOUT))
    return [check(case, text, last.finish_reason)]


def outputs(server, case):
    case.request.n = 3
    ended = check_complete(server, case)
    assert len(ended) == 3
    return ended


def best_of(server, case):
    case.request.best_of = 3
    return check_complete(server, case)


def beams(server, case):
    case.request.sampling.Clear()
    case.request.sampling.temperature = 0
    case.request.beam_search.num_beams = 3
    return check_complete(server, case)


def drafted(server, case):
    """With drafts the tokens are those without."""
    case.request.sampling.temperature = 0
    without = server.inference.Complete(case.request, timeout=TIMEOUT)
    case.request.draft_tokens = 8
    answer = server.inference.Complete(case.request, timeout=TIMEOUT)
    assert list(answer.token_ids) == list(without.token_ids), case
    return [check(case, answer.text, answer.finish_reason)]


def penalised(server, case):
    case.request.sampling.repetition_penalty = 1.3
    case.request.sampling.frequency_penalty = 0.5
    case.request.sampling.top_p = 0.9
    case.request.sampling.logit_bias[5] = 50
    case.request.logprobs = 2
    return check_complete(server, case)


def cut(server, case):
    case.request.stopping.max_tokens = random.Random(case.seed).randint(1, 12)
    return check_complete(server, case)


def begun_later(server, case):
    """The first words are free, up to the first space."""
    case.request.structure.begin_after_text = " "
    answer = server.inference.Complete(case.request, timeout=TIMEOUT)
    free, space, text = answer.text.partition(" ")
    if not space:
        assert answer.finish_reason == api().inference_pb2.FINISH_REASON_LENGTH, f"{case}: {free!r}"
        return [False]
    return [check(case, text, answer.finish_reason)]


def hit(server, case):
    """This prompt again, from the cache."""
    first = server.inference.Complete(case.request, timeout=TIMEOUT)
    answer = server.inference.Complete(case.request, timeout=TIMEOUT)
    assert list(answer.token_ids) == list(first.token_ids), case
    return [check(case, answer.text, answer.finish_reason)]


def resumed(server, case):
    """The client goes away in the middle, comes back, and gets the rest."""
    case.request.session_id = f"resumed-{case.seed}"
    case.request.autosave_tokens = 2
    text, received, last = "", 0, None
    call = server.inference.Generate(case.request, timeout=TIMEOUT)
    for last in call:
        text += last.text
        received += len(last.token_ids)
        if received >= 5:
            break
    if not last.finish_reason:
        call.cancel()
        rest, last = resume(server, case.request.session_id, received)
        text += rest
    return [check(case, text, last.finish_reason)]


def resume(server, session_id, received):
    """The rest of a session that its last call may still be leaving."""
    request = api().sessions_pb2.ResumeSessionRequest(session_id=session_id, received_tokens=received)

    def rest():
        try:
            return collect(server.sessions.Resume(request, timeout=TIMEOUT))
        except grpc.RpcError as error:
            assert error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND), error
            return None

    return wait_until(rest, f"the session {session_id} to be left by its call")


def aborted(server, case):
    """What had come by then is the beginning of a valid output."""
    case.request.request_id = f"aborted-{case.seed}"
    text, received, last = "", 0, None
    for last in server.inference.Generate(case.request, timeout=TIMEOUT):
        text += last.text
        received += len(last.token_ids)
        if received in (1, 4):
            server.control.Abort(api().control_pb2.AbortRequest(request_ids=[case.request.request_id]), timeout=60)
    if last.finish_reason == api().inference_pb2.FINISH_REASON_CANCELLED:
        assert case.structure.is_prefix(text), f"{case}: {text!r} cannot become one"
        return [False]
    return [check(case, text, last.finish_reason)]


PLAIN = [alone, streamed, outputs, best_of, beams, drafted, penalised, cut, begun_later, hit, resumed, aborted]
# Regimes of the server's flags.
SERVERS = {"preempted": ["--arena={tight}"], "swapped": ["--arena={tight}", "--host_tier=64MiB", "--always_copy"],
           "cropped": ["--crop_every=5"]}
REGIMES = [regime.__name__ for regime in PLAIN] + list(SERVERS)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The demo models, and random ones with their tokenizer: what these say makes no sense at all."""
    folder = tmp_path_factory.mktemp("models")
    return DEMOS + [random_models.make(folder, name) for name in random_models.DECODERS]


def draw():
    """The regime of each seed: all equally often, shuffled."""
    regimes = REGIMES * CASES_EACH
    random.Random(0).shuffle(regimes)
    return list(enumerate(regimes))


def run_all(server, cases, run):
    """All cases, some at once. Returns how many outputs were complete."""
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        runs = [(case, pool.submit(run, server, case)) for case in cases]
    errors = [f"{case}:\n{done.exception()}" for case, done in runs if done.exception()]
    assert not errors, f"{len(errors)} of {len(runs)} failed\n" + "\n".join(errors)
    return sum(sum(done.result()) for _, done in runs)


def cases_of(model_index, num_models, regimes):
    return [make_case(seed, regime) for seed, regime in draw() if seed % num_models == model_index and regime in regimes]


@pytest.mark.parametrize("index", range(2 + len(random_models.DECODERS)),
                         ids=["falcon_h1-demo", "gemma3-demo", *random_models.DECODERS])
def test_what_is_asked_for_comes(tmp_path, models, index):
    by_name = {regime.__name__: regime for regime in PLAIN}
    cases = cases_of(index, len(models), by_name)
    with BerthServer(models[index], *CHECKS, f"--session_dir={tmp_path}/sessions") as server:
        complete = run_all(server, cases, lambda server, case: by_name[case.regime](server, case))
        load = server.wait_idle()
    assert complete > len(cases) // 3, "hardly any output is complete, so hardly any was checked"
    assert load.forced_tokens > 0


@functools.cache
def smallest_arena(model, *flags):
    """The bytes of an arena that holds one sequence of the longest length, and not much more. The first arena that is
    tried has the bytes of the sequence alone."""
    (needed,) = re.findall(rf"^sequences of {TIGHT_TOKENS} tokens: .* each takes .*\((\d+) bytes\)$",
                           dry_run(model, *flags), re.M)
    arena = 128 << 10
    while arena < int(needed):
        arena = int(arena * 1.3)
    most = 16 * arena
    while arena < most:
        try:
            with BerthServer(model, *flags, f"--arena={arena}") as server:
                if server.model_info().limits.max_sequence_tokens >= TIGHT_TOKENS:
                    return arena
        except DidNotStart as error:
            if "--arena: " not in str(error):
                raise
        arena = int(arena * 1.3)
    raise AssertionError(f"no arena of up to {most} bytes holds a sequence of {TIGHT_TOKENS} tokens")


@pytest.mark.parametrize("regime", SERVERS)
def test_it_holds_when_the_cache_is_taken_away(models, regime):
    # Three more of each seed, so that the arena has more sequences than it can hold.
    cases = [make_case(seed + copy * 100_000, name) for copy in range(4) for seed, name in draw() if name == regime]
    preemptions = swap_outs = 0
    for index, model in enumerate(models):
        own = cases[index::len(models)]
        flags = [*CHECKS, f"--max_sequence_tokens={TIGHT_TOKENS}"]
        regime_flags = [flag.format(tight=smallest_arena(model, *flags)) if "{tight}" in flag else flag
                        for flag in SERVERS[regime]]
        with BerthServer(model, *flags, *regime_flags) as server:
            run_all(server, own, alone)
            load = server.wait_idle()
            if regime == "cropped":
                server.check_it_cropped()
        preemptions += load.preemptions
        swap_outs += load.swap_outs
    # On a busy machine, the sequences of one model may come one after the other.
    assert regime != "preempted" or preemptions > 0
    assert regime != "swapped" or swap_outs > 0


@pytest.mark.parametrize("model", DEMOS, ids=["falcon_h1-demo", "gemma3-demo"])
def test_a_killed_server_goes_on_with_the_grammar_where_it_was(tmp_path, model):
    """The server is killed with all sessions under way, and another one continues with them: endless arrays."""
    flags = [*CHECKS, f"--session_dir={tmp_path}/sessions"]
    structure_of, requests, received = {}, {}, {}
    for seed in range(10_000, 10_016):
        rng = random.Random(seed)
        name = f"killed-{seed}"
        structure_of[name] = structures.make_endless(rng)
        requests[name] = generate_request(chat=rng.choice(PROMPTS), temperature=rng.choice([0.0, 0.7, 1.0]),
                                          max_tokens=ENDLESS_TOKENS, session_id=name, autosave_tokens=4)
        requests[name].sampling.seed = seed
        structures.set_structure(requests[name], structure_of[name].fields)
    with endless_server(model, *flags, expect_clean_exit=False) as server:
        calls = {name: server.inference.Generate(request, timeout=TIMEOUT) for name, request in requests.items()}
        for name, call in calls.items():
            received[name] = next(call)
        # A file gets its name when it is whole.
        folder = tmp_path / "sessions"
        wait_until(lambda: all(any(folder.glob(f"{name}@*.session")) for name in calls),
                   lambda: f"a file of each session; there are {sorted(path.name for path in folder.iterdir())}")
        assert server.kill() == -signal.SIGKILL
    with endless_server(model, *flags) as server:
        listed = server.sessions.List(api().sessions_pb2.ListSessionsRequest(), timeout=60).sessions
        assert {session.session_id for session in listed} == set(calls)
        assert not any(session.ended for session in listed), listed
        for session in listed:
            name, first = session.session_id, received[session.session_id]
            request = api().sessions_pb2.ResumeSessionRequest(session_id=name, received_tokens=len(first.token_ids))
            call = server.sessions.Resume(request, timeout=TIMEOUT)
            text, count = first.text, len(first.token_ids)
            for message in call:
                text += message.text
                count += len(message.token_ids)
                if count >= session.output_tokens + 40:  # well past what the first server had saved
                    break
            call.cancel()
            assert structure_of[name].is_prefix(text), f"{structure_of[name].fields}: {text!r} cannot become one"
        server.wait_idle()


def test_encoder_decoder_models_follow_it(tmp_path):
    """Their output is a text of its own, whose first space the Unigram tokenizer's decoder drops."""
    with BerthServer(random_models.make_t5(tmp_path), *CHECKS) as server:
        complete, unspellable = 0, 0
        for seed in range(60):
            case = make_case(30_000 + seed, "encoder")
            case.request.prompt = "Write a record."
            try:
                complete += sum(check_complete(server, case))
            except grpc.RpcError as error:  # the vocabulary has neither line breaks nor letters beyond ASCII
                assert re.search("no token (has the byte|spells)", error.details()), f"{case}: {error.details()}"
                assert re.search(r"[^ -~]|\\n", json.dumps(case.structure.fields, ensure_ascii=False)), case
                unspellable += 1
        assert complete > 15 and unspellable < 30
