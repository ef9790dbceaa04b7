"""C++ files include what the drawing of folders in ARCHITECTURE.md lets them include."""

import os
import re

import pytest
from sources import read, tracked
from test_sizes import CPP

# What the drawing leaves out: bench/ and tests/ are above all others, third_party/ lists headers of LibTorch.
NOT_DRAWN = ("bench/", "tests/", "third_party/")
# The packages of proto/, as their generated headers are included.
PROTO = r"(berth/v1|vllm|google/rpc|grpc/(health|reflection)/v1(alpha)?)/\w+(\.grpc)?\.pb\.h"
# Includes against the arrows, and why each is sound.
EXCEPTIONS = {
    ("server/flags_doc.cc", "client/cli.h"): "the generator of docs/flags.md, which lists the flags of both programs",
    ("server/flags_doc.cc", "client/environment.h"): "the generator of docs/flags.md, for the client's commands",
    ("server/flags_doc.cc", "client/interrupt.h"): "the generator of docs/flags.md, for the client's commands",
}


class Drawing:
    """The nodes of a mermaid flowchart, by the folders and files that their labels begin with, and what each reaches."""

    def __init__(self, document):
        drawing = re.search(r"```mermaid\nflowchart TD\n(.*?)```", document, re.S)[1]
        labels = dict(re.findall(r'(\w+)\["(.*?)"\]', drawing))
        self.paths = {path: node for node, label in labels.items() for path in label.partition("<br/>")[0].split(", ")}
        self.arrows = {node: set() for node in labels}
        for line in drawing.splitlines():
            start, end = re.fullmatch(r'  (\w+)(?:\[".*?"\])? --> (\w+)(?:\[".*"\])?', line).groups()
            self.arrows[start].add(end)

    def node_of(self, path):
        """The node of a file: its own, else its folder's. A source file is in its header's; None: in no node."""
        header = re.sub(r"\.cc$", ".h", path)
        return self.paths.get(header) or self.paths.get(path.partition("/")[0] + "/")

    def reaches(self, start, end, seen=()):
        return start == end or any(self.reaches(node, end, (*seen, start))
                                   for node in self.arrows[start] if node not in seen)

    def allows(self, path, included):
        """Whether the file may include the other one."""
        start, end = self.node_of(path), self.node_of("proto/" if re.fullmatch(PROTO, included) else included)
        # A folder's own files, those with a node of their own included.
        return end is not None and (path.partition("/")[0] == included.partition("/")[0] and start == self.node_of(
            path.partition("/")[0] + "/") or self.reaches(start, end))


@pytest.fixture(scope="module")
def drawing():
    return Drawing(read("ARCHITECTURE.md"))


def includes(path, text):
    """What a file includes of this tree. Abseil's headers are not of this tree."""
    found = re.findall(r'^\s*#\s*include\s+"([^"]+/[^"]+)"', text, re.M)
    return [(path, included) for included in found if not included.startswith("absl/")]


def drawn_sources():
    return [path for path in tracked() if path.endswith(CPP) and not path.startswith(NOT_DRAWN)]


def test_every_folder_of_cpp_is_drawn(drawing):
    assert [path for path in drawn_sources() if drawing.node_of(path) is None] == []
    assert [path for path in drawing.paths if not os.path.exists(path_in_tree(path))] == []


def path_in_tree(path):
    return os.path.join(os.path.dirname(__file__), "../..", path)


def test_includes_follow_the_arrows(drawing):
    found = [pair for path in drawn_sources() for pair in includes(path, read(path))]
    assert len(found) > 1000
    against = {pair for pair in found if not drawing.allows(*pair)}
    assert against - EXCEPTIONS.keys() == set()
    assert EXCEPTIONS.keys() - against == set(), "these need no exception any more"


def test_only_models_includes_torch(drawing):
    torch = re.compile(r'^\s*#\s*include\s+[<"](ATen|c10|torch)/', re.M)
    assert [path for path in drawn_sources() if drawing.node_of(path) != "models" and torch.search(read(path))] == []


EXAMPLE = """
```mermaid
flowchart TD
  a["top/<br/>the top"] --> b["middle/<br/>the middle"]
  a --> p["proto/"]
  b --> s["low/seam.h, low/step.h<br/>the seam"]
  c["low/<br/>the rest"] --> s
  s --> d["base/"]
```
"""


@pytest.mark.parametrize("path, included, allowed", [
    ("top/a.cc", "middle/b.h", True), ("top/a.cc", "base/b.h", True), ("middle/a.h", "top/b.h", False),
    ("top/x/a.cc", "berth/v1/control.pb.h", True), ("middle/a.cc", "vllm/engine.grpc.pb.h", False),
    ("middle/a.cc", "low/step.h", True), ("middle/a.cc", "low/other.h", False), ("low/a.cc", "low/seam.h", True),
    ("low/a.cc", "low/x/b.h", True), ("low/seam.cc", "low/step.h", True), ("low/seam.cc", "low/other.h", False),
    ("base/a.cc", "low/seam.h", False), ("base/a.cc", "nowhere/b.h", False),
])
def test_arrows_are_read(path, included, allowed):
    assert Drawing(EXAMPLE).allows(path, included) == allowed


def test_includes_are_read():
    text = '#include <vector>\n#include "absl/a.h"\n  # include "low/a.h"\n#include "near.h"\n// #include "low/b.h"\n'
    assert includes("x.cc", text) == [("x.cc", "low/a.h")]
