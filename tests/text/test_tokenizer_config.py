"""What tokenizer_config.json, special_tokens_map.json and added_tokens.json say beside tokenizer.json: the ids, texts and
template variables are those of transformers, or a warning names the field."""

import json
import os
import sys

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../models"))
from checkpoint_files_doc import tokenizer_fields  # noqa: E402

TEXTS = ["a plain text", "<s>hello</s>", "one <mark> two<mark>three  <mark>  four", "[PAD]tail [SEP] <new> <new>word",
         "<|im_start|>user\nhi<|im_end|>", "le <mark>text<x><y>", ""]
MESSAGES = [{"role": "user", "content": "hi"}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def decoder_entry(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True, **flags}


CASES = {
    "nothing": {},
    "named": SPECIAL,
    "a named token of the vocabulary becomes special": SPECIAL | {"pad_token": "pla"},
    "named tokens that are new": SPECIAL | {"pad_token": "[PAD]", "sep_token": "[SEP]", "unk_token": "<unk>"},
    "a token of the model's own": SPECIAL | {"image_token": "<mark>"},
    "objects": {"bos_token": {"__type": "AddedToken", **decoder_entry("<s>")},
                "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": True, "rstrip": False,
                              "single_word": False, "normalized": True}},
    "added_tokens_decoder": SPECIAL | {"added_tokens_decoder": {
        "0": decoder_entry("<s>"), "1": decoder_entry("</s>"), "2": decoder_entry("<mark>", lstrip=True, rstrip=True),
        "400": decoder_entry("<new>", special=False, normalized=True), "401": decoder_entry("<x>", single_word=True)}},
    "additional_special_tokens": SPECIAL | {"additional_special_tokens": ["<x>", "<mark>", "<y>"]},
    "extra_special_tokens by name": SPECIAL | {"extra_special_tokens": {"image": "<x>", "video": "<y>"}},
    "both lists": SPECIAL | {"extra_special_tokens": ["<x>"], "additional_special_tokens": ["<y>"]},
    "split_special_tokens": SPECIAL | {"split_special_tokens": True},
    "add_bos_token": SPECIAL | {"add_bos_token": True, "add_eos_token": True},
    "no add_bos_token": SPECIAL | {"add_bos_token": False},
    "padding and truncation": SPECIAL | {"pad_token": "<s>", "padding_side": "left", "truncation_side": "left",
                                         "model_max_length": 3, "max_length": 2, "pad_to_multiple_of": 8},
    "clean up": SPECIAL | {"clean_up_tokenization_spaces": True},
}
OTHER_FILES = {
    "map": {"special_tokens_map.json": {"pad_token": "[PAD]", "eos_token": {"content": "</s>", "lstrip": True,
                                                                            "rstrip": False, "single_word": False,
                                                                            "normalized": False}}},
    "map wins": {"special_tokens_map.json": {"eos_token": "<mark>", "additional_special_tokens": ["<x>"]}},
    "added": {"added_tokens.json": {"<new>": 401, "<x>": 400, "<mark>": 2}},
    "both": {"special_tokens_map.json": {"pad_token": "<x>"}, "added_tokens.json": {"<x>": 400}},
}


def save_tokenizer(folder, post_processor):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(["a plain text of one two three four words and a tail"] * 4, trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>", "</s>", "<mark>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if post_processor:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(os.path.join(folder, "tokenizer.json"))


@pytest.fixture(scope="module", params=[False, True], ids=["no post-processor", "post-processor"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(path, request.param)
    return path


def load(folder, config, others, oracle):
    """Both loaded from the folder with these files; and Berth's warnings."""
    for name in ("special_tokens_map.json", "added_tokens.json"):
        if name in others:
            (folder / name).write_text(json.dumps(others[name]))
        else:
            (folder / name).unlink(missing_ok=True)
    template = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ image_token }}"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    answer = oracle.ask(load=str(folder))
    assert "value" in answer, answer
    return AutoTokenizer.from_pretrained(folder), answer["warnings"]


def check(folder, config, others, oracle):
    reference, warnings = load(folder, config, others, oracle)
    for text in TEXTS:
        for special in (True, False):
            ids = reference(text, add_special_tokens=special)["input_ids"]
            assert oracle.value(encode=text, special=special) == ids, text
            for skip in (True, False):
                assert oracle.value(decode=ids, skip=skip) == reference.decode(ids, skip_special_tokens=skip), (text, ids)
    assert oracle.value(template_of=str(folder)) is True
    rendered = oracle.value(render=MESSAGES, tools=None, generation=False)
    assert rendered == reference.apply_chat_template(MESSAGES, tokenize=False)
    return warnings


@pytest.mark.parametrize("name", CASES)
def test_the_tokenizer_is_transformers(name, folder, oracle):
    check(folder, CASES[name], {}, oracle)


@pytest.mark.parametrize("config", [SPECIAL, CASES["added_tokens_decoder"]], ids=["without a decoder", "with one"])
@pytest.mark.parametrize("name", OTHER_FILES)
def test_the_older_files_count_without_a_decoder(name, config, folder, oracle):
    check(folder, config, OTHER_FILES[name], oracle)


def test_warns_of_what_is_not_done(folder, oracle):
    adds_bos = "TemplateProcessing" in (folder / "tokenizer.json").read_text()
    warnings = check(folder, SPECIAL | {"add_bos_token": not adds_bos, "add_eos_token": False, "chat_format": 1}, {}, oracle)
    assert len(warnings) == 2, warnings
    assert f"add_bos_token is {str(not adds_bos).lower()}, but tokenizer.json adds" in warnings[0]
    assert warnings[1].endswith('Berth does not know these fields: "chat_format"')


def test_warns_of_clean_up_where_transformers_does_it(oracle, tmp_path):
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, ".": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    _, warnings = load(tmp_path, {"clean_up_tokenization_spaces": True}, {}, oracle)
    assert len(warnings) == 1 and "clean_up_tokenization_spaces is true" in warnings[0]


@pytest.mark.parametrize("config, words", [
    ({"split_special_tokens": 1}, "split_special_tokens"), ({"added_tokens_decoder": []}, "added_tokens_decoder"),
    ({"added_tokens_decoder": {"x": {"content": "y"}}}, 'added_tokens_decoder: "x"'),
    ({"added_tokens_decoder": {"3": {"content": 4}}}, 'added_tokens_decoder: "3"')])
def test_refuses_wrong_fields(config, words, folder, oracle):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert words in oracle.ask(load=str(folder))["error"]


def test_no_saved_field_is_unknown(folder, oracle, tmp_path):
    """What transformers writes, it may also read: none of it may be called unknown."""
    for config in CASES.values():
        load(folder, config, {}, oracle)[0].save_pretrained(tmp_path)
        saved = set(json.loads((tmp_path / "tokenizer_config.json").read_text()))
        known = {name for name, *_ in tokenizer_fields()}
        assert {name for name in saved - known if not name.endswith("_token")} - {
            "model_specific_special_tokens", "image", "video"} == set()
