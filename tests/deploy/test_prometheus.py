"""A real Prometheus scrapes a running server; every query of the dashboard and of the rules must return data."""

import json
import pathlib
import re
import subprocess
import sys
import urllib.parse
import urllib.request

import grpc
import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/testing"))
from berth_server import BerthServer, fixed_port, generate_request, wait_until  # noqa: E402

PROMETHEUS = ROOT / "deploy/prometheus"
DASHBOARD = json.loads((ROOT / "deploy/grafana/berth.json").read_text())
RULES = [rule for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"] for rule in group["rules"]]


def promtool(*arguments):
    result = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_accepts_configuration_and_rules():
    promtool("check", "config", "--syntax-only", "prometheus.yml")  # the token's file is not here
    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts_test.yml")


def send_requests(server):
    """Some of every kind, so that no series stays without a sample of its own."""
    for i in range(3):
        server.inference.Complete(generate_request(chat="What is 23 + 45?"), timeout=120)
        list(server.inference.Generate(generate_request(prompt="x", max_tokens=40, ignore_eos=True), timeout=120))
    with pytest.raises(grpc.RpcError):
        server.inference.Complete(generate_request(prompt=""), timeout=120)


@pytest.fixture(scope="module")
def query(tmp_path_factory):
    """Asks a Prometheus that has scraped a busy server for a while."""
    folder = tmp_path_factory.mktemp("prometheus")
    with BerthServer(ROOT / "models/demo/falcon_h1-demo") as server:
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(PROMETHEUS / "alerts.yml")]
        job = config["scrape_configs"][0]
        del job["dns_sd_configs"], job["authorization"]
        job["static_configs"] = [{"targets": [server.metrics_address]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = fixed_port()
        log = open(folder / "log", "wb")
        prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"], stdout=log, stderr=log)

        def ask(expression):
            url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
            try:
                with urllib.request.urlopen(url, timeout=60) as response:
                    return json.load(response)["data"]["result"]
            except urllib.error.HTTPError as error:
                raise AssertionError(f"{expression}: {error.read().decode()}") from error

        try:
            wait_until(lambda: ready(prometheus, port, folder / "log"), "Prometheus to answer")
            # Rates need samples before and after the requests.
            wait_until(lambda: ask("berth_steps_total"), "a scrape")

            def rate():
                send_requests(server)
                return ask("sum(rate(berth_generation_tokens_total[1m])) > 0")

            wait_until(rate, "a rate above 0", 300)
            wait_until(lambda: ask("berth:time_to_first_token_seconds:p99"), "a value of a recording rule")
            yield ask
        finally:
            prometheus.kill()
            prometheus.wait(timeout=60)
            log.close()


def ready(prometheus, port, log):
    assert prometheus.poll() is None, log.read_text()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=60) as response:
            return response.status == 200
    except OSError:
        return False


def test_rules_name_the_job_of_the_configuration():
    (job,) = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    assert {name for rule in RULES for name in re.findall(r'job="([^"]*)"', rule["expr"])} == {job["job_name"]}
    assert not any('job="' in panel.values[0] for panel in dashboard_queries())


def dashboard_queries():
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")


def test_queries_of_grpc_take_all_services_of_berth_alone():
    """Other programs have metrics of the same names."""
    (services,) = set(re.findall(r"`grpc_service`: ([^;]*);", (ROOT / "docs/metrics.md").read_text()))
    queries = [rule["expr"] for rule in RULES] + [panel.values[0] for panel in dashboard_queries()]
    queries = [query for query in queries if "grpc_server_" in query]
    assert len(queries) == 2
    for query in queries:
        (pattern,) = re.findall(r'grpc_server_\w+{grpc_service=~"([^"]*)"', query)
        assert all(re.fullmatch(pattern, service) for service in services.split(", "))
        assert not re.fullmatch(pattern, "etcdserverpb.KV")


def has_data(samples):
    """A quantile of a histogram that is empty is NaN, which shows nothing."""
    return any(sample["value"][1] != "NaN" for sample in samples)


@pytest.mark.parametrize("expression", list(dashboard_queries()))
def test_every_panel_shows_data(query, expression):
    expression = expression.replace("$__rate_interval", "1m").replace("$model_name", ".*")
    assert "$" not in expression
    assert has_data(query(expression)), expression


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("record") or rule.get("alert"))
def test_every_rule_has_data(query, rule):
    """An alert's threshold is taken off: what it looks at must exist although nothing is wrong."""
    expression = re.sub(r"\s*(>|<|!=)\s*[\d.]+\s*$", "", rule["expr"])
    expression = re.sub(r'(grpc_code=~)"[^"]*"', r'\1".*"', expression)
    assert has_data(query(expression)), expression


def test_no_alert_fires_and_the_bytes_add_up(query):
    assert query('ALERTS{alertstate="firing"}') == []
    assert [float(sample["value"][1]) for sample in query("berth:cache_bytes:unaccounted")] == [0.0]
