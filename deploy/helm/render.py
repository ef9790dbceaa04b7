#!/usr/bin/env python3
"""Renders the chart into deploy/kubernetes, for those who have no Helm. `./dev chart` runs it.

Each file begins with a hash of the chart, so that tests see whether it was rendered from the chart as it is.
"""

import hashlib
import pathlib
import subprocess

CHART = pathlib.Path(__file__).resolve().parent / "berth"
KUBERNETES = CHART.parents[1] / "kubernetes"
KUBERNETES_VERSION = "1.31.0"
# By file: the further values.
MANIFESTS = {"berth.yaml": [], "berth-gpu.yaml": [f"--values={CHART}/values-gpu.yaml"]}


def hash_of_chart():
    """The hash of the names and contents of its files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(CHART)}\0{len(path.read_bytes())}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def first_line():
    return f"# Rendered by ./dev chart from deploy/helm/berth; do not edit. Chart: {hash_of_chart()}\n"


def render(*options):
    """What Helm renders with these options."""
    return subprocess.run(["helm", "template", "berth", CHART, f"--kube-version={KUBERNETES_VERSION}", *options], check=True,
                          capture_output=True, text=True).stdout


def manifest(name):
    """Without Secrets, which everybody has to make first, the manifests are open to whom the NetworkPolicy lets in."""
    return first_line() + render("--set=insecure=true", *MANIFESTS[name])


def main():
    KUBERNETES.mkdir(exist_ok=True)
    for name in MANIFESTS:
        (KUBERNETES / name).write_text(manifest(name))


if __name__ == "__main__":
    main()
