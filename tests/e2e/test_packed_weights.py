"""What a start leaves for the next: the matrices as the kernels take them, in a file that must be the model's own."""

import os
import shutil
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
from berth_server import ROOT, BerthServer, generate_request  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")


@pytest.fixture
def model(tmp_path):
    """A copy of the demo's folder without what an earlier start left."""
    folder = tmp_path / "model"
    shutil.copytree(DEMO, folder, ignore=shutil.ignore_patterns(".berth"))
    return str(folder)


def start(model, *flags):
    """(whether the matrices were mapped, an answer with its logprobs, what was said of the file) of one start."""
    with BerthServer(model, *flags) as server:
        request = generate_request(prompt="12+34=", max_tokens=8, logprobs=2, ignore_eos=True)
        answer = server.inference.Complete(request, timeout=120)
        answer = (list(answer.token_ids), [(entry.logprob, [top.logprob for top in entry.top]) for entry in answer.logprobs])
        mapped = ", mapped in" in server.log()
        if not mapped:
            server.wait_for_log("packed weights: ")
        said = [line for line in server.log().splitlines() if "packed weights: " in line]
        return mapped, answer, said


def packed_files(folder):
    return [name for _, _, names in os.walk(folder) for name in names if name.endswith((".packed", ".part"))]


@pytest.mark.parametrize("weights", ["auto", "int8", "int4"])
def test_the_second_start_maps_what_the_first_packed(model, weights):
    first = start(model, f"--weights={weights}")
    second = start(model, f"--weights={weights}")
    assert (first[0], second[0]) == (False, True)
    assert "kept for the next start" in first[2][0] and not second[2]
    assert first[1] == second[1], "tokens and logprobs, to the bit"
    assert len(packed_files(model)) == 1


def test_another_checkpoint_or_setting_is_packed_anew(model):
    start(model)
    assert not start(model, "--weights=int8")[0]
    assert not start(model, "--dtype=bfloat16")[0]
    assert start(model)[0] and start(model, "--weights=int8")[0]
    weights = os.path.join(model, "model.safetensors")
    os.utime(weights, (1, 1))
    assert not start(model)[0], "the checkpoint was written again"
    assert start(model)[0]
    # One matrix's values, the time of the file as before.
    with open(weights, "r+b") as file:
        file.seek(-2, os.SEEK_END)
        last = file.read(2)
        file.seek(-2, os.SEEK_END)
        file.write(bytes([last[0] ^ 1, last[1]]))
    os.utime(weights, (1, 1))
    assert not start(model)[0]


def test_a_torn_file_is_replaced(model):
    _, answer, _ = start(model)
    path = os.path.join(model, ".berth", packed_files(model)[0])
    os.truncate(path, os.path.getsize(path) // 2)
    mapped, again, said = start(model)
    assert not mapped and again == answer and "kept" in said[0]
    assert start(model)[0]


def test_another_folder_or_none(model, tmp_path):
    folder = tmp_path / "packed"
    start(model, f"--packed_weights={folder}")
    assert start(model, f"--packed_weights={folder}")[0]
    assert not packed_files(model) and len(packed_files(folder)) == 1
    with BerthServer(model, "--packed_weights=none") as server:
        server.inference.Complete(generate_request(prompt="1+1=", max_tokens=2), timeout=120)
        assert "packed weights: " not in server.log()
    assert not packed_files(model)


def test_where_it_cannot_be_kept_the_server_says_so_and_serves(model):
    mapped, answer, said = start(model, "--packed_weights=/proc/nowhere")
    assert not mapped and len(answer[0]) == 8
    assert "not kept for the next start" in said[0] and "/proc/nowhere" in said[0]
