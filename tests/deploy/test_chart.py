"""The Helm chart: what it renders is valid, consistent and current in deploy/kubernetes, for many values."""

import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import kubernetes_validate
import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy/helm"))
sys.path.insert(0, str(ROOT / "tests/testing"))
import render  # noqa: E402
from certificates import Ca  # noqa: E402

CACHE = pathlib.Path(os.environ.get("BERTH_CACHE", pathlib.Path.home() / ".cache/berth"))
os.environ["PATH"] = f"{CACHE}/chart-tools:{os.environ['PATH']}"
SERVER = ROOT / "bazel-bin/server/berth-server"
VERSION = render.KUBERNETES_VERSION
# Kinds of operators. Their schemas are our own, in SCHEMAS.
SCHEMAS = ROOT / "tests/deploy/schemas"
OPERATORS = ("ScaledObject", "ServiceMonitor")
TOKEN = {"name": "a", "sha256": hashlib.sha256(b"secret").hexdigest()}
TENANTS = json.dumps({"tenants": [{"name": "a", "tokens": [TOKEN]}]})
VARIANTS = {
    "default": ["--set=insecure=true"],
    "gpu": ["--set=insecure=true", f"--values={render.CHART}/values-gpu.yaml"],
    "tls": ["--set=tls.secret=berth-tls,tls.clientCertificates=true", f"--set-json=tenants.file={json.dumps(TENANTS)}"],
    "tenants": ["--set=tls.secret=berth-tls,tenants.secret=berth-tenants,serviceMonitor.enabled=true",
                "--set=serviceMonitor.tokenSecret=berth-metrics"],
    "storage": ["--set=insecure=true,storage.enabled=true,storage.storageClass=fast,model.path=/models/llama",
                '--set-json=model.volume={"persistentVolumeClaim":{"claimName":"models"}}'],
    "sessions": ["--set=insecure=true,storage.enabled=true,storage.claim=mine,storage.sessions=true,replicas=1"],
    "hpa": ["--set=insecure=true,autoscaling.kind=hpa"],
    "keda": ["--set=insecure=true,autoscaling.kind=keda,serviceMonitor.enabled=true"],
    "clients": ["--set=insecure=true", '--set-json=networkPolicy.clients=[{"podSelector":{"matchLabels":{"app":"web"}}}]',
                '--set-json=networkPolicy.scrapers=[{"namespaceSelector":{}}]'],
}
variants = pytest.mark.parametrize("variant", VARIANTS)


@functools.cache
def text_of(variant):
    return render.render(*VARIANTS[variant])


@functools.cache
def documents_of(variant):
    return [document for document in yaml.safe_load_all(text_of(variant)) if document]


def of_kind(variant, kind):
    return [document for document in documents_of(variant) if document["kind"] == kind]


def pod_of(variant):
    (deployment,) = of_kind(variant, "Deployment")
    return deployment["spec"]["template"]["spec"]


def container_of(variant):
    (container,) = pod_of(variant)["containers"]
    return container


def flags_of(variant):
    (configmap,) = of_kind(variant, "ConfigMap")
    lines = configmap["data"]["berth.flags"].splitlines()
    assert all(re.fullmatch(r"--\w+=\S+", line) for line in lines), lines
    return dict(line.removeprefix("--").split("=", 1) for line in lines)


@pytest.fixture(scope="module")
def schemas(tmp_path_factory):
    """Our own, and those of the package kubernetes-validate, as kubeconform takes them: they refer to each other by place."""
    folder = tmp_path_factory.mktemp("schemas")
    source = pathlib.Path(kubernetes_validate.__file__).parent / f"kubernetes-json-schema/v{VERSION}-local-strict"
    for path in source.glob("*.json"):
        schema = json.loads(path.read_text().replace('"/api/_definitions.json#', '"_definitions.json#'))
        for key in ("$id", "$schema"):
            schema.pop(key, None)
        (folder / path.name).write_text(json.dumps(schema))
    for path in SCHEMAS.glob("*.json"):
        shutil.copy(path, folder)
    return folder


