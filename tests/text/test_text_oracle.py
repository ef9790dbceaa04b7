"""The text front end against Python's tokenizers and transformers' apply_chat_template.

Tokenizers of the kinds that checkpoints carry are trained here on generated text. Both sides encode, decode and stream
1,000 varied strings, and 20 conversations are rendered through templates written in the styles of the common families.
"""

import json
import random

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

REPLACEMENT = "\ufffd"

WORDS = ("the quick brown fox can't won't it's naïve café Straße Ünïcödé привет мир 日本語 漢字 한국어 שלום مرحبا "
         "def return print(x) == != => {} [] 3.14 1,000 42 0x1F https://example.org/a?b=c HELLO World").split()
RARE = ["🙂", "👩‍👩‍👧", "🇫🇷", "e\u0301", "\u200b", "\u00a0", "\t", "\n", "\r\n", "  ", "   ", "\x01", "\x7f", "ﬁ", "½",
        "\u202e", "𝔘", "<|im_start|>", "</s>", "<s>", "[SEP]", "\ufeff", "’", "…", "ا\u064b"]


def varied_strings(count, seed):
    rng = random.Random(seed)
    strings = ["", " ", "\n", "a", " a", "a ", "🙂", "\u0301", "</s>", "  leading", "trailing  "]
    while len(strings) < count:
        parts = []
        for _ in range(rng.randint(1, 25)):
            kind = rng.random()
            if kind < 0.6:
                parts.append(rng.choice(WORDS))
            elif kind < 0.8:
                parts.append(rng.choice(RARE))
            elif kind < 0.9:
                parts.append("".join(chr(rng.choice([rng.randint(32, 126), rng.randint(0xA0, 0x2FFF)])) for _ in range(5)))
            else:
                parts.append(str(rng.randint(0, 10**6)))
            parts.append(rng.choice(["", " ", " ", " ", "\n"]))
        strings.append("".join(parts))
    return strings


def corpus():
    return [" ".join(random.Random(i).choices(WORDS, k=40)) for i in range(300)]


SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]
LLAMA3_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
                r"\s*[\r\n]+|\s+(?!\S)|\s+")


def gpt2():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def bart():
    tokenizer = gpt2()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), add_prefix_space=False)
    return tokenizer


def llama3():
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(LLAMA3_SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def qwen():
    tokenizer = llama3()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def llama2():
    """SentencePiece BPE: spaces as metaspace, unknown characters as bytes, the first space dropped in decoding."""
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=SPECIAL + byte_tokens)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    # The byte tokens are ordinary vocabulary in real files, not special.
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] in SPECIAL]
    return tokenizers.Tokenizer.from_str(json.dumps(data))


