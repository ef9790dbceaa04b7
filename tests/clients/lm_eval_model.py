"""The model for lm-eval, against a real and a fake server. test_wheel.py runs it with the Python that has lm-eval."""

import os

import lm_eval
import pytest
from berth_client.lm_eval import BerthLM
from berth_server import ROOT, BerthServer, api
from fake_server import FakeServer
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
TASKS = os.path.join(ROOT, "clients/python/tasks")
EOS, LIMIT = 7, 20


@pytest.fixture(scope="module")
def server():
    with BerthServer(DEMO) as server:
        yield server


@pytest.fixture
def fake():
    """A model of 20 tokens, whose tokens are the bytes of a text."""
    pb, control = api().inference_pb2, api().control_pb2
    with FakeServer() as fake:
        fake.others = {
            "GetModelInfo": lambda request: control.GetModelInfoResponse(
                name="m", eos_token_ids=[EOS], limits=control.Limits(max_sequence_tokens=LIMIT)),
            "Tokenize": lambda request: pb.TokenizeResponse(token_ids=request.text.encode(), text=request.text),
            "Detokenize": lambda request: pb.DetokenizeResponse(text="<eos>"),
            "Complete": lambda request: pb.GenerateResponse(text="out"),
        }
        yield fake


def instances(*arguments):
    return [Instance(request_type="", doc={}, arguments=one, idx=0) for one in arguments]


def evaluate(server, task, **options):
    model = BerthLM(server.address)
    manager = TaskManager(include_path=TASKS, include_defaults=False)
    results = lm_eval.simple_evaluate(model=model, tasks=[task], task_manager=manager, apply_chat_template=True,
                                      log_samples=True, **options)
    return results["results"][task], results["samples"][task]


def test_generate_until_of_a_task(server):
    result, samples = evaluate(server, "berth_additions")
    assert result["exact_match,none"] == 1 and len(samples) == 50


def test_tokens_are_those_of_the_server(server):
    model = BerthLM(server.address)
    assert model.tok_encode("Once upon") == model.client.tokenize("Once upon").token_ids
    assert model.client.detokenize([model.eot_token_id], skip_special_tokens=False) == "<|im_end|>"
    assert model.prefix_token_id == model.eot_token_id  # the tokeniser adds no BOS
    rendered = model.apply_chat_template([{"role": "user", "content": "Hello"}])
    assert rendered.endswith("<|im_start|>assistant\n")
    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good"}]
    assert model.apply_chat_template(turns, add_generation_prompt=False) == rendered + "Good"


def test_what_a_task_asks_becomes_options(fake):
    model = BerthLM(fake.address, concurrency=1)
    fake.requests.clear()
    arguments = [("abc", {"until": ["\n", ""], "max_gen_toks": 5}),
                 ("abc", {"until": "x", "max_gen_toks": 5, "do_sample": True, "temperature": 0.5, "top_k": 3})]
    assert model.generate_until(instances(*arguments), disable_tqdm=True) == ["out", "out"]
    greedy, sampled = [request for name, request, *_ in fake.requests if name == "Complete"]
    assert list(greedy.token_ids.ids) == list(b"abc") and list(greedy.stopping.stop) == ["\n"]
    assert greedy.stopping.max_tokens == 5 and greedy.sampling.temperature == 0
    assert (sampled.sampling.temperature, sampled.sampling.top_k) == (0.5, 3) and list(sampled.stopping.stop) == ["x"]


def test_a_long_context_keeps_its_end(fake):
    model = BerthLM(fake.address)
    model.generate_until(instances(("a" * 30 + "end", {"until": [], "max_gen_toks": 5})), disable_tqdm=True)
    (request,) = [request for name, request, *_ in fake.requests if name == "Complete"]
    assert bytes(request.token_ids.ids) == b"a" * (LIMIT - 5 - 3) + b"end"


def test_an_unknown_argument_of_a_task_is_named(fake):
    with pytest.raises(TypeError, match="num_beam: there is no option of this name; did you mean num_beams?"):
        BerthLM(fake.address).generate_until(instances(("a", {"until": [], "num_beam": 2})), disable_tqdm=True)


