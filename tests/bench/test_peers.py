"""What the comparison with other engines (peers_bench.py) makes: Berth loads it, and the GGUF files say the same."""

import json
import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "peers")]

import gguf  # noqa: E402
import gguf_file  # noqa: E402
import measure  # noqa: E402
import models  # noqa: E402
import numpy as np  # noqa: E402
import peers_bench  # noqa: E402
import torch  # noqa: E402
from berth_engine import Engine  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

TOKENS = [3, 44, 105, 6, 44]


@pytest.fixture(scope="module", params=models.MODELS)
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    models.make_checkpoint(models.tiny(request.param), folder)
    return folder


def test_a_file_for_grammars_has_the_tokenizers_tokens(checkpoint, tmp_path):
    gguf_file.write(checkpoint, tmp_path / "model.gguf", vocabulary=True)
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    vocab = json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    assert fields["tokenizer.ggml.model"].contents() == "gpt2"
    assert fields["tokenizer.ggml.tokens"].contents() == sorted(vocab, key=vocab.get)
    assert fields["tokenizer.ggml.token_type"].contents()[:4] == [3, 3, 3, 1]


def test_berth_says_what_transformers_says(checkpoint):
    import transformers

    engine = Engine(checkpoint, threads=1, weights="float32")
    tokens, tops = engine.greedy(TOKENS, 4)
    engine.close()
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS + tokens[:-1]])).logits[0, len(TOKENS) - 1:]
    assert logits.argmax(-1).tolist() == tokens
    logprobs = torch.log_softmax(logits.double(), -1)
    for row, top in zip(logprobs, tops):
        assert top == pytest.approx({token: row[token].item() for token in top}, abs=1e-4)
    assert logprobs.std() > 0.5  # not a degenerate model, in which anything would agree


def test_the_share_of_the_bandwidth_is_each_pairs_own():
    row = measure.Row("m", "bf16", "decode", 2, ["Berth"], bytes_per_step=100)
    row.pairs, row.bandwidths = [{"Berth": 10}, {}, {"Berth": 40}], [1000, 1, 2000]
    assert row.roofline_share("Berth") == pytest.approx((0.5 + 1) / 2)
    assert row.roofline_share("llama.cpp") is None


@pytest.fixture(scope="module")
def file(checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    gguf_file.write(checkpoint, path)
    return gguf.GGUFReader(path)


def float_of(tensor):
    """A tensor of a GGUF file, in float32 and numpy's order of dimensions."""
    shape = tuple(int(n) for n in reversed(tensor.shape))
    if tensor.tensor_type == gguf.GGMLQuantizationType.BF16:
        return torch.from_numpy(np.array(tensor.data)).view(torch.bfloat16).float().numpy().reshape(shape)
    return np.array(tensor.data).reshape(shape)


def test_gguf_has_every_weight_once(checkpoint, file):
    weights = load_file(checkpoint / "model.safetensors")
    model_type = json.loads((checkpoint / "config.json").read_text())["model_type"]
    names = [gguf_file.tensor_name(model_type, name) for name in weights]
    assert sorted(names) == sorted(tensor.name for tensor in file.tensors)
    written = {tensor.name: tensor for tensor in file.tensors}
    moved = ("q_proj.weight", "k_proj.weight", "A_log") if model_type == "llama" else ("A_log",)
    for name, weight in weights.items():
        found = float_of(written[gguf_file.tensor_name(model_type, name)])
        assert found.size == weight.numel(), name
        if not name.endswith(moved):
            np.testing.assert_array_equal(found.reshape(-1), weight.float().numpy().reshape(-1), name)
        elif name.endswith("A_log"):
            np.testing.assert_allclose(found.reshape(-1), -np.exp(weight.float().numpy()), rtol=1e-6)


def test_gguf_says_the_architecture(checkpoint, file):
    config = json.loads((checkpoint / "config.json").read_text())
    architecture = config["model_type"].replace("_", "-")
    assert file.fields["general.architecture"].contents() == architecture
    for key, field in (("block_count", "num_hidden_layers"), ("embedding_length", "hidden_size"),
                       ("vocab_size", "vocab_size")):
        assert file.fields[f"{architecture}.{key}"].contents() == config[field]


def test_rotated_rows_are_neighbours():
    """llama.cpp rotates dimensions 2i and 2i + 1 of a head, transformers i and i + half."""
    rows = torch.arange(2 * 6, dtype=torch.float32).reshape(12, 1)  # two heads of 6
    assert gguf_file.neighbours_from_halves(rows, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_the_documents_command_names_no_path_of_this_machine():
    words = ["--models", "llama-125m", "--llama_cpp_python=/p", "--json", "/x", "--write", "--json=/y"]
    assert peers_bench.command(words) == "./dev bench peers --models llama-125m --write"
