"""Runs the steps of the Dockerfile in a minimal Debian, and its image as a pod of the manifests would."""

import base64
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tarfile

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy/helm"))
import render  # noqa: E402

CACHE = pathlib.Path(os.environ.get("BERTH_CACHE", pathlib.Path.home() / ".cache/berth"))
os.environ["PATH"] = f"{CACHE}/chart-tools:{os.environ['PATH']}"
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
INSTALL = (ROOT / "docs/install.md").read_text()
# debootstrap names the archive alone, and the image debian:12 that of security updates too, where cargo comes from.
MORE_ARCHIVES = r"""
more=$(sed -n 's|^deb \(.*\)/debian \(.*\) main$|deb \1/debian-security \2-security main|p' /etc/apt/sources.list)
echo "$more" >>/etc/apt/sources.list
"""
SUITES = {"debian:12": "bookworm", "debian:12-slim": "bookworm"}


class Stage:
    """What a FROM and the instructions after it say."""

    def __init__(self, image, name):
        self.suite, self.name = SUITES[image], name
        self.script, self.sources, self.settings = [], {}, {}

    def add(self, word, rest, stages):
        """Adds the instruction to the script, with the sources of COPY below /sources."""
        if word == "WORKDIR":
            self.script.append(f"mkdir -p {rest}; cd {rest}")
        elif word == "ENV":
            self.script.append(f"export {rest}")
        elif word == "ARG":
            self.script.append(f': "${{{rest.split("=")[0]}=}}"')
        elif word == "RUN":
            self.script.append(rest)
        elif word == "COPY":
            *source, target = rest.split()
            stage, path = (source[0].removeprefix("--from="), source[1]) if len(source) == 2 else ("context", source[0])
            assert stage == "context" or stage in stages
            inside = os.path.normpath(f"/sources/{stage}/{path}")
            self.sources[stage, path] = inside
            self.script.append(f"mkdir -p $(dirname {target}); cp -r {inside}/. {target}")
        else:
            assert word in ("USER", "EXPOSE", "ENTRYPOINT", "CMD"), word
            self.settings[word] = rest


def stages():
    found = {}
    for word, rest in re.findall(r"^([A-Z]+) (.*)$", DOCKERFILE.replace("\\\n", " "), re.M):
        if word == "FROM":
            image, name = re.fullmatch(r"(\S+)(?: AS (\S+))?", rest).groups()
            found[name or "image"] = stage = Stage(image, name or "image")
        else:
            stage.add(word, rest, found)
    return found


STAGES = stages()
IMAGE = STAGES["image"]
(USER, GROUP) = IMAGE.settings["USER"].split(":")


@pytest.fixture(scope="module")
def berth(package, tmp_path_factory):
    """What the first stage leaves in /berth: `./dev package --folder` makes the folder that the tarball holds."""
    folder = tmp_path_factory.mktemp("image")
    folder.chmod(0o755)
    (tarball,) = package.glob("*.tar.gz")
    with tarfile.open(tarball) as tar:
        tar.extractall(folder)
    (top,) = folder.iterdir()
    return top


def serve_in_image(in_root, berth, arguments, client, binds=(), connection=""):
    """Makes the image and runs it with `arguments`, read-only and as its user. Returns what `client` prints. `connection`:
    the flags by which berth-cli reaches the server."""
    assert IMAGE.sources == {("build", "/berth"): "/sources/build/berth"}
    server = shlex.join([*json.loads(IMAGE.settings["ENTRYPOINT"]), *arguments])
    served = f"""{server} &
i=0; until berth-cli status {connection} >/dev/null 2>&1; do i=$((i + 1)); [ $i -lt 3000 ]; sleep 0.1; done
{client}
"""
    script = "\n".join([*IMAGE.script, "mount -o remount,ro /",
                        f"setpriv --reuid={USER} --regid={GROUP} --clear-groups sh -euc {shlex.quote(served)}"])
    return in_root(IMAGE.suite, script, f"--bind={berth}:/sources/build/berth", *binds)


def test_the_first_stage_packs_and_the_last_one_runs_as_a_number():
    assert STAGES["build"].script[-1] == "./dev package --folder=/berth ${GPU:+--gpu}"
    assert int(USER) > 0 and int(GROUP) > 0
    assert list(STAGES) == ["build", "image"]