def gemma():
    tokenizer = llama2()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def t5():
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(corpus(), trainers.UnigramTrainer(vocab_size=400, special_tokens=SPECIAL,
                                                                    unk_token="<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def bert():
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(corpus(), trainers.WordPieceTrainer(vocab_size=500, special_tokens=SPECIAL))
    return tokenizer


@pytest.mark.parametrize("make", [gpt2, bart, llama3, qwen, llama2, gemma, t5, bert])
def test_tokens_and_streams_equal_pythons(make, oracle, tmp_path):
    reference = make()
    reference.save(str(tmp_path / "tokenizer.json"))
    assert oracle.value(load=str(tmp_path)) == max(reference.get_vocab().values()) + 1
    for i, text in enumerate(varied_strings(1000, seed=17)):
        special = i % 2 == 0
        ids = reference.encode(text, add_special_tokens=special).ids
        assert oracle.value(encode=text, special=special) == ids, repr(text)
        for skip in (False, True):
            whole = reference.decode(ids, skip_special_tokens=skip)
            assert oracle.value(decode=ids, skip=skip) == whole
        if i % 4 == 0:
            check_stream(oracle.value(stream=ids, skip=True), reference.decode(ids, skip_special_tokens=True))


@pytest.mark.parametrize("make", [gpt2, llama3, llama2, gemma])
def test_streams_of_random_tokens(make, oracle, tmp_path):
    """Equal to the whole where bytes are marked one by one; byte-fallback decoders rewrite text that a later, invalid
    byte follows, so there the stream only has to stay text."""
    reference = make()
    reference.save(str(tmp_path / "tokenizer.json"))
    size = oracle.value(load=str(tmp_path))
    rng = random.Random(3)
    for _ in range(100):
        ids = [rng.randrange(size) for _ in range(40)]
        text = "".join(oracle.value(stream=ids, skip=False))
        if make in (gpt2, llama3):
            assert text == reference.decode(ids, skip_special_tokens=False)


def test_tokenizers_of_families(oracle, tmp_path):
    """With the ids in the order of real families: test_tokenizers.h."""
    families = oracle.value(families=True)
    assert {"llama-2", "llama-3.1", "gemma-3", "qwen-3", "deepseek-v3", "gpt-oss"} <= set(families)
    for name, text in families.items():
        reference = tokenizers.Tokenizer.from_str(text)
        (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
        assert oracle.value(load=str(tmp_path)) == max(reference.get_vocab().values()) + 1, name
        for string in varied_strings(150, seed=23):
            ids = reference.encode(string, add_special_tokens=False).ids
            assert oracle.value(encode=string, special=False) == ids, (name, string)
            for skip in (False, True):
                whole = reference.decode(ids, skip_special_tokens=skip)
                assert oracle.value(decode=ids, skip=skip) == whole, (name, string)
                check_stream(oracle.value(stream=ids, skip=skip), whole)


def check_stream(pieces, whole):
    assert "".join(pieces) == whole
    if REPLACEMENT not in whole:
        assert all(REPLACEMENT not in piece for piece in pieces)


CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + (reasoning and '<think>' + reasoning.strip('\\n') + '</think>' or '') + content }}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

HEADERS = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
    {%- else %}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

INST = """{{ bos_token }}{% for message in messages %}{% if message['role'] not in ['user', 'assistant', 'system', 'tool'] %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% if message['role'] == 'user' %}{{ ' [INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' and message.get('content') %}{{ ' ' + message['content'] + eos_token }}{% else %}{% continue %}{% endif %}{% endfor %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model
'}}{%- endif -%}
"""

PRINTING = """{% for m in messages %}
  {% generation %}
    {{ loop.index }}. {{ m.role.upper().title() }}|{{ m.content is none }}|{{ [1, 2.0, 'x', "it's", none, true] }}|{{ 1e-7 }}|{{ 10 / 4 }}|{{ 7 // 2 }}
  {% endgeneration %}
  {{ {'a': 1, 'b': [true, none]} }} {{ m.keys() | list | join(',') }} {{ m.items() | list | length }} {{ undefined_name }}
  {{- m | tojson(sort_keys=true) }} {{ m.role[0:2] ~ 3 ~ none }} {{ 'a-b-c'.replace('-', '+', 1) }} {{ "%s" | format(m.role) }}
{% endfor %}
{{ messages | map(attribute='role') | unique | list }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ 3 | string + 'x' }} {{ (messages | last).role }}"""

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds <two> numbers & 'more'",
                                           "parameters": {"type": "object", "properties": {"a": {"type": "number"}},
                                                          "required": ["a"], "x": [], "y": {}, "z": 1.0}}}]


def conversations():
    texts = ["Hello!", " spaces ", "line\nbreak", "日本語 🙂", "<b>&amp;</b> \"quoted\" 'single'", "</think> x", "\\n \\u00e9",
             "a\tb", "", "tool"]
    rng = random.Random(1)
    chats = []
    for i in range(20):
        messages = [{"role": "system", "content": rng.choice(texts)}] if i % 3 == 0 else []
        for turn in range(1 + i % 4):
            messages.append({"role": "user", "content": rng.choice(texts)})
            if turn or i % 2:
                messages.append({"role": "assistant", "content": rng.choice(texts + ["<think>\nwhy\n</think>\n\nyes"])})
        if i % 5 == 4:
            call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1.5, "b": [1, None, True], "c": "é"}}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "content": "2.5"})
        chats.append((messages, TOOLS if i % 4 == 2 else None, i % 2 == 0))
    return chats


@pytest.mark.parametrize("name", ["CHATML", "HEADERS", "INST", "GEMMA", "PRINTING"])
def test_chat_templates_equal_transformers(name, oracle):
    template = globals()[name]
    reference = PreTrainedTokenizerFast(tokenizer_object=gpt2(), bos_token="<s>", eos_token="</s>", chat_template=template)
    oracle.value(template=template, variables={"bos_token": "<s>", "eos_token": "</s>"})
    for messages, tools, generation in conversations():
        if tools and "tools" not in template:  # transformers leaves them out
            answer = oracle.ask(render=messages, tools=tools, generation=generation)
            assert answer["error"] == "chat.tools_json: the model's chat template has no place for tools"
            tools = None
        expected = reference.apply_chat_template(messages, tools=tools, add_generation_prompt=generation, tokenize=False)
        assert oracle.value(render=messages, tools=tools, generation=generation) == expected
    thinking = dict(enable_thinking=False)
    messages = conversations()[0][0]
    assert oracle.value(render=messages, tools=None, generation=True, extra=thinking) == \
        reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **thinking)


def test_a_template_refuses_with_its_own_words(oracle):
    oracle.value(template=INST, variables={"bos_token": "<s>"})
    answer = oracle.ask(render=[{"role": "robot", "content": "x"}], tools=None, generation=True)
    assert "Only user and assistant roles are supported!" in answer["error"]
