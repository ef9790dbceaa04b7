"""What the sampler keeps, and with which probabilities, is what transformers' logits processors keep.

Run with the oracle's Python; BERTH_BIN is bazel-bin:
    bazel build //tests/models/sampling:sampler_oracle_main
    BERTH_BIN=bazel-bin ~/.cache/berth/oracle-venv/bin/python -m pytest tests/models/sampling
"""

import json
import os
import pathlib
import random
import subprocess

import pytest

torch = pytest.importorskip("torch")
from transformers.generation import logits_process  # noqa: E402

BINARY = pathlib.Path(os.environ.get("BERTH_BIN", "bazel-bin")) / "tests/models/sampling/sampler_oracle_main"


def transformers_scores(logits, history, params):
    """In float64, so that what is compared is the rules and not the rounding of a softmax of 5,000 floats."""
    scores = torch.tensor([logits], dtype=torch.float32)
    ids = torch.tensor([history], dtype=torch.long)
    chain = []
    if "repetition_penalty" in params:
        chain.append(logits_process.RepetitionPenaltyLogitsProcessor(params["repetition_penalty"]))
    scores = logits_process.LogitsProcessorList(chain)(ids, scores).double()
    chain = []
    # The order of GenerationMixin._get_logits_processor.
    if "temperature" in params:
        chain.append(logits_process.TemperatureLogitsWarper(params["temperature"]))
    if "top_k" in params:
        chain.append(logits_process.TopKLogitsWarper(params["top_k"]))
    if "top_p" in params:
        chain.append(logits_process.TopPLogitsWarper(params["top_p"]))
    if "min_p" in params:
        chain.append(logits_process.MinPLogitsWarper(params["min_p"]))
    return logits_process.LogitsProcessorList(chain)(ids, scores)[0]


def as_float32(value):
    return torch.tensor(value, dtype=torch.float32).item()


def random_case(rng):
    vocab = rng.choice([2, 33, 257, 1000, 5000])
    spread = rng.choice([0.3, 1.0, 3.0, 8.0])
    logits = [as_float32(rng.gauss(0, spread)) for _ in range(vocab)]
    params = {}
    if rng.random() < 0.7:
        params["temperature"] = as_float32(rng.choice([0.2, 0.7, 1.5, 5.0]))
    if rng.random() < 0.5:
        params["top_k"] = rng.choice([1, 5, 50, 400])
    if rng.random() < 0.6:
        params["top_p"] = as_float32(rng.choice([0.05, 0.5, 0.8, 0.95, 0.999]))
    if rng.random() < 0.4:
        params["min_p"] = as_float32(rng.choice([0.001, 0.05, 0.3]))
    if rng.random() < 0.4:
        params["repetition_penalty"] = as_float32(rng.choice([0.8, 1.1, 1.7]))
    history = [rng.randrange(vocab) for _ in range(rng.randrange(1, 100))]
    return {"logits": logits, "history": history, "params": params}


def test_kept_tokens_and_probabilities_are_those_of_transformers():
    rng = random.Random(0)
    cases = [random_case(rng) for _ in range(400)]
    lines = "".join(json.dumps(case) + "\n" for case in cases)
    output = subprocess.run([BINARY], input=lines, capture_output=True, text=True, check=True, timeout=1200).stdout
    answers = [json.loads(line) for line in output.splitlines()]
    assert len(answers) == len(cases)
    for case, answer in zip(cases, answers):
        scores = transformers_scores(case["logits"], case["history"], case["params"])
        kept = torch.nonzero(scores > -torch.inf).flatten().tolist()
        assert answer["kept"] == kept, case["params"]
        assert answer["token"] in kept
        expected = scores.softmax(-1)[kept]
        torch.testing.assert_close(
            torch.tensor(answer["probabilities"], dtype=torch.float64), expected, rtol=1e-10, atol=0.0
        )