def test_bos_is_added_as_asked(fake):
    """A text that begins with the prefix token has it already."""
    for add in (None, True, False):
        model = BerthLM(fake.address, add_bos_token=add)
        fake.requests.clear()
        model.tok_encode("abc")
        model.tok_encode("<eos>abc")
        model.tok_encode("abc", add_special_tokens=True)
        given = [request.add_special_tokens if request.HasField("add_special_tokens") else None
                 for _, request, *_ in fake.requests]
        assert given == [add, False, True]

def score(request, logprob=lambda position: -float(position)):
    """An answer whose tokens are scored by their position, and likeliest except for an x."""
    pb = api().inference_pb2
    ids = request.token_ids.ids
    return pb.GenerateResponse(prompt_logprobs=[
        pb.TokenLogprobs(token_id=token, logprob=logprob(position),
                         top=[pb.TopLogprob(token_id=0 if token == ord("x") else token)])
        for position, token in enumerate(ids) if position > 0])


def test_loglikelihood_scores_the_continuation(fake):
    fake.others["Complete"] = score
    model = BerthLM(fake.address, concurrency=1)
    fake.requests.clear()
    scores = model.loglikelihood(instances(("ab", "cd"), ("ab", "cx"), ("", "ab"), ("ab ", "c")), disable_tqdm=True)
    assert scores == [(-5, True), (-5, False), (-3, True), (-5, True)]
    sent = [request for name, request, *_ in fake.requests if name == "Complete"]
    assert [bytes(request.token_ids.ids) for request in sent] == [b"abcd", b"abcx", bytes([EOS]) + b"ab", b"ab c"]
    assert {(request.prompt_logprobs, request.stopping.max_tokens) for request in sent} == {(1, 1)}


def test_a_long_context_is_cut_for_its_continuation(fake):
    fake.others["Complete"] = score
    model = BerthLM(fake.address)
    assert model.loglikelihood(instances(("a" * 30, "bcd")), disable_tqdm=True) == [(-(16 + 17 + 18), True)]
    with pytest.raises(ValueError, match="a continuation of 19 tokens has no place beside its context in 19 tokens"):
        model.loglikelihood(instances(("a", "b" * 19)), disable_tqdm=True)


@pytest.mark.parametrize("length", [1, LIMIT - 3, LIMIT - 2, LIMIT - 1, 3 * LIMIT])
def test_rolling_loglikelihood_scores_each_token_once(fake, length):
    fake.others["Complete"] = lambda request: score(request, lambda position: -1.0)
    model = BerthLM(fake.address)
    assert model.loglikelihood_rolling(instances(("a" * length,)), disable_tqdm=True) == [-length]


def test_an_answer_without_scores_is_an_error(fake):
    with pytest.raises(ValueError, match="the server returned 0 prompt_logprobs for 2 tokens"):
        BerthLM(fake.address).loglikelihood(instances(("a", "b")), disable_tqdm=True)


def test_loglikelihood_is_refused_for_encoders(fake):
    control = api().control_pb2
    fake.others["GetModelInfo"] = lambda request: control.GetModelInfoResponse(
        name="m", eos_token_ids=[EOS], limits=control.Limits(max_sequence_tokens=LIMIT, max_encoder_tokens=9))
    with pytest.raises(ValueError, match="m: loglikelihood needs a model without an encoder"):
        BerthLM(fake.address).loglikelihood(instances(("a", "b")), disable_tqdm=True)


def test_loglikelihood_is_that_of_the_output(server):
    """The likelihood of a greedy answer, by the log-probabilities that came with it. They differ by the rounding of
    other chunks."""
    model = BerthLM(server.address)
    context = model.apply_chat_template([{"role": "user", "content": "What is 23 + 45?"}])
    answer = model.client.generate(context, temperature=0, logprobs=0)
    ids = model.tok_encode(answer.text)
    assert answer.token_ids[:len(ids)] == ids
    # By ids: lm-eval counts the white space at a context's end with the continuation, which the answer does not have.
    prompt, others = model.tok_encode(context), model.tok_encode(answer.text.replace("68", "69"))
    (right, greedy), (wrong, other) = model._loglikelihood_tokens(
        [(None, prompt, ids), (None, prompt, others)], disable_tqdm=True)
    assert right == pytest.approx(sum(token.logprob for token in answer.logprobs[:len(ids)]), abs=1e-4)
    assert (greedy, other) == (True, False) and wrong < right - 1


def test_loglikelihood_of_a_task(server):
    result, samples = evaluate(server, "berth_additions_choice")
    assert result["acc,none"] == 1 and len(samples) == 50
