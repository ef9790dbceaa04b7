"""Each field of transformers' GenerationConfig in a checkpoint's generation_config.json: what Berth answers is what
generate() does, or a warning or a refusal names the field. models/checkpoint/generation_fields.cc says which.

A new field of transformers fails test_the_table_has_every_field, and then test_every_field_has_a_case.
"""

import json
import os
import shutil
import sys

import pytest
import torch
import transformers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT, BerthServer, DidNotStart, api, dry_run, generate_request  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
sys.path.insert(0, os.path.join(ROOT, "models"))
import random_models  # noqa: E402
from checkpoint_files_doc import generation_fields  # noqa: E402

FLAGS = ["--dtype=float32", "--arena=64MiB", "--check_integrity", "--draft_tokens=4"]
PROMPT = [5, 9, 9, 14, 23, 7, 9, 14]
LENGTH = 24
USES = {name: use for name, use, _, _ in generation_fields()}

# For each field a function from the tokens that greedy decoding gives without it to fields that change them.
DECODER = {
    "max_length": lambda out: dict(max_length=len(PROMPT) + 5, max_new_tokens=None),
    "max_new_tokens": lambda out: dict(max_new_tokens=3, max_length=len(PROMPT) + 5),
    "min_length": lambda out: dict(min_length=len(PROMPT) + 6, eos_token_id=out[2]),
    "min_new_tokens": lambda out: dict(min_new_tokens=7, min_length=2, eos_token_id=[out[2], out[3]]),
    "temperature": lambda out: dict(do_sample=True, temperature=1e-5),
    "top_k": lambda out: dict(do_sample=True, top_k=1),
    "top_p": lambda out: dict(do_sample=True, top_p=1e-7, top_k=0),
    "min_p": lambda out: dict(do_sample=True, min_p=1.0, top_k=0),
    "repetition_penalty": lambda out: dict(repetition_penalty=3.0),
    "no_repeat_ngram_size": lambda out: dict(no_repeat_ngram_size=2),
    "encoder_no_repeat_ngram_size": lambda out: dict(encoder_no_repeat_ngram_size=1),
    "bad_words_ids": lambda out: dict(bad_words_ids=[[out[1]], [out[3], out[4]], [1]]),
    "sequence_bias": lambda out: dict(sequence_bias=[[[out[0]], -1000.0], [[*PROMPT[-2:], 19], 300.0],
                                                     [[PROMPT[-1], 19], 300.0]]),
    "suppress_tokens": lambda out: dict(suppress_tokens=[out[0], out[4]]),
    "begin_suppress_tokens": lambda out: dict(begin_suppress_tokens=[out[0]]),
    "forced_eos_token_id": lambda out: dict(forced_eos_token_id=[17, 18], eos_token_id=22),
    "eos_token_id": lambda out: dict(eos_token_id=[out[3], 21]),
}
# With num_beams, which a request asks for by an empty beam_search.
BEAMS = {
    "num_beams": lambda out: dict(num_beams=3),
    "length_penalty": lambda out: dict(num_beams=3, length_penalty=-3.0, eos_token_id=[out[2], out[5], 11, 12, 13]),
    "early_stopping": lambda out: dict(num_beams=4, early_stopping="never", length_penalty=2.0,
                                       eos_token_id=[out[2], out[5], 11, 12, 13]),
    "no_repeat_ngram_size": lambda out: dict(num_beams=3, no_repeat_ngram_size=1),
    "suppress_tokens": lambda out: dict(num_beams=2, suppress_tokens=[*range(10, 18)], begin_suppress_tokens=[20]),
    "bad_words_ids": lambda out: dict(num_beams=3, bad_words_ids=[[out[1]], [out[3], out[4]]]),
}
ENCODER = {
    "decoder_start_token_id": lambda out: dict(decoder_start_token_id=9),
    "bos_token_id": lambda out: dict(decoder_start_token_id=None, bos_token_id=12),
    "forced_bos_token_id": lambda out: dict(forced_bos_token_id=15, begin_suppress_tokens=[out[1], 15]),
    "forced_eos_token_id": lambda out: dict(forced_eos_token_id=16),
    "encoder_no_repeat_ngram_size": lambda out: dict(encoder_no_repeat_ngram_size=1, no_repeat_ngram_size=1),
    "no_repeat_ngram_size": lambda out: dict(no_repeat_ngram_size=1),
    "min_length": lambda out: dict(min_length=7, eos_token_id=out[2]),
    "suppress_tokens": lambda out: dict(suppress_tokens=[out[0], out[2]]),
}
ALONE = {"do_sample", "stop_strings"}  # tested below
# Values of the fields that are not done. In one file, as a checkpoint may have many.
WARNED = dict(max_time=60.0, top_h=0.5, typical_p=0.9, epsilon_cutoff=3e-4, eta_cutoff=3e-4, renormalize_logits=True,
              remove_invalid_values=True, num_return_sequences=2, num_beams=2)
