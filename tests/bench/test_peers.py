"""What the comparison with other engines (peers_bench.py) makes: Berth loads it, and the GGUF files say the same."""

import json
import os
import subprocess
import sys
import types

import pytest

BENCH = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../bench"))
sys.path[:0] = [BENCH, os.path.join(BENCH, "peers")]

import gguf  # noqa: E402
import gguf_file  # noqa: E402
import machine  # noqa: E402
import measure  # noqa: E402
import models  # noqa: E402
import open_loop  # noqa: E402
import numpy as np  # noqa: E402
import peers_bench  # noqa: E402
import report  # noqa: E402
import torch  # noqa: E402
import work  # noqa: E402
from berth_engine import Engine  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from worker import Failed, Worker  # noqa: E402

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
    config = json.loads((checkpoint / "config.json").read_text())
    model_type = config["model_type"]
    parts = dict(part for name, weight in weights.items() for part in gguf_file.split(config, name, weight))
    names = [gguf_file.tensor_name(model_type, name) for name in parts]
    assert sorted(names) == sorted(tensor.name for tensor in file.tensors)
    written = {tensor.name: tensor for tensor in file.tensors}
    moved = ("q_proj.weight", "k_proj.weight", "A_log") if model_type == "llama" else ("A_log",)
    for name, weight in parts.items():
        shift = len(weight.shape) == 1 and name.endswith("norm.weight") and models.zero_centred(name, model_type)
        weight = weight.float() + shift
        found = float_of(written[gguf_file.tensor_name(model_type, name)])
        assert found.size == weight.numel(), name
        if not name.endswith(moved):
            np.testing.assert_array_equal(found.reshape(-1), weight.float().numpy().reshape(-1), name)
        elif name.endswith("A_log"):
            np.testing.assert_allclose(found.reshape(-1), -np.exp(weight.float().numpy()), rtol=1e-6)


def test_gguf_says_the_architecture(checkpoint, file):
    config = json.loads((checkpoint / "config.json").read_text())
    architecture = gguf_file.ARCHITECTURE.get(config["model_type"], config["model_type"].replace("_", "-"))
    assert file.fields["general.architecture"].contents() == architecture
    for key, field in (("block_count", "num_hidden_layers"), ("embedding_length", "hidden_size"),
                       ("vocab_size", "vocab_size")):
        assert file.fields[f"{architecture}.{key}"].contents() == config[field]


