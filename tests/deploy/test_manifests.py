"""The container file and the Kubernetes manifests: valid by the API's own schemas, and in agreement with each other."""

import pathlib
import re
import subprocess

import kubernetes_validate
import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy/kubernetes"
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
SERVER = ROOT / "bazel-bin/server/berth-server"


def documents(name):
    return list(yaml.safe_load_all((KUBERNETES / name).read_text()))


MANIFESTS = sorted(p.name for p in KUBERNETES.glob("*.yaml") if p.name != "kustomization.yaml")
DEPLOYMENT = documents("deployment.yaml")[0]
POD = DEPLOYMENT["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]


def flags_of(configmap):
    return dict(line.lstrip("-").split("=", 1) for line in configmap["data"]["berth.flags"].split() if line)


FLAGS = flags_of(documents("configmap.yaml")[0])


def merged(base, patch):
    """What kustomize makes of a document and a strategic merge patch: maps merge, and lists of things with names."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {key: merged(base.get(key), patch[key]) if key in patch else base[key] for key in {**base, **patch}}
    named = isinstance(base, list) and isinstance(patch, list) and all("name" in entry for entry in base + patch)
    if not named:
        return patch
    patches = {entry["name"]: entry for entry in patch}
    assert set(patches) <= {entry["name"] for entry in base}
    return [merged(entry, patches.get(entry["name"], {})) for entry in base]


GPU = ROOT / "deploy/kubernetes-gpu"
GPU_KUSTOMIZATION = yaml.safe_load((GPU / "kustomization.yaml").read_text())
GPU_PATCHES = {path.name: yaml.safe_load(path.read_text()) for path in GPU.glob("*.yaml") if path.name in MANIFESTS}


def test_the_gpu_overlay_is_valid_and_complete():
    assert GPU_KUSTOMIZATION["resources"] == ["../kubernetes"]
    assert sorted(patch["path"] for patch in GPU_KUSTOMIZATION["patches"]) == sorted(GPU_PATCHES)
    assert len(list(GPU.iterdir())) == len(GPU_PATCHES) + 1
    (image,) = GPU_KUSTOMIZATION["images"]
    assert CONTAINER["image"] == f"{image['name']}:{image['newTag']}"
    for name, patch in GPU_PATCHES.items():
        base = documents(name)[0]
        assert (patch["kind"], patch["metadata"]["name"]) == (base["kind"], base["metadata"]["name"])
        kubernetes_validate.validate(merged(base, patch), "1.31", strict=True)


def test_the_gpu_overlay_gives_each_server_a_gpu():
    pod = merged(DEPLOYMENT, GPU_PATCHES["deployment.yaml"])["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container["securityContext"] == CONTAINER["securityContext"]
    assert container["startupProbe"]["grpc"] == CONTAINER["startupProbe"]["grpc"]
    assert GPU_PATCHES["deployment.yaml"]["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0
    flags = flags_of(GPU_PATCHES["configmap.yaml"])
    assert flags["device"] == "cuda" and "arena" not in flags
    for name in ("listen", "metrics_listen", "drain_grace", "model"):
        assert flags[name] == FLAGS[name]


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_are_valid_strictly(name):
    for document in documents(name):
        kubernetes_validate.validate(document, "1.31", strict=True)


def test_kustomization_lists_every_manifest():
    assert sorted(documents("kustomization.yaml")[0]["resources"]) == MANIFESTS


def test_security_context_is_restricted():
    assert POD["securityContext"]["runAsNonRoot"] and POD["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    context = CONTAINER["securityContext"]
    assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert POD["automountServiceAccountToken"] is False


def test_the_pod_outlives_its_drain():
    pre_stop = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = int(FLAGS["drain_grace"].removesuffix("s"))
    assert POD["terminationGracePeriodSeconds"] >= pre_stop + grace + 5 + 5


def test_ports_agree():
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports == {"grpc": int(FLAGS["listen"].split(":")[1]), "metrics": int(FLAGS["metrics_listen"].split(":")[1])}
    assert {p["name"]: p["port"] for p in documents("service.yaml")[0]["spec"]["ports"]} == ports
    assert {p["port"] for p in documents("networkpolicy.yaml")[0]["spec"]["ingress"][0]["ports"]} == set(ports.values())
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert CONTAINER[probe]["grpc"]["port"] == ports["grpc"]
        assert CONTAINER[probe]["grpc"]["service"] in ("readiness", "liveness")


def test_flags_of_the_configmap_exist():
    help_text = subprocess.run([SERVER, "--help"], capture_output=True, text=True, check=True).stdout
    for flag in {**FLAGS, **flags_of(GPU_PATCHES["configmap.yaml"])}:
        assert f"--{flag}" in help_text, flag


def test_selectors_match_the_pods():
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert documents("service.yaml")[0]["spec"]["selector"].items() <= labels.items()
    assert documents("poddisruptionbudget.yaml")[0]["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_container_file():
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?", DOCKERFILE, re.M)
    assert [image.split(":")[0] for image, _ in stages] == ["debian", "debian"]
    user = re.findall(r"^USER (\d+):\d+", DOCKERFILE, re.M)
    assert user == [str(POD["securityContext"]["runAsUser"])]
    for source in re.findall(r"^COPY --from=(\S+)", DOCKERFILE, re.M):
        assert source in [name for _, name in stages]
    for target, name in re.findall(r"bazel-bin/(\S+)/(libberth_cuda\w*)\.so", DOCKERFILE):
        assert f'"{name}"' in (ROOT / target / "BUILD").read_text()
    for path in re.findall(r"models/demo/\S+?(?= )", DOCKERFILE):
        assert (ROOT / path).exists()


def test_container_packages_exist_and_carry_the_libraries():
    """The final stage's packages are Debian's, and together hold every shared library that the server needs from it."""
    packages = re.search(r"--no-install-recommends (.*?)\n\s*&& rm", DOCKERFILE, re.S).group(1).replace("\\", " ").split()
    for package in packages:
        assert "Package: " in subprocess.run(["apt-cache", "show", package], capture_output=True, text=True).stdout, package
    libraries = subprocess.run(["ldd", SERVER], capture_output=True, text=True, check=True).stdout
    for path in re.findall(r"=> (/(?:usr/)?lib/\S+(?:grpc\+\+|protobuf|absl_\w+|spdlog|fmt|prometheus\S*|civetweb)\.so\S*)",
                           libraries):
        real = "/usr" + path if path.startswith("/lib/") else path
        owner = subprocess.run(["dpkg", "-S", real], capture_output=True, text=True).stdout.split(":")[0]
        assert owner in packages, f"{path} is of {owner}"
