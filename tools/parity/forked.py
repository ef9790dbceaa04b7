"""Several outputs of one request: what transformers' beam search answers, and the comparison with the server's.

The oracle searches with its cache, but where that is wrong (uses_cache): then it recomputes every step from the tokens. Not
elsewhere: m2m_100 after pad tokens and nemotron_h compute a token otherwise without a cache. The answers lie beside the case's others, by the hash of what decides them.
"""

import copy
import hashlib
import json
import pathlib

import lock
import oracle
from cases import CASES

NEW_TOKENS = 24
PROMPT_LENGTHS = [7, 33]
# (num_beams, length_penalty, early_stopping)
SEARCHES = [(2, 0.7, True), (2, 1.5, "never"), (3, 1.0, False), (4, 0.7, False), (4, 1.0, True)]
SEED = 1000


def answers_file(folder, case):
    sources = [pathlib.Path(__file__).read_bytes(), repr(case).encode()]
    return folder / f"forked-{hashlib.sha256(b'0'.join(sources)).hexdigest()[:16]}.json"


def uses_cache(case):
    """Not where generate() itself is wrong. That is so for recurrent_gemma, whose states a beam search does not
    reorder."""
    return not (case.whole_forward or case.config == "RecurrentGemmaConfig")


def remade_model(case):
    import torch

    model = oracle.make_model(case)
    if case.mxfp4:
        oracle.draw_mxfp4(model, torch.Generator().manual_seed(2))
    return model


class Margins:
    """The least difference that decided anything of a search: between neighbours among the candidates and among the
    ended beams, and between what decided that it was over."""

    def __init__(self, model):
        self.least = float("inf")
        top, ended, early = model._get_top_k_continuations, model._update_finished_beams, model._check_early_stop_heuristic

        def get_top(**arguments):
            wider = dict(arguments, beams_to_keep=arguments["beams_to_keep"] + 1)
            self.note_order(top(**wider)[0][0])
            return top(**arguments)

        def update_ended(**arguments):
            result = ended(**arguments)
            self.note_order(result[1][0])
            return result

        def check_early(**arguments):
            scores, is_ended = arguments["beam_scores"], arguments["is_sent_finished"]
            if bool(is_ended.all()):
                never = arguments["early_stopping"] == "never" and arguments["length_penalty"] > 0
                length = (arguments["max_length"] if never else arguments["cur_len"]) - arguments["decoder_prompt_len"]
                best = arguments["running_beam_scores"][0, 0] / length ** arguments["length_penalty"]
                self.least = min(self.least, abs(float(best - scores.min())))
            return early(**arguments)

        model._get_top_k_continuations = get_top
        model._update_finished_beams = update_ended
        model._check_early_stop_heuristic = check_early

    def note_order(self, scores):
        known = scores[scores > -1e8]
        if len(known) > 1:
            self.least = min(self.least, float((known[:-1] - known[1:]).abs().min()))


def search(model, case, prompt, settings, ends):
    """The output tokens of every beam, best first, and the margin."""
    import torch

    model = copy.deepcopy(model)  # some remember the last length
    num_beams, length_penalty, early_stopping = settings
    margins = Margins(model)
    fields = oracle.decoder_inputs(model, case)
    if case.forced_bos is not None:
        fields["forced_bos_token_id"] = case.forced_bos
    with torch.no_grad():
        out = model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=num_beams,
                             num_return_sequences=num_beams, length_penalty=length_penalty,
                             early_stopping=early_stopping, eos_token_id=ends, pad_token_id=2,
                             use_cache=uses_cache(case),
                             return_dict_in_generate=True, output_scores=True, **fields)
    lengths = (out.beam_indices >= 0).sum(-1).tolist()
    start = fields["decoder_input_ids"].shape[1] if "decoder_input_ids" in fields else len(prompt)
    return [row[start: start + n].tolist() for row, n in zip(out.sequences, lengths)], margins.least


def load(name, folder, answers):
    """What transformers answers to each prompt and search."""
    path = answers_file(folder, CASES[name])
    with lock.locked(name, folder):
        if not path.exists():
            path.with_suffix(".tmp").write_text(json.dumps(make(CASES[name], answers)))
            path.with_suffix(".tmp").rename(path)
        return json.loads(path.read_text())


def make(case, answers):
    model = remade_model(case)
    prompts = [prompt for prompt in answers["prompts"] if len(prompt) in PROMPT_LENGTHS]
    greedy = [tokens for prompt, tokens in zip(answers["prompts"], answers["tokens"]) if len(prompt) in PROMPT_LENGTHS]
    # Tokens that greedy outputs meet half way: so beams end at all lengths.
    ends = sorted({tokens[at] for tokens in greedy for at in (6, 13)} | {1})
    rows = [dict(prompt=prompt, settings=settings, ends=ends) for prompt in prompts for settings in SEARCHES]
    for row in rows:
        row["beams"], row["margin"] = search(model, case, row["prompt"], row["settings"], ends)
    return rows
