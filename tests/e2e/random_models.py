"""Small checkpoints with random weights and a real tokenizer, for tests that send text. Needs transformers."""

import functools
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/gemma3-demo")
SMALL = dict(vocab_size=1024, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, initializer_range=0.2, max_position_embeddings=2048, bos_token_id=None,
             eos_token_id=2, pad_token_id=0)
# Static, sliding-window and recurrent caches.
DECODERS = {
    "llama": ("LlamaConfig", SMALL),
    "qwen3_next": ("Qwen3NextConfig", dict(
        SMALL, layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=12, linear_value_head_dim=16,
        num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32)),
}
T5 = dict(d_model=64, d_kv=16, num_heads=4, d_ff=96, num_layers=2, num_decoder_layers=2, initializer_factor=2.0,
          eos_token_id=1, pad_token_id=0, decoder_start_token_id=0)


def save(folder, config, fields):
    """Writes a checkpoint of random weights, from a fixed seed."""
    import torch
    import transformers

    torch.manual_seed(7)
    configuration = getattr(transformers, config)(**fields)
    classes = transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING if configuration.is_encoder_decoder else \
        transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    model = classes[type(configuration)](configuration)
    model.save_pretrained(folder)


def make(folder, name):
    """A decoder of DECODERS with the demo's tokenizer. Returns its folder."""
    path = os.path.join(folder, name)
    save(path, *DECODERS[name])
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(os.path.join(DEMO, file), path)
    return path


@functools.cache
def unigram_tokenizer():
    """A Unigram tokenizer as T5's: spaces as a mark before each word, which decoding takes off the first one."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers

    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        lines = file.read().splitlines()
    alphabet = [chr(code) for code in range(32, 127)]
    tokenizer.train_from_iterator(lines * 3, trainers.UnigramTrainer(
        vocab_size=700, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", initial_alphabet=alphabet,
        show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def make_t5(folder):
    """A T5 with a Unigram tokenizer. Returns its folder."""
    path = os.path.join(folder, "t5")
    tokenizer = unigram_tokenizer()
    save(path, "T5Config", dict(T5, vocab_size=tokenizer.get_vocab_size()))
    tokenizer.save(os.path.join(path, "tokenizer.json"))
    with open(os.path.join(path, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>"}, file)
    return path
