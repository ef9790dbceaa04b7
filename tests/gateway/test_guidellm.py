"""GuideLLM, as it is published, through the gateway. With --full only: its packages take 6 GB."""

import json
import os
import subprocess

import pytest

from gateway_server import DEMO, GatewayServer

CACHE = os.environ.get("BERTH_CACHE", os.path.expanduser("~/.cache/berth"))
GUIDELLM = os.path.join(CACHE, "guidellm-venv/bin/guidellm")  # `./dev test --full tests/gateway` installs it
REQUESTS, OUTPUT_TOKENS = 64, 16

pytestmark = pytest.mark.skipif(not os.environ.get("BERTH_FULL"), reason="only with --full")


@pytest.fixture(scope="module")
def server():
    with GatewayServer() as server:
        yield server


@pytest.mark.parametrize("profile", ["kind=concurrent,streams=4", "kind=constant,rate=10", "kind=poisson,rate=10"])
def test_every_request_ends_with_its_tokens(server, profile, tmp_path):
    out = tmp_path / "report.json"
    subprocess.run([GUIDELLM, "run", f"--backend=kind=openai_http,target={server.url}", f"--profile={profile}",
                    f"--constraint=kind=max_requests,count={REQUESTS}",
                    f"--data=kind=synthetic_text,prompt_tokens=32,output_tokens={OUTPUT_TOKENS}",
                    f"--tokenizer=kind=hf_auto,model={DEMO}", f"--output=kind=json,path={out}", "--disable-console"],
                   check=True, timeout=1800, cwd=tmp_path,
                   env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)})
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    assert metrics["request_totals"]["successful"] == REQUESTS and metrics["request_totals"]["errored"] == 0
    assert metrics["output_token_count"]["successful"]["total_sum"] == REQUESTS * OUTPUT_TOKENS
    assert 0 < metrics["time_to_first_token_ms"]["successful"]["median"] < 1e5
