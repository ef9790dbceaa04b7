"""Which of a model's chat templates is used: transformers' choice, for each set of files that may hold one."""

import itertools
import json

import pytest
import tokenizers
from tokenizers import models
from transformers import AutoTokenizer

MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
TEXT = "config {{ tools }}"
NAMED = [{"name": "default", "template": "named {{ tools }}"}, {"name": "tool_use", "template": "named tools {{ tools }}"},
         {"name": "rag", "template": "named rag"}]
CONFIGS = [None, TEXT, NAMED, NAMED[1:]]
FILES = ["chat_template.jinja", "additional_chat_templates/tool_use.jinja", "additional_chat_templates/rag.jinja"]


@pytest.mark.parametrize("config", CONFIGS, ids=["none", "text", "named", "without default"])
@pytest.mark.parametrize("files", list(itertools.product([False, True], repeat=len(FILES))))
def test_the_template_is_transformers_choice(config, files, oracle, tmp_path):
    tokenizers.Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | ({} if config is None else {"chat_template": config})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "additional_chat_templates").mkdir()
    for name, exists in zip(FILES, files):
        if exists:
            (tmp_path / name).write_text(f"{name} {{{{ tools }}}}")
    reference = AutoTokenizer.from_pretrained(tmp_path)
    loaded = oracle.ask(template_of=str(tmp_path))
    for tools in (None, TOOLS):
        try:
            expected = reference.apply_chat_template(MESSAGES, tools=tools, tokenize=False)
        except ValueError:  # there is none for this
            expected = None
        answer = loaded if "error" in loaded else oracle.ask(render=MESSAGES, tools=tools, generation=False)
        assert answer.get("value") == expected, (answer, tools)
