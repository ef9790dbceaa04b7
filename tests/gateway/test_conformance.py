"""tools/conformance: Berth through the gateway passes it, and an engine whose cache changes answers does not."""

import http.server
import json
import os
import sys
import threading

import pytest

from gateway_server import ROOT, GatewayServer

sys.path.insert(0, os.path.join(ROOT, "tools/conformance"))
import conformance  # noqa: E402

FULL = bool(os.environ.get("BERTH_FULL"))
TURNS, TOKENS = ("12", "32") if FULL else ("3", "12")
# A prompt's chunks depend on what is cached; with this flag, no sum does.
EXACT = ["--chunk_invariant_scans"]


def test_berth_through_the_gateway_conforms(capsys):
    with GatewayServer(*EXACT) as server, GatewayServer(*EXACT, "--share_prefixes=false") as reference:
        code = conformance.main([f"--url={server.url}/v1", f"--reference={reference.url}/v1", f"--turns={TURNS}",
                                 f"--tokens={TOKENS}"])
        server.wait_idle()
    printed = capsys.readouterr().out
    assert code == 0, printed
    rows = [line.split() for line in printed.splitlines() if line.split()[0] in conformance.TRACES]
    assert [row[:2] for row in rows] == [[trace, mode] for trace in conformance.TRACES for mode in conformance.MODES]
    hits = {(row[0], row[1]): int(row[3]) for row in rows}
    assert all(count == int(TURNS) for (_, mode), count in hits.items() if mode == "again"), printed
    assert hits["grow", "turns"] >= int(TURNS) - 1, printed


class FakeEngine(http.server.BaseHTTPRequestHandler):
    """Its cache holds whole prompts. A hit's last logprob is off by `error`, its last token is another with `swap`."""

    error = 0.0
    swap = False
    reports = True
    caches = True
    forgets = True
    logprobs = True
    seen = set()

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer({"data": [{"id": "fake"}]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/flush":
            type(self).seen = set() if self.forgets else self.seen
            return self.answer({})
        request = json.loads(body)
        prompt = json.dumps(request["messages"])
        hit = self.caches and prompt in self.seen
        type(self).seen = self.seen | {prompt}
        tokens = ["a", "b", "x" if hit and self.swap else "c"]
        entries = [{"token": token, "logprob": -0.5, "top_logprobs": []} for token in tokens]
        entries[-1]["logprob"] += self.error if hit else 0
        usage = {"prompt_tokens": 10}
        if self.reports:
            usage["prompt_tokens_details"] = {"cached_tokens": 8 if hit else 0}
        choice = {"message": {"content": "".join(tokens)}}
        if self.logprobs:
            choice["logprobs"] = {"content": entries}
        return self.answer({"choices": [choice], "usage": usage})

    def answer(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def check(capsys):
    """Runs the script on an engine with these properties; returns its exit code and what it printed."""
    servers = []

    def run(*flags, **properties):
        handler = type("Engine", (FakeEngine,), {"seen": set(), **properties})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        code = conformance.main([f"--url={url}", f"--flush={url}/flush", "--turns=2", *flags])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


def test_equal_answers_pass(check):
    code, printed = check()
    assert code == 0 and printed.splitlines()[-1] == "equal"


def test_another_token_fails(check):
    code, printed = check(swap=True)
    assert code == 1 and "FAILED grow, again, turn 1: the answer is 'abx', in the cold run 'abc'" in printed


def test_another_logprob_fails_above_the_tolerance(check):
    code, printed = check(error=1e-4)
    assert code == 1 and "FAILED grow, again, turn 1: a logprob differs by 0.0001" in printed
    assert check("--logprob_tolerance=1e-3", error=1e-4)[0] == 0


def test_a_cache_that_nothing_hits_fails(check):
    code, printed = check(caches=False)
    assert code == 1 and "no request found anything in the cache" in printed


def test_a_cold_run_that_is_not_cold_fails(check):
    code, printed = check("--traces=grow,grow", forgets=False)
    assert code == 1 and "the cold run found 8 tokens in the cache" in printed


def test_an_engine_that_does_not_report_hits_is_named(check):
    code, printed = check(reports=False)
    assert code == 0 and "does not report cached tokens" in printed


def test_an_engine_without_logprobs_is_an_error(check):
    code, printed = check(logprobs=False)
    assert code == 2 and "an answer without logprobs" in printed


def test_bad_flags_are_refused(capsys):
    for flags in ([], ["--url=http://127.0.0.1:1/v1"], ["--url=a", "--reference=b", "--flush=c"],
                  ["--url=a", "--flush=b", "--traces=unknown"]):
        with pytest.raises(SystemExit) as ended:
            conformance.main(flags)
        assert ended.value.code == 2
    assert conformance.main(["--url=http://127.0.0.1:1/v1", "--reference=http://127.0.0.1:1/v1"]) == 2
    assert "127.0.0.1:1" in capsys.readouterr().err