def test_rotated_rows_are_neighbours():
    """llama.cpp rotates dimensions 2i and 2i + 1 of a head, transformers i and i + half."""
    rows = torch.arange(2 * 6, dtype=torch.float32).reshape(12, 1)  # two heads of 6
    assert gguf_file.neighbours_from_halves(rows, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def row(ratio_to, model, **fields):
    """A decode row in which Berth makes 12 tokens/s."""
    made = measure.Row(model, "bf16", "decode", 1, ["llama.cpp", "Berth", "OpenVINO"], **fields)
    made.pairs = [{"Berth": 12, **{peer: 12 / ratio for peer, ratio in ratio_to.items()}}]
    return made


def test_the_weakest_row_comes_first_with_its_best_peer():
    lines = report.rates([row({"llama.cpp": 3}, "a"), row({"llama.cpp": 2, "OpenVINO": 0.5}, "b"), row({}, "c")]).splitlines()
    assert [line.split(" | ")[2] for line in lines[2:]] == ["b", "a", "c"]
    assert lines[2].startswith("| **0.50** (0.50-0.50, 1) | OpenVINO | b |")


def test_a_row_says_what_bounds_it():
    made = row({}, "m", bytes_per_step=5, flops_per_token=10, peak=200)
    made.bandwidths = [100]
    assert (made.roofline_share("Berth"), made.products_share("Berth"), made.bound("Berth")) == (0.6, 0.6, "bandwidth")
    made.bandwidths = [200]
    assert made.bound("Berth") == "products"
    made.peak = 1000
    assert made.bound("Berth") == "neither"
    assert row({}, "m", context=8000).what == "decode 1 at 8,000"


def test_a_token_multiplies_with_its_experts_and_its_head_alone():
    tensors = {"model.embed_tokens.weight": [100, 8], "model.layers.0.mlp.experts.gate_up_proj": [4, 6, 8],
               "model.layers.0.mlp.gate.weight": [4, 8], "model.layers.0.conv.conv.weight": [8, 1, 3],
               "model.layers.0.conv.in_proj.weight": [24, 8], "model.norm.weight": [8]}
    config = dict(hidden_size=8, vocab_size=100, num_experts=4, num_experts_per_tok=1)
    layer = 2 * (6 * 8 + 4 * 8 + 24 * 8)
    assert work.flops_per_token(tensors, config, head=False) == layer
    assert work.flops_per_token(tensors, config, head=True) == layer + 2 * 8 * 100
    assert work.experts_read(4, 1, 1) == pytest.approx(1)
    assert work.experts_read(4, 1, 100) == pytest.approx(4)


@pytest.mark.parametrize("kind", ["decode", "prefill", "encode"])
def test_each_engine_is_warmed_once_before_it_is_measured(kind):
    calls = []

    class Warmed:
        def __init__(self, name):
            self.name = name

        def decode(self, streams, prompt_tokens, steps):
            calls.append(self.name)
            return 100

        def prefill(self, tokens):
            calls.append(self.name)
            return 1

    made = measure.Row("m", "bf16", kind, 4, ["a", "b"])
    measure.fill(made, {name: Warmed(name) for name in made.engines}, 1, 1, 60, lambda: 1)
    assert calls == ["a", "b", "a", "b"] and len(made.pairs) == 1


def test_the_caches_hold_the_longest_case():
    arguments = peers_bench.parse(["--llama_cpp_python=p", "--openvino_python=p", "--streams", "1", "64", "--contexts", "8000"])
    needed = work.sequences(arguments)
    assert max(tokens for _, tokens in needed) >= 8000 + measure.CONTEXT_STEPS
    assert work.cache_tokens(needed) >= 64 * (measure.PROMPT_TOKENS + measure.MAX_STEPS)
    llama = dict(num_hidden_layers=22, num_key_value_heads=4, num_attention_heads=32, hidden_size=2048)
    assert work.arena_gib(llama, needed) == 3


def test_a_step_reads_no_more_of_a_cache_than_its_window():
    def group(window, chunk):
        return types.SimpleNamespace(bytes_per_sequence=3, bytes_per_token=2, window=window, chunk=chunk)

    # What a sequence has once, its states, is read and written.
    assert work.cache_bytes([group(0, 0), group(10, 0), group(0, 20)], 100) == 2 * 3 * 3 + 2 * (100 + 10 + 20)
    assert work.cache_bytes([group(10, 0)], 4) == 2 * 3 + 2 * 4


def test_the_memory_of_an_engine_is_that_of_all_its_processes():
    program = "import sys\nfilled = bytearray(64 << 20)\nprint('ready', flush=True)\nsys.stdin.read()"
    parent = "import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', sys.argv[1]])\nchild.wait()"
    with subprocess.Popen([sys.executable, "-c", parent, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout.readline() == "ready\n"
        alone = machine.peak_resident_bytes(os.getpid())
        found = machine.peak_resident_bytes(process.pid)
        process.stdin.close()
    assert 64 << 20 <= found < alone
    assert machine.peak_resident_bytes(process.pid) is None


def test_the_documents_command_names_no_path_of_this_machine():
    words = ["--models", "llama-125m", "--llama_cpp_python=/p", "--openvino_python", "/o", "--json", "/x", "--write", "--json=/y"]
    assert peers_bench.command(words) == "./dev bench peers --models llama-125m --write"


def test_arrivals_are_a_poisson_process_of_the_rate():
    times = open_loop.arrivals(rate=4, count=4000, seed=1)
    gaps = np.diff([0, *times])
    assert gaps.min() >= 0 and times == open_loop.arrivals(4, 4000, seed=1)
    assert gaps.mean() == pytest.approx(1 / 4, rel=0.05) and gaps.std() == pytest.approx(1 / 4, rel=0.1)


def test_percentiles_are_interpolated():
    assert open_loop.percentiles(list(range(101))) == (50, 99)


def test_the_table_of_an_open_loop_says_whose_capacity_a_rate_is_of():
    rows = [open_loop.Load("Berth", None, "", (0.1, 0.2), (0.01, 0.02), 9.5),
            open_loop.Load("vLLM", 4.75, "50% of Berth's", (0.1, 2), (0.01, 0.02), 4.5)]
    lines = report.loads(rows).splitlines()
    assert lines[2] == "| Berth | closed loop |  | 100.0 / 200.0 | 10.0 / 20.0 | 9.50 |"
    assert lines[3] == "| vLLM | 4.75 | 50% of Berth's | 100.0 / 2,000.0 | 10.0 / 20.0 | 4.50 |"


def test_the_table_of_encoder_decoder_models_has_ratios_and_reasons():
    row = measure.Row("t5-small", "bf16", "decode", 16, ["CTranslate2", "Berth"], context=64)
    row.pairs, row.notes = [{"Berth": 300}], {"CTranslate2": "no"}
    assert report.translations([row]).splitlines()[2] == "| t5-small | bf16 | decode 16 | 300 | no |  |  |  |"


def test_engines_without_an_interpreter_are_not_measured():
    assert peers_bench.parse(["--llama_cpp_python=/p"]).engines == ["Berth", "llama.cpp", "transformers"]
    assert peers_bench.parse(["--llama_cpp_python=/p"]).encoder_decoder == []
    asked = peers_bench.parse(["--llama_cpp_python=/p", "--vllm_python=/v", "--engines", "Berth", "vLLM"])
    assert asked.engines == ["Berth", "vLLM"]


def test_float32_is_judged_more_strictly_than_bfloat16():
    import agreement

    def ok(weights, largest):
        return agreement.Agreement("m", weights, "e", largest, 0, 16, agreement.NEW_TOKENS).ok

    assert ok("bf16", 0.1) and not ok("float32", 0.1) and ok("float32", 0.001) and ok("int8", 9)


def test_a_peer_that_ends_says_why(tmp_path):
    script = tmp_path / "engine.py"
    script.write_text("import sys\nsys.stdin.readline()\nsys.exit('no such instruction')\n")
    with pytest.raises(Failed, match="engine.py ended with 1 in open: no such instruction"):
        Worker(sys.executable, str(script))


class Answering:
    """Berth, float32 and a peer that agrees."""

    def greedy(self, prompt, tokens):
        return [5] * tokens, [{5: -0.1, 6: -3.0}] * tokens

    def logprobs(self, prompt, continuation, ids):
        return [{"best": 5, "logprob": -0.1, "of_ids": [-0.1, -3.0]} for _ in ids]

    def close(self):
        pass


class Failing(Answering):
    def greedy(self, prompt, tokens):
        raise Failed("died")

    def logprobs(self, prompt, continuation, ids):
        raise Failed("died")


def test_an_engine_that_fails_is_not_taken_for_the_same_model():
    import agreement

    def examine(weights, berth, reference):
        found = agreement.examine("m", weights, berth, {"bad": Failing(), "good": Answering()}, reference, 100)
        return {check.engine: (check.ok, check.error) for check in found}

    good, bad = (True, ""), (False, "died")
    assert examine("bf16", Answering(), Answering) == {"Berth": good, "bad": bad, "good": good}
    assert examine("bf16", Failing(), Answering) == {"Berth": bad, "bad": bad, "good": bad}
    assert examine("bf16", Answering(), Failing) == {"Berth": bad, "bad": bad, "good": bad}
    assert examine("int8", Answering(), Answering)["bad"] == (True, "died")
    lines = report.agreements([agreement.unchecked("m", "int8", "bad", "died")]).splitlines()
    assert lines[2] == "| m | int8 | bad |  |  |  |  | NOT COMPARED: died |"


def test_each_kind_of_processor_keeps_its_tables(tmp_path):
    document = tmp_path / "performance.md"
    sections = [f"{report.BEGIN.format(name)}\n\nold {name}\n\n{report.END.format(name)}" for name in ("amx", "avx2")]
    document.write_text("before\n" + "\nbetween\n".join(sections) + "\nafter\n")
    report.write("new", "avx2", document)
    assert document.read_text() == "before\n" + "\nbetween\n".join(sections).replace("old avx2", "new") + "\nafter\n"
    with pytest.raises(SystemExit, match="lacks the lines"):
        report.write("new", "baseline", document)


def test_this_processors_kernels_are_read_from_the_server():
    assert os.path.exists(os.path.join(machine.ROOT, f"models/ops/isa/kernels_{machine.kernels()}.cc"))