REFUSED = dict(num_beam_groups=2, diversity_penalty=0.5, penalty_alpha=0.6, dola_layers="low", constraints=[{}],
               force_words_ids=[[1]], encoder_repetition_penalty=1.5, exponential_decay_length_penalty=[2, 1.1],
               guidance_scale=1.5, watermarking_config={"bias": 2.5}, token_healing=True)
NO_EFFECT = dict(
    low_memory=True, pad_token_id=3, use_cache=True, cache_implementation="quantized", cache_config={"backend": "quanto"},
    max_cache_len=64, return_legacy_cache=True, prefill_chunk_size=4, compile_config={}, disable_compile=True,
    continuous_batching_config={}, is_assistant=False, num_assistant_tokens=5, num_assistant_tokens_schedule="constant",
    assistant_confidence_threshold=0.5, assistant_early_exit=1, assistant_lookbehind=3, assistant_ensemble_weight=0.5,
    target_lookbehind=3, speculation_type="x", use_mtp=True, prompt_lookup_num_tokens=3, max_matching_ngram_size=2,
    output_attentions=True, output_hidden_states=True, output_scores=True, output_logits=True,
    return_dict_in_generate=True, transformers_version="4.0.0", _from_model_config=True, _commit_hash="x",
    generation_kwargs={}, do_sample=False)
# A small vocabulary: n-grams repeat soon.
TINY = dict(random_models.SMALL, vocab_size=24, num_hidden_layers=2, initializer_range=0.4)
TINY_T5 = dict(random_models.T5, vocab_size=24)


def test_the_table_has_every_field():
    assert set(transformers.GenerationConfig().to_dict()) - set(USES) == set()


def test_every_field_has_a_case():
    tried = {"default": {*DECODER, *BEAMS, *ENCODER, *ALONE}, "always": {*DECODER, *BEAMS, *ENCODER},
             "no effect": {*NO_EFFECT, *ALONE}, "warned": set(WARNED), "refused": set(REFUSED)}
    assert [name for name, use in USES.items() if name not in tried[use]] == []


class Checkpoint:
    """A tiny model and its answers with a generation_config.json."""

    def __init__(self, folder, config, fields):
        random_models.save(folder, config, fields)
        self.folder = str(folder)
        with open(os.path.join(folder, "generation_config.json"), encoding="utf-8") as file:
            self.base = dict(json.load(file), max_new_tokens=LENGTH, eos_token_id=1)
        kind = transformers.AutoModelForSeq2SeqLM if config == "T5Config" else transformers.AutoModelForCausalLM
        self.model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.is_decoder = config != "T5Config"
        self.plain = self.generate({})

    def write(self, fields):
        settings = {name: value for name, value in {**self.base, **fields}.items() if value is not None}
        with open(os.path.join(self.folder, "generation_config.json"), "w", encoding="utf-8") as file:
            json.dump(settings, file)

    def generate(self, fields, prompt=PROMPT):
        """The tokens that generate() gives, without the prompt."""
        self.write(fields)
        self.model.generation_config = transformers.GenerationConfig.from_pretrained(self.folder)
        out = self.model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long))
        return out[0, len(prompt) if self.is_decoder else 1:].tolist()

    def answer(self, fields, beams=False, prompt=PROMPT):
        """The tokens of a server, whose request sets nothing but the input; and its log."""
        self.write(fields)
        with BerthServer(self.folder, *FLAGS) as server:
            request = generate_request(ids=prompt, temperature=None if fields.get("do_sample") or beams else 0.0)
            if beams:
                request.beam_search.SetInParent()
            return list(server.inference.Complete(request, timeout=60).token_ids), server.log()


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    return Checkpoint(tmp_path_factory.mktemp("decoder"), "LlamaConfig", TINY)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    torch.set_num_threads(1)
    return Checkpoint(tmp_path_factory.mktemp("encoder"), "T5Config", TINY_T5)


def check(checkpoint, case, beams=False, same=False):
    fields = case(checkpoint.plain)
    expected = checkpoint.generate(fields)
    assert (expected == checkpoint.plain) == same, "the value must be one that changes tokens"
    answer, _ = checkpoint.answer(fields, beams)
    assert answer == expected