def test_the_image_serves_the_demo(in_root, berth):
    arguments = json.loads(IMAGE.settings["CMD"])
    printed = serve_in_image(in_root, berth, arguments, 'berth-cli chat "What is 23 + 45?"')
    assert "68" in printed


@pytest.mark.skipif(not os.environ.get("BERTH_FULL"), reason="builds in a new system, with --full alone")
def test_the_first_stage_builds_in_a_bare_debian(in_root, tmp_path):
    """What this machine has compiled from the same files is not compiled again."""
    context = tmp_path / "context"
    context.mkdir()
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["cp", "--parents", "-t", context, *(name for name in files.decode().split("\0") if name)], cwd=ROOT,
                   check=True)
    build = STAGES["build"]
    assert build.sources == {("context", "."): "/sources/context"}
    script = "\n".join([MORE_ARCHIVES, *build.script, "find /berth -type f | sort"])
    (tmp_path / "cache").mkdir()
    printed = in_root(build.suite, script, f"--bind={context}:/sources/context", "--network",
                      f"--bind={tmp_path}/cache:/cache:rw", f"--bind={CACHE}/bazel-disk:/cache/bazel-disk:rw")
    assert "/berth/bin/berth-server\n" in printed and "/berth/lib/libtorch_cpu.so\n" in printed


def binds_of_pod(manifests, folder):
    """(the arguments of the container, what it mounts): its flags, and hosts with the name of the Service."""
    of_kind = {document["kind"]: document for document in yaml.safe_load_all(manifests) if document}
    (container,) = of_kind["Deployment"]["spec"]["template"]["spec"]["containers"]
    files = {"etc/berth/berth.flags": of_kind["ConfigMap"]["data"]["berth.flags"],
             "etc/hosts": "127.0.0.1 localhost berth-gateway\n"}
    if "Secret" in of_kind:
        tenants = base64.b64decode(of_kind["Secret"]["data"]["tenants.json"]).decode()
        files["etc/berth-tenants/tenants.json"] = tenants
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    return container["args"], [f"--bind={folder / name}:/{name}" for name in files]


def test_a_pod_of_the_manifests_answers_by_the_documented_command(in_root, berth, tmp_path):
    """The pod's own user, flags and read-only root."""
    arguments, binds = binds_of_pod((ROOT / "deploy/kubernetes/berth.yaml").read_text(), tmp_path)
    (client,) = re.findall(r"--command -- (berth-cli chat .*)", INSTALL)
    assert "68" in serve_in_image(in_root, berth, arguments, client, binds)


def test_a_pod_with_tls_asks_for_a_token_and_is_probed_without(in_root, berth, tmp_path):
    tenants = {"tenants": [{"name": "a", "tokens": [{"name": "a", "sha256": hashlib.sha256(b"secret").hexdigest(),
                                                    "roles": ["user", "operator"]}]}]}
    manifests = render.render("--set=tls.secret=berth-tls", f"--set-json=tenants.file={json.dumps(json.dumps(tenants))}")
    arguments, binds = binds_of_pod(manifests, tmp_path)
    tls = tmp_path / "tls"
    tls.mkdir()
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=berth-gateway",
                    "-addext", "subjectAltName=DNS:berth-gateway", "-keyout", tls / "tls.key", "-out", tls / "tls.crt"],
                   check=True, capture_output=True)
    (tls / "token").write_text("secret\n")
    for file in tls.iterdir():
        file.chmod(0o644)
    server = "--server=berth-gateway:8600 --tls_ca=/etc/berth-tls/tls.crt"
    token = "--token_file=/etc/berth-tls/token"
    client = f"""berth-cli chat "What is 23 + 45?" {server} {token}
berth-cli chat "What is 23 + 45?" {server} 2>&1 && exit 1
berth-cli chat "What is 23 + 45?" --server=127.0.0.1:8603 2>&1 && exit 1
echo refused"""
    printed = serve_in_image(in_root, berth, arguments, client, [*binds, f"--bind={tls}:/etc/berth-tls"],
                             connection=f"{server} {token}")
    lines = printed.splitlines()
    assert "68" in lines[0], printed
    assert "UNAUTHENTICATED" in printed and lines[-1] == "refused", printed
