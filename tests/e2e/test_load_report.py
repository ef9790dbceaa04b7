"""The page of `berth-cli load --html_out`, as a browser shows it, and the screenshot of it in docs/loadtest.md.

The screenshot is taken again with
  BERTH_SCREENSHOT=docs/loadtest.png python -m pytest tests/e2e/test_load_report.py -k screenshot
"""

import html.parser
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../testing"))
import browser  # noqa: E402
from berth_server import BIN, ROOT, BerthServer, endless_request, endless_server, wait_until  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
CLI = os.path.join(BIN, "client/berth-cli")
CHARTS = ["Time to first token", "Time between tokens", "Output tokens per second", "Requests per second",
          "Sequences in the server", "Cache, MiB"]
HISTOGRAMS = ["Time to first token", "Time between tokens", "Time per output token", "Time of a request"]
MAX_IMAGE_BYTES = 200_000


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class Page(html.parser.HTMLParser):
    """The parts of a drawn page that tests look at."""

    def __init__(self, text):
        super().__init__()
        self.state, self.title, self.labels, self.paths, self.texts = None, "", [], [], []
        self.open = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.open.append(tag)
        if tag == "body":
            self.state = attributes.get("data-state")
        if tag == "svg":
            self.labels.append(attributes["aria-label"])
        if tag == "path":
            self.paths.append(attributes["d"])

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if self.open and self.open[-1] == "title" and "svg" not in self.open:
            self.title += data
        elif self.open and self.open[-1] != "script":
            self.texts.append(data)


def load(server, *flags):
    return subprocess.run([CLI, "load", f"--server={server.address}", *flags], capture_output=True, text=True,
                          timeout=600)


@pytest.fixture(scope="module")
def server():
    with BerthServer(DEMO) as server:
        yield server
        server.wait_idle()


@pytest.fixture(scope="module")
def documented_page(server, tmp_path_factory):
    """What the command of docs/loadtest.md writes."""
    (command,) = re.findall(r"^bazel-bin/client/berth-cli load (.*--html_out=.*)$", read("docs/loadtest.md"), re.M)
    flags = shlex.split(command)
    path = tmp_path_factory.mktemp("page") / "report.html"
    flags = [f"--html_out={path}" if flag.startswith("--html_out=") else flag for flag in flags]
    done = load(server, *flags)
    assert done.returncode == 0, done.stderr
    return path


def drawn(path):
    text, messages = browser.open_page(path)
    assert messages == []
    page = Page(text)
    assert page.state == "drawn"
    return page


def test_the_documents_command_draws_each_plot(documented_page):
    page = drawn(documented_page)
    assert page.title == "Load test of falcon_h1-demo"
    assert page.labels == CHARTS + HISTOGRAMS
    drawings = [path for path in page.paths if path.count("L") >= 5]
    assert len(drawings) >= len(CHARTS), "each chart has a line of several points"
    assert "none failed" in page.texts and not [text for text in page.texts if re.search(r"NaN|undefined|null", text)]


def test_the_page_needs_no_other_file(documented_page):
    assert re.findall(r"(?:src|href)=|@import|url\(|fetch\(", documented_page.read_text()) == []


def test_a_run_without_an_answer_is_drawn(tmp_path):
    """All requests are refused, by a queue that stays full: there is no latency to draw."""
    path = tmp_path / "report.html"
    with endless_server(DEMO, "--max_running=1", "--max_queue=1") as full:
        streams = [full.inference.Generate(endless_request(prompt="x"), timeout=600)]
        next(streams[0])  # runs: the next one waits
        streams.append(full.inference.Generate(endless_request(prompt="x")))
        wait_until(lambda: (full.load().running, full.load().waiting) == (1, 1), "a stream that runs and one that waits")
        done = load(full, "--requests=3", f"--html_out={path}", "--allow_errors")
        for stream in streams:
            stream.cancel()
        full.wait_idle()
    assert done.returncode == 0, done.stderr
    page = drawn(path)
    assert "Failed" in page.texts and any(text.startswith("3 RESOURCE_EXHAUSTED") for text in page.texts), page.texts
    assert page.texts.count("no measurement") == len(HISTOGRAMS)


def test_a_capacity_search_is_drawn(server, tmp_path):
    path = tmp_path / "report.html"
    done = load(server, "--find_capacity", "--rate=600000", "--requests=2", "--duration=5s", "--limit_e2e=1h",
                "--output_tokens=fixed:2", f"--html_out={path}")
    assert done.returncode == 1 and "each rate up to 600000.00 arrivals/s held" in done.stdout, done.stdout + done.stderr
    page = drawn(path)
    assert "Capacity search" in page.texts and "or more: each rate held" in page.texts


@pytest.mark.parametrize("planted", ["report.latency_seconds.nothing.p99;", "const = 1;", "console.error('planted');"],
                         ids=["when it runs", "when it is read", "on the console"])
def test_an_error_of_the_script_is_seen(documented_page, tmp_path, planted):
    text = documented_page.read_text()
    begin = "const report = JSON.parse("
    assert text.count(begin) == 1
    broken = tmp_path / "broken.html"
    after = text.index("\n", text.index(begin))
    broken.write_text(text[:after] + "\n" + planted + text[after:])
    dom, messages = browser.open_page(broken)
    assert len(messages) == 1
    if planted.startswith("report"):
        assert Page(dom).state == "error" and "could not be drawn" in dom


def size_of(image):
    """Width and height of a PNG."""
    with open(image, "rb") as file:
        head = file.read(24)
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and head[12:16] == b"IHDR"
    return struct.unpack(">II", head[16:24])


def test_the_screenshot_is_one_of_this_page(documented_page, tmp_path):
    (name,) = re.findall(r"!\[[^]]+\]\((\w+\.png)\)", read("docs/loadtest.md"))
    image = os.path.join(ROOT, "docs", name)
    taken = tmp_path / "taken.png"
    browser.take_screenshot(documented_page, taken)
    if os.environ.get("BERTH_SCREENSHOT"):
        shutil.copy(taken, os.path.join(ROOT, os.environ["BERTH_SCREENSHOT"]))
    assert os.path.getsize(image) < MAX_IMAGE_BYTES
    assert size_of(image) == size_of(taken)