@pytest.mark.parametrize("name", DECODER)
def test_a_decoder_answers_as_generate(name, decoder):
    check(decoder, DECODER[name], same=name in ("temperature", "top_k", "top_p", "min_p"))


@pytest.mark.parametrize("name", BEAMS)
def test_beams_are_those_of_generate(name, decoder):
    check(decoder, BEAMS[name], beams=True)


@pytest.mark.parametrize("name", ENCODER)
def test_an_encoder_decoder_answers_as_generate(name, encoder):
    check(encoder, ENCODER[name])


def test_forced_bos_of_a_decoder_follows_a_prompt_of_one_token(decoder):
    fields = dict(forced_bos_token_id=13, begin_suppress_tokens=[13, decoder.plain[0]])
    for prompt in ([7], [7, 8]):
        assert decoder.answer(fields, prompt=prompt)[0] == decoder.generate(fields, prompt), prompt


def test_fields_without_an_effect_and_with_a_warning_change_no_token(decoder):
    answer, log = decoder.answer(NO_EFFECT | WARNED | dict(chat_format="chatml", max_window_size=6144))
    assert answer == decoder.plain
    warnings = [line for line in log.splitlines() if "generation_config.json: " in line]
    assert len(warnings) == 2, warnings
    assert all(f"{name} {json.dumps(value)} (" in warnings[0] for name, value in WARNED.items()), warnings
    assert not any(f"{name} " in warnings[0] for name in NO_EFFECT), warnings
    assert warnings[1].endswith('Berth does not know these fields: "chat_format", "max_window_size"'), warnings


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_tokens_and_is_not_done_is_refused(name, decoder):
    decoder.write({name: REFUSED[name]})
    with pytest.raises(DidNotStart, match=f"generation_config.json: {name}: .* is not implemented; remove the field"):
        dry_run(decoder.folder)


def test_values_that_change_nothing_are_accepted(decoder):
    """Older files have every field, with its default."""
    defaults = transformers.GenerationConfig._get_default_generation_params()
    answer, log = decoder.answer({**defaults, "max_length": None, "guidance_scale": 1, "penalty_alpha": 0})
    assert answer == decoder.plain
    assert "generation_config.json" not in log


def test_without_the_file_the_fields_are_those_of_config(decoder, tmp_path):
    """BART's first checkpoints have no other place for them."""
    folder = tmp_path / "model"
    shutil.copytree(decoder.folder, folder)
    os.remove(folder / "generation_config.json")
    config = json.loads((folder / "config.json").read_text())
    config |= dict(no_repeat_ngram_size=1, max_length=20, begin_suppress_tokens=[decoder.plain[0]], eos_token_id=1)
    (folder / "config.json").write_text(json.dumps(config))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    expected = model.generate(torch.tensor([PROMPT]))[0, len(PROMPT):].tolist()
    with BerthServer(folder, *FLAGS) as server:
        answer = server.inference.Complete(generate_request(ids=PROMPT), timeout=60)
    assert list(answer.token_ids) == expected and len(expected) == 12


def test_stop_strings_end_the_text(tmp_path):
    """generate() needs its tokenizer for them, and keeps the string in its output."""
    folder = random_models.make(str(tmp_path), "llama")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = tokenizer("Who was Ada?", return_tensors="pt")
    plain = model.generate(**prompt, max_new_tokens=20)[0, prompt.input_ids.shape[1]:]
    pieces = [tokenizer.decode(plain[:n]) for n in range(21)]
    stop = next(pieces[n][len(pieces[n - 1]):] for n in range(5, 20) if len(pieces[n]) - len(pieces[n - 1]) > 1)
    path = os.path.join(folder, "generation_config.json")
    with open(path, encoding="utf-8") as file:
        fields = dict(json.load(file), stop_strings=[stop], max_new_tokens=20)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(fields, file)
    model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    stopped = model.generate(**prompt, tokenizer=tokenizer)[0, prompt.input_ids.shape[1]:].tolist()
    with BerthServer(folder, *FLAGS) as server:
        answer = server.inference.Complete(generate_request(ids=prompt.input_ids[0].tolist()), timeout=60)
        other = server.inference.Complete(
            generate_request(ids=prompt.input_ids[0].tolist(), stopping=api().inference_pb2.Stopping(stop=["\0"])), timeout=60)
    assert list(answer.token_ids) == stopped and len(stopped) < 20
    assert answer.stop_string == stop and stop not in answer.text
    assert list(other.token_ids) == plain.tolist(), "a request's own stop strings replace the model's"