@variants
def test_helm_finds_nothing_to_say(variant):
    result = subprocess.run(["helm", "lint", "--strict", f"--kube-version={VERSION}", *VARIANTS[variant], render.CHART],
                            capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", render.MANIFESTS)
def test_the_rendered_manifests_are_current(name):
    assert (render.KUBERNETES / name).read_text() == render.manifest(name), "run ./dev chart"


def test_no_other_manifest_is_there():
    assert {path.name for path in render.KUBERNETES.iterdir()} == set(render.MANIFESTS)


@variants
def test_is_valid_strictly(variant):
    for document in documents_of(variant):
        if document["kind"] not in OPERATORS:
            kubernetes_validate.validate(document, ".".join(VERSION.split(".")[:2]), strict=True)


def kubeconform(schemas, text):
    return subprocess.run(
        ["kubeconform", "-strict", f"-kubernetes-version={VERSION}", "-summary", "-schema-location",
         f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"], input=text, capture_output=True, text=True,
        timeout=300)


@variants
def test_kubeconform_accepts_it(variant, schemas):
    result = kubeconform(schemas, text_of(variant))
    checked = f"Valid: {len(documents_of(variant))}, Invalid: 0, Errors: 0, Skipped: 0"
    assert result.returncode == 0 and checked in result.stdout, result.stdout


INVALID = [
    ("default", "replicas: 2", "replicaz: 2", "'replicaz' not allowed"),
    ("keda", "cooldownPeriod: 600", "coolDownPeriod: 600", "'coolDownPeriod' not allowed"),
    ("keda", "maxReplicaCount: 8", 'maxReplicaCount: "8"', "'/spec/maxReplicaCount'"),
    ("keda", 'threshold: "4"', "threshold: 4", "'/spec/triggers/0/metadata/threshold'"),
    ("keda", "serverAddress: http", "address: http", "'serverAddress'"),
    ("keda", "interval: 15s", "interval: 15", "'/spec/endpoints/0/interval'"),
    ("tenants", "key: token", "field: token", "'field' not allowed"),
    ("tenants", "authorization:", "authorisation:", "'authorisation' not allowed"),
]


@pytest.mark.parametrize("variant, right, wrong, message", INVALID, ids=[wrong for _, _, wrong, _ in INVALID])
def test_kubeconform_refuses_a_wrong_field(schemas, variant, right, wrong, message):
    assert right in text_of(variant)
    result = kubeconform(schemas, text_of(variant).replace(right, wrong))
    assert result.returncode == 1 and message in result.stdout, result.stdout


def kube_score(text):
    """The checks with a critical finding."""
    result = subprocess.run(["kube-score", "score", "--kubernetes-version=v1.31", "--output-format=json", "-"], input=text,
                            capture_output=True, text=True, timeout=300)
    objects = json.loads(result.stdout)
    assert objects, result.stderr
    return [f"{found['object_name']}: {check['check']['name']}: {check['comments']}"
            for found in objects for check in found["checks"] if not check["skipped"] and check["grade"] == 1]


@variants
def test_kube_score_finds_nothing_critical(variant):
    assert kube_score(text_of(variant)) == []


def test_kube_score_would_find_something():
    findings = kube_score(text_of("default").replace("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"))
    assert len(findings) == 1 and "readOnlyRootFilesystem" in findings[0]


OPEN = "the network would reach the server without TLS or without credentials"
REFUSED = [
    ("replicas=1", OPEN),
    ("tls.secret=a", OPEN),
    ("tenants.secret=a", OPEN),
    ("tls.secret=a,tls.clientCertificates=true", "the network could read the metrics without a token"),
    ("insecure=true,autoscaling.kind=vpa", "autoscaling.kind: vpa is not none, hpa or keda"),
    ("insecure=true,storage.sessions=true", "storage.sessions requires storage.enabled"),
    ("insecure=true,storage.enabled=true,storage.sessions=true", "storage.sessions requires replicas: 1"),
    ("insecure=true,storage.enabled=true,storage.sessions=true,replicas=1,autoscaling.kind=hpa", "storage.sessions requires replicas: 1"),
    ("insecure=true,tls.clientCertificates=true", "tls.clientCertificates requires tls.secret"),
    ("insecure=true,tenants.secret=a,tenants.file=b", "tenants.secret and tenants.file exclude each other"),
]


@pytest.mark.parametrize("values, message", REFUSED)
def test_refuses_values_that_contradict_each_other(values, message):
    with pytest.raises(subprocess.CalledProcessError) as error:
        render.render(f"--set={values}")
    assert message in error.value.stderr


@variants
def test_is_open_only_if_that_is_said(variant):
    flags = flags_of(variant)
    assert ("insecure" in flags) != ("tls_cert" in flags)


NUMBERS = """
insecure: true
image: {tag: 20240101}
memory: 17179869184
replicas: 1000000
maxUnavailable: 1000000
drainSeconds: 1000000
preStopSeconds: 1000000
storage: {enabled: true, size: 21474836480}
flags: {max_queued_tokens: 2000000, temperature: 0.25, verbose: true}
autoscaling: {kind: KIND, minReplicas: 1000000, maxReplicas: 2000000, waitingPerPod: 3000000}
"""


@pytest.mark.parametrize("kind", ("none", "hpa", "keda"))
def test_numbers_of_a_values_file_stay_as_they_are(tmp_path, kind):
    """Helm reads them as floats, and would print 2000000 as 2e+06."""
    values = tmp_path / "values.yaml"
    values.write_text(NUMBERS.replace("KIND", kind))
    text = render.render(f"--values={values}")
    assert not re.search(r"\de\+\d", text), text
    for line in ("--max_queued_tokens=2000000", "--temperature=0.25", "--verbose=true", "--drain_grace=1000000s",
                 "image: berth:20240101", "memory: 17179869184", "storage: 21474836480"):
        assert f"{line}\n" in text, line


@variants
def test_security_context_is_restricted(variant):
    pod, context = pod_of(variant), container_of(variant)["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    user = re.search(r"^USER (\d+):(\d+)", (ROOT / "deploy/Dockerfile").read_text(), re.M).groups()
    assert user == (str(pod["securityContext"]["runAsUser"]), str(pod["securityContext"]["runAsGroup"]))
    assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False


@variants
def test_the_pod_outlives_its_drain(variant):
    pre_stop = int(container_of(variant)["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = int(flags_of(variant)["drain_grace"].removesuffix("s"))
    saves = 60 if "session_dir" in flags_of(variant) else 0
    assert pod_of(variant)["terminationGracePeriodSeconds"] >= pre_stop + grace + 30 + 2 + saves + 5


@variants
def test_ports_agree(variant):
    flags, container = flags_of(variant), container_of(variant)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    port_of = {flag: int(flags[flag].split(":")[1]) for flag in flags if flag.endswith("listen")}
    assert set(ports) == {"grpc", "metrics", "health"}
    assert ports == {{"listen": "grpc", "metrics_listen": "metrics", "health_listen": "health"}[flag]: port
                     for flag, port in port_of.items()}
    headless, gateway, metrics = of_kind(variant, "Service")
    assert headless["spec"]["clusterIP"] == "None" and "clusterIP" not in gateway["spec"]
    assert [p["port"] for p in metrics["spec"]["ports"]] == [ports["metrics"]]
    assert {p["name"]: p["port"] for p in headless["spec"]["ports"]} == {"grpc": ports["grpc"], "metrics": ports["metrics"]}
    assert {p["name"]: p["port"] for p in gateway["spec"]["ports"]} == {"grpc": ports["grpc"]}
    (policy,) = of_kind(variant, "NetworkPolicy")
    assert [rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]] == [ports["grpc"], ports["metrics"]]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"]["port"] == ports["health"]  # the clients' port knows TLS, and limits connections
        assert container[probe]["grpc"]["service"] in ("readiness", "liveness")


@variants
def test_files_that_flags_name_are_mounted(variant):
    mounts = {mount["mountPath"]: mount for mount in container_of(variant)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod_of(variant)["volumes"]}
    assert {mount["name"] for mount in mounts.values()} == set(volumes)
    (flagfile,) = container_of(variant)["args"]
    files = [flagfile.removeprefix("--flagfile="), *(value for value in flags_of(variant).values() if value.startswith("/"))]
    assert flagfile == "--flagfile=/etc/berth/berth.flags" and mounts["/etc/berth"]["name"] == "flags"
    for file in files:
        assert any(file.startswith(f"{path}/") for path in mounts), file
    writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
    assert writable == ({"/data"} if "data" in volumes else set())


def test_secrets_are_those_of_the_values():
    volumes = {volume["name"]: volume for volume in pod_of("tenants")["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == "berth-tls"
    assert volumes["tenants"]["secret"]["secretName"] == "berth-tenants" and not of_kind("tenants", "Secret")
    (secret,) = of_kind("tls", "Secret")
    volumes = {volume["name"]: volume for volume in pod_of("tls")["volumes"]}
    assert volumes["tenants"]["secret"]["secretName"] == secret["metadata"]["name"]
    assert list(secret["data"]) == ["tenants.json"]


def test_the_volume_is_made_unless_it_is_named():
    (claim,) = of_kind("storage", "PersistentVolumeClaim")
    for variant, name in (("storage", claim["metadata"]["name"]), ("sessions", "mine")):
        (data,) = [volume for volume in pod_of(variant)["volumes"] if volume["name"] == "data"]
        assert data["persistentVolumeClaim"]["claimName"] == name
    assert not of_kind("sessions", "PersistentVolumeClaim")
    assert of_kind("sessions", "Deployment")[0]["spec"]["strategy"] == {"type": "Recreate"}


def test_threads_are_the_cores_of_the_pod():
    for variant in ("default", "gpu"):
        resources = container_of(variant)["resources"]
        assert resources["limits"]["cpu"] == resources["requests"]["cpu"] == flags_of(variant)["threads"]


CORES = [("2", "2"), ("0.5", "1"), ("2.5", "3"), ('"3"', "3"), ('"1.5"', "2"), ("500m", "1"), ("2000m", "2"), ("2001m", "3")]


@pytest.mark.parametrize("cores, threads", CORES)
def test_threads_of_parts_of_cores_are_rounded_up(tmp_path, cores, threads):
    values = tmp_path / "values.yaml"
    values.write_text(f"insecure: true\ncpus: {cores}\n")
    text = render.render(f"--values={values}")
    assert f"--threads={threads}\n" in text and text.count("cpu: \"{}\"\n".format(cores.strip('"'))) == 2, text


def test_each_server_has_a_gpu():
    container = container_of("gpu")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert of_kind("gpu", "Deployment")[0]["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0
    flags = flags_of("gpu")
    assert flags["device"] == "cuda" and flags["arena"] == "auto"


@variants
def test_scalers_set_the_replicas(variant):
    (deployment,) = of_kind(variant, "Deployment")
    scalers = of_kind(variant, "HorizontalPodAutoscaler") + of_kind(variant, "ScaledObject")
    assert ("replicas" in deployment["spec"]) == (not scalers)
    for scaler in scalers:
        assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


def test_metrics_of_the_scalers_exist():
    metrics = (ROOT / "docs/metrics.md").read_text()
    for variant in ("hpa", "keda"):
        (name,) = set(re.findall(r"berth_[a-z_]+", text_of(variant)))
        assert f"| `{name}` | gauge |" in metrics


def test_operators_find_what_they_look_for():
    (monitor,) = of_kind("tenants", "ServiceMonitor")
    headless, *others = of_kind("tenants", "Service")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= headless["metadata"]["labels"].items()
    assert endpoint["port"] in [port["name"] for port in headless["spec"]["ports"]]
    assert endpoint["port"] not in [port["name"] for service in others for port in service["spec"]["ports"]]
    (job,) = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    assert headless["metadata"]["labels"][monitor["spec"]["jobLabel"]] == job["job_name"]
    assert endpoint["authorization"]["credentials"] == {"name": "berth-metrics", "key": "token"}
    (scaled,) = of_kind("keda", "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    assert f'service="{headless["metadata"]["name"]}"' in trigger["metadata"]["query"]


def test_prometheus_finds_crashed_pods_and_clients_do_not():
    (job,) = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    (dns,) = job["dns_sd_configs"]
    services = {f"{service['metadata']['name']}.default.svc.cluster.local": service["spec"]
                for service in of_kind("default", "Service")}
    assert [name for name, spec in services.items() if spec.get("publishNotReadyAddresses")] == dns["names"]
    (spec,) = [services[name] for name in dns["names"]]
    assert spec["clusterIP"] == "None" and [port["port"] for port in spec["ports"]] == [dns["port"]]


@variants
def test_selectors_match_the_pods(variant):
    (deployment,) = of_kind(variant, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [deployment["spec"]["selector"]["matchLabels"],
                 of_kind(variant, "PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"],
                 of_kind(variant, "NetworkPolicy")[0]["spec"]["podSelector"]["matchLabels"],
                 *(service["spec"]["selector"] for service in of_kind(variant, "Service"))]
    for selector in selectors:
        assert selector.items() <= labels.items()


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    """A folder with what pods mount."""
    folder = tmp_path_factory.mktemp("mounted")
    for name in ("data", "etc/berth-tls", "etc/berth-tenants"):
        (folder / name).mkdir(parents=True)
    tls = folder / "etc/berth-tls"
    ca = Ca(tls, "ca")
    for path, name in zip(ca.issue("server"), ("tls.crt", "tls.key")):
        pathlib.Path(path).rename(tls / name)
    (folder / "etc/berth-tenants/tenants.json").write_text(TENANTS)
    return folder


def accepts(flags, mounted):
    """What the server says to these flags before it loads a model. The machine may have no GPU."""
    flags = {**flags, "model": f"{ROOT}/models/demo/falcon_h1-demo", "device": "cpu"}
    arguments = [f"--{name}={re.sub('^/(etc|data)', lambda path: f'{mounted}{path[0]}', value)}" for name, value in flags.items()]
    return subprocess.run([SERVER, "--dry_run", *arguments], capture_output=True, text=True, timeout=600)


@variants
def test_the_server_accepts_the_flags(variant, mounted):
    result = accepts(flags_of(variant), mounted)
    assert result.returncode == 0, result.stderr


def test_the_server_would_refuse_open_metrics(mounted):
    flags = {name: value for name, value in flags_of("tls").items() if name != "tenants"}
    result = accepts(flags, mounted)
    assert result.returncode != 0 and "the network can read the metrics without a token" in result.stderr, result.stderr
