"""What the fuzzers are given: a folder of inputs for each target, and a call of every RPC."""

import glob
import os
import re

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
FUZZ = os.path.join(ROOT, "tests/fuzz")

# Text and small files: whoever clones the repository takes them all.
MAX_CORPUS_BYTES = 64 << 10


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def test_every_source_is_a_target_with_inputs():
    sources = {os.path.basename(path)[: -len(".cc")] for path in glob.glob(os.path.join(FUZZ, "*_fuzz.cc"))}
    targets = set(re.findall(r'berth_fuzz_test\(\s+name = "(\w+)"', read(os.path.join(FUZZ, "BUILD"))))
    assert targets == sources == set(os.listdir(os.path.join(FUZZ, "corpus")))


def test_the_inputs_are_small():
    for folder in glob.glob(os.path.join(FUZZ, "corpus/*")):
        files = glob.glob(os.path.join(folder, "*"))
        assert files, folder
        assert sum(os.path.getsize(path) for path in files) <= MAX_CORPUS_BYTES, folder


def test_every_rpc_is_called():
    calls = "".join(read(path) for path in glob.glob(os.path.join(FUZZ, "corpus/rpc_fuzz/*")))
    for path in glob.glob(os.path.join(ROOT, "proto/berth/v1/*.proto")):
        text = read(path)
        for service, body in re.findall(r"^service (\w+) {(.*?)^}", text, re.MULTILINE | re.DOTALL):
            for method in re.findall(r"rpc (\w+)", body):
                assert f"berth.v1.{service}.{method}" in calls, method
