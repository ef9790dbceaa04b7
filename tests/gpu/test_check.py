"""The stages of check.py on the CPU, from an unpacked archive of pack.py; and that a planted fault fails.

What needs a GPU is skipped there, and says so. berth-server cannot reach the emulated kernels, so its stages run on
--device=cpu; the operations' tests run on the emulated ones.
"""

import os
import pathlib
import re
import subprocess
import sys
import tarfile
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = ROOT / "tools/gpu"
BIN = pathlib.Path(os.environ.get("BERTH_BIN", ROOT / "bazel-bin"))
# These need the device itself; every other stage must pass.
GPU_STAGES = {"A1": {"probe"}, "A2": {"memcheck", "racecheck", "initcheck", "synccheck"},
              "B": {"llama-1b-eager", "llama-8b", "qwen3-next", "peer-8b", "profile"}, "C": set()}


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The unpacked archive, in another folder than the tree."""
    folder = tmp_path_factory.mktemp("gpu")
    packed = folder / "berth-gpu.tar.xz"
    subprocess.run([sys.executable, GPU / "pack.py", f"--archive={packed}", "--preset=0"], check=True,
                   timeout=1800)
    with tarfile.open(packed) as tar:
        tar.extractall(folder, filter="fully_trusted")
    packed.unlink()
    return folder / "berth-gpu"


def check(command, *arguments, **environment):
    """The exit code and {stage: (result, line)} of the summary."""
    known = {key: value for key, value in os.environ.items() if key not in ("BERTH_BIN", "BERTH_TEST_DEVICE")}
    # `python3` of the archive's `dev` is the one that runs this.
    known["PATH"] = f"{pathlib.Path(sys.executable).parent}:{known['PATH']}"
    done = subprocess.run([*command, *arguments], env=known | environment, text=True, check=False, timeout=7200,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(done.stdout)
    summary = done.stdout.rpartition("\nSummary\n")[2]
    lines = re.findall(r"^((PASS|FAIL|SKIP) (\S+) .*)$", summary, re.MULTILINE)
    return done.returncode, {name: (result, line) for line, result, name in lines}


@pytest.mark.parametrize("part", ["A1", "A2", "B", "C"])
def test_every_stage_runs_from_the_archive(archive, tmp_path, part):
    code, stages = check([archive / "dev", "gpu-check"], part, "--device=cpu", "--small", f"--out={tmp_path}",
                         "--budget=6000")
    assert {name for name, (result, _) in stages.items() if result == "SKIP"} == GPU_STAGES[part]
    assert code == 0 and all(result != "FAIL" for result, _ in stages.values())
    assert all("--device=cpu: " in line for result, line in stages.values() if result == "SKIP")
    assert (tmp_path / f"{part}-summary.txt").read_text().count("\n") == len(stages) + 1
    with tarfile.open(tmp_path / f"{part}-logs.tar.xz") as tar:
        packed = tar.getnames()
    assert {f"{part}/{part}-{stage}.log" for stage in stages} | {f"{part}/{part}-summary.txt"} <= set(packed)
    assert all(name.endswith((".log", ".json", ".txt")) for name in packed)


def test_a_gpu_that_is_not_there_fails(archive, tmp_path):
    if os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a GPU")
    only = ["--only=machine", "--only=probe", "--only=operations"]
    code, stages = check([archive / "dev", "gpu-check"], "A1", "--small", f"--out={tmp_path}", *only)
    assert code == 1 and [result for result, _ in stages.values()] == ["FAIL"] * 3
    assert "no GPU" in stages["machine"][1]
    for stage in ("probe", "operations"):
        assert "BERTH_TEST_DEVICE=cuda: device: cuda: " in (tmp_path / f"A1-{stage}.log").read_text()


def test_a_fault_fails_and_does_not_stop_the_others(tmp_path):
    (tmp_path / "planted.py").write_text(textwrap.dedent("""
        import os, signal, subprocess, time
        from stages import Skip, Stage

        def wrong(setup):
            assert 1 == 2, "one is not two"
        def skipped(setup):
            raise Skip("nothing to do")
        def crashes(setup):
            os.kill(os.getpid(), signal.SIGSEGV)
        def hangs(setup):
            subprocess.run(["sleep", "601.25"])
        def fine(setup):
            return "3 figures"
        def late(setup):
            time.sleep(600)
        def never(setup):
            return ""
        def blocking(setup):  # at the second time only
            assert os.environ.get("CUDA_LAUNCH_BLOCKING") != "1", "named"
            raise ValueError("somewhere")

        STAGES = [Stage(wrong, 60), Stage(blocking, 60), Stage(skipped, 60), Stage(crashes, 60), Stage(hangs, 4),
                  Stage(fine, 60), Stage(late, 600), Stage(never, 60)]
    """))
    code, stages = check([sys.executable, GPU / "check.py"], "planted", f"--out={tmp_path}", "--budget=40",
                         BERTH_BIN=str(BIN), PYTHONPATH=str(tmp_path))
    assert code == 1
    assert [result for result, _ in stages.values()] == ["FAIL", "FAIL", "SKIP", "FAIL", "FAIL", "PASS", "FAIL", "FAIL"]
    for name, said in [("wrong", "one is not two"), ("blocking", "somewhere; again, with CUDA_LAUNCH_BLOCKING=1: FAIL"), ("skipped", "nothing to do"),
                       ("crashes", "ended by signal 11"), ("hangs", "ran longer than 4 s"), ("fine", "3 figures"),
                       ("late", "ran longer than"), ("never", "not run: the 40 s of part planted were over")]:
        assert said in stages[name][1]
    assert "one is not two" in (tmp_path / "planted-wrong.log").read_text()
    assert "again, with CUDA_LAUNCH_BLOCKING=1: FAIL" in stages["wrong"][1]
    assert "assert os.environ.get" in (tmp_path / "planted-blocking.again.log").read_text()
    assert not subprocess.run(["pgrep", "-f", "^sleep 601.25"], capture_output=True, check=False).stdout


def test_a_part_says_first_what_it_will_do(tmp_path):
    (tmp_path / "short.py").write_text("from stages import Stage\n\ndef fine(setup):\n    return str(setup.seconds)\n\n"
                                       "STAGES = [Stage(fine, 30)]\n")
    done = subprocess.run([sys.executable, GPU / "check.py", "short", f"--out={tmp_path}", "--budget=40"], text=True,
                          env=os.environ | {"BERTH_BIN": str(BIN), "PYTHONPATH": str(tmp_path)}, check=True, timeout=600,
                          stdout=subprocess.PIPE)
    assert done.stdout.startswith("part short, at most 40 s, on cuda: fine\nPASS fine ")
    assert done.stdout.splitlines()[1].endswith(" 30.0"), "a stage knows its limit"


def test_a_watched_program_has_libraries_of_its_own(tmp_path, monkeypatch):
    sys.path.insert(0, str(GPU))
    from stages import Skip, find_tool, library_path, watched

    tool = tmp_path / "tool"
    tool.write_text('#!/bin/sh\necho "tool: $LD_LIBRARY_PATH"\nexec "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    command = watched([find_tool("tool", str(tmp_path))], "sh", "-c", 'echo "$A: $LD_LIBRARY_PATH"', A="program")
    said = subprocess.run(command, text=True, check=True, stdout=subprocess.PIPE, timeout=60).stdout.splitlines()
    assert said == [f"tool: {tmp_path}", f"program: {library_path()}"] and said[1] != f"program: {tmp_path}"
    with pytest.raises(Skip, match="no-such-tool is not installed"):
        find_tool("no-such-tool")


def test_a_program_that_skips_or_runs_no_test_fails():
    sys.path.insert(0, str(GPU))
    from correctness import problem_of

    passed = "[       OK ] A.b (1 ms)\n[  PASSED  ] 1 test.\n"
    assert problem_of(0, passed, False) == ""
    skipped = "[  SKIPPED ] A.c (0 ms)\n[  SKIPPED ] 1 test, listed below:\n"
    assert problem_of(0, passed + skipped, True) == "A.c was skipped"
    assert problem_of(1, "[  FAILED  ] A.d (3 ms)\n", False) == "A.d"
    assert problem_of(-6, "", False) == "ended with -6"
    assert problem_of(0, "[  PASSED  ] 0 tests.\n", False) == "ran no test"
    assert problem_of(0, "[  PASSED  ] 0 tests.\n", True) == ""


def test_the_version_of_torch_is_the_one_that_is_built_with():
    sys.path.insert(0, str(GPU))
    from correctness import TORCH_VERSION

    common = (GPU.parent / "dev/common.sh").read_text()
    assert f"TORCH_VERSION={TORCH_VERSION}\n" in common


def test_a_stage_that_there_is_not_is_an_error():
    done = subprocess.run([sys.executable, GPU / "check.py", "A1", "--only=machine", "--only=nothing"], text=True,
                          check=False, timeout=600, stderr=subprocess.PIPE)
    assert done.returncode == 2 and "part A1 has no stage nothing" in done.stderr


def test_another_token_is_a_miss_unless_it_is_a_tie():
    sys.path.insert(0, str(GPU))
    from correctness import compare

    class Response:
        def __init__(self, tokens, lead=1.0):
            self.token_ids = tokens
            top = [type("Top", (), {"logprob": -0.1}), type("Top", (), {"logprob": -0.1 - lead})]
            self.logprobs = [type("Entry", (), {"top": top})] * len(tokens)

    assert compare([Response([1, 2, 3])], [Response([1, 2, 3])], 1e-3) == 0
    assert compare([Response([1, 2, 3], lead=1e-4)], [Response([1, 9, 3])], 1e-3) == 1
    for got in ([1, 9, 3], [1, 2]):
        with pytest.raises(AssertionError):
            compare([Response([1, 2, 3])], [Response(got)], 1e-3)
