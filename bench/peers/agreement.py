"""Whether the engines compute the same model.

Berth continues a prompt by 16 tokens, greedily, and says the logprobs of the 20 likeliest at each. The others read the
same prompt and tokens, and say the logprobs of the same 320. All are compared with transformers in float32 on the same
bfloat16 weights. With bfloat16 weights each engine must be within TOLERANCE of that, and choose the same token
wherever the float32 logprobs of the two are further apart than twice that. An engine that could not say its logprobs
was not compared, and counts as one that differs. The tolerance is what rounding activations to
bfloat16 (Berth, llama.cpp's products) costs in these models; a wrong layout is off by whole nats. Quantised weights are
other weights: their difference is printed, not judged. For an encoder-decoder model, the prompt is the encoder's
source.
"""

import dataclasses
import random

from worker import Failed

PROMPT_TOKENS = 48
NEW_TOKENS = 16
TOLERANCE = 0.15
TOLERANCES = {"bf16": TOLERANCE, "float32": 0.01}  # float32 differs only by the order of its sums


@dataclasses.dataclass
class Agreement:
    model: str
    weights: str
    engine: str
    largest: float  # of |logprob - float32's|
    mean: float
    same_choice: int  # places where the likeliest token is float32's
    clear_choice: int  # places where it is, or float32 has the two within 2 * TOLERANCE
    error: str = ""  # why it was not compared

    @property
    def ok(self):
        if self.error:
            return not self.judged
        return not self.judged or (self.largest <= TOLERANCES[self.weights] and self.clear_choice == NEW_TOKENS)

    @property
    def judged(self):
        return self.weights in TOLERANCES


def prompt(vocab):
    generator = random.Random(3)
    return [generator.randrange(3, vocab) for _ in range(PROMPT_TOKENS)]


def compare(model, weights, engine, ids, places, exact):
    """`places` and `exact`: what logprobs() of worker.py gives, of the engine and of float32."""
    differences, same, clear = [], 0, 0
    for wanted, place, reference in zip(ids, places, exact):
        differences += [abs(a - b) for a, b in zip(place["of_ids"], reference["of_ids"])]
        same += place["best"] == reference["best"]
        chosen = dict(zip(wanted, reference["of_ids"])).get(place["best"], float("-inf"))
        clear += place["best"] == reference["best"] or reference["logprob"] - chosen <= 2 * TOLERANCE
    return Agreement(model, weights, engine, max(differences), sum(differences) / len(differences), same, clear)


def unchecked(model, weights, engine, error):
    return Agreement(model, weights, engine, float("nan"), float("nan"), 0, 0, str(error) or type(error).__name__)


def asked_of(berth, make_reference, text):
    """What Berth answers to `text`, what each other engine is asked, and float32's answer."""
    tokens, tops = berth.greedy(text, NEW_TOKENS)
    asked = dict(prompt=text, continuation=tokens[:-1], ids=[list(top) for top in tops])
    reference = make_reference()
    try:
        exact = reference.logprobs(**asked)
    finally:
        reference.close()
    return [{"best": token, "of_ids": list(top.values())} for token, top in zip(tokens, tops)], asked, exact


def examine(model, weights, berth, others, make_reference, vocab):
    """Agreements of Berth and the `others` ({name: engine}) with what `make_reference` starts, which is float32."""
    try:
        places, asked, exact = asked_of(berth, make_reference, prompt(vocab))
    except Failed as error:
        return [unchecked(model, weights, name, error) for name in ("Berth", *others)]
    found = [compare(model, weights, "Berth", asked["ids"], places, exact)]
    for name, engine in others.items():
        try:
            found.append(compare(model, weights, name, asked["ids"], engine.logprobs(**asked), exact))
        except Failed as error:
            found.append(unchecked(model, weights, name, error))
    return found
