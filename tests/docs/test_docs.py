"""Runs the commands and programs of the documents against a server, so that they cannot promise what does not work."""

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.insert(0, os.path.join(ROOT, "tests/testing"))
from berth_server import BerthServer, generate_request, wait_until  # noqa: E402

DEMO = os.path.join(ROOT, "models/demo/falcon_h1-demo")
CLI = "bazel-bin/client/berth-cli"
SECURITY = "docs/security.md"  # its commands have a server of their own
GUIDES = ["README.md", *sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, "docs/*.md")))]
# tests/clients runs the examples of clients/python/README.md.
DOCUMENTS = [*GUIDES, "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "THIRD_PARTY.md", "deploy/README.md",
             "models/demo/README.md", "clients/python/README.md"]
# What calls the gateway is run by tests/gateway.
GATEWAY = "127.0.0.1:8602"
# Commands that are not run here: CI itself runs those of ./dev, tests/deploy those of docs/install.md, and tests/clients
# those of grpcurl and ghz. The others need a tool that CI lacks (docker, kubectl), several NUMA nodes, a GPU, a model of
# one's own, or a build.
NOT_RUN = ("./dev ", "smg launch ", "docker ", "kubectl ", "grpcurl ", "ghz ", "numactl ", "bazel-bin/server/berth-server --model=DIR", "LD_LIBRARY_PATH=", "BERTH_TEST_DEVICE=",
           "bazel run ", "pip install berth_server", "tar xzf berth-", "berth-", "helm ", "ln -s berth-", "useradd ", "cp /opt/berth/", "systemctl ")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", read(path), re.M | re.S)


def commands_of(path):
    """The lines of every ```sh block."""
    return [line for block in blocks(path, "sh") for line in block.splitlines() if line.strip() and line[0] != "#"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with BerthServer(DEMO, f"--session_dir={tmp_path_factory.mktemp('sessions')}") as server:
        yield server


def at(server, text):
    """The documents' addresses are the defaults; the test's server took free ports."""
    return text.replace("127.0.0.1:8600", server.address).replace("127.0.0.1:8601", server.metrics_address)


COMMANDS = [command for guide in (*GUIDES, "deploy/README.md") if guide != SECURITY for command in commands_of(guide)
            if GATEWAY not in command]


def run(command, **options):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, **options)


@pytest.mark.parametrize("command", sorted({c for c in COMMANDS if c.startswith((CLI, "curl"))}))
def test_commands_work(server, command):
    command = at(server, command)
    if command.startswith(CLI):
        command += f" --server={server.address}"
    result = run(command, shell=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_security_guide_gives_mutual_tls_with_two_tenants(tmp_path):
    """Runs the guide as it stands, with other ports and another folder for the keys."""
    keys, start, use, refusals = (block.replace("/tmp/berth-keys", f"{tmp_path}/keys") for block in blocks(SECURITY, "sh"))
    made = run(["bash", "-euc", keys])
    assert made.returncode == 0, made.stderr
    (command,) = start.splitlines()
    program, *flags = shlex.split(command)
    assert program == "bazel-bin/server/berth-server" and "--listen=0.0.0.0:8600" in flags
    model = next(flag for flag in flags if flag.startswith("--model="))
    flags = [flag for flag in flags if flag != model and not flag.startswith("--listen=")]
    with BerthServer(os.path.join(ROOT, model.partition("=")[2]), "--listen=0.0.0.0:0", *flags) as server:
        at_server = f"localhost:{server.ports['grpc']}"
        used = run(["bash", "-euc", use.replace("localhost:8600", at_server)])
        assert used.returncode == 0, used.stderr
        assert "68" in used.stdout.splitlines()[0]
        assert len(refusals.splitlines()) == 2
        for refused in refusals.splitlines():
            assert refused.startswith("! ")
            result = run(["bash", "-uc", use.splitlines()[0].replace("localhost:8600", at_server) + "\n" + refused[2:]])
            assert result.returncode == 1, result.stdout
            assert "UNAUTHENTICATED" in result.stderr or "PERMISSION_DENIED" in result.stderr, result.stderr


def mapped_weights(server):
    """{inode: (bytes in memory, bytes that others map too)} of the packed weights that a server maps."""
    found, inode = {}, None
    with open(f"/proc/{server.process.pid}/smaps", encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if not words[0].endswith(":"):
                inode = words[4] if len(words) > 5 and "/.berth/" in words[5] else None
            elif inode and words[0] in ("Rss:", "Shared_Clean:", "Shared_Dirty:"):
                rss, shared = found.get(inode, (0, 0))
                size = 1024 * int(words[1])
                found[inode] = (rss + size, shared) if words[0] == "Rss:" else (rss, shared + size)
    return found


def test_servers_of_numa_nodes_share_the_packed_weights(tmp_path):
    """Runs the commands of docs/scaling.md without numactl, with other ports, on a copy of the model."""
    commands = [command for command in COMMANDS if command.startswith("numactl ")]
    assert len(commands) == 2
    model = tmp_path / "model"
    shutil.copytree(DEMO, model, ignore=shutil.ignore_patterns(".berth"))
    flags = []
    for node, command in enumerate(commands):
        words = shlex.split(command)
        assert words[:4] == ["numactl", f"--cpunodebind={node}", f"--membind={node}", "bazel-bin/server/berth-server"]
        here = {"--listen": "127.0.0.1:0", "--metrics_listen": "127.0.0.1:0", "--threads": "1", "--arena": "64MiB"}
        names = [word.partition("=")[0] for word in words[4:]]
        assert set(names) == {"--model", *here}
        flags.append([f"{name}={here[name]}" for name in names if name in here])
    with BerthServer(model, *flags[0]) as server:
        wait_until(lambda: glob.glob(f"{model}/.berth/*") and "packed weights: " in server.log(),
                   lambda: f"the packed weights\n{server.end_of_log()}")
    with BerthServer(model, *flags[0]) as first, BerthServer(model, *flags[1]) as second:
        for server in (first, second):
            assert server.inference.Complete(generate_request(prompt="Once", max_tokens=3), timeout=60).text
        ours, others = mapped_weights(first), mapped_weights(second)
        assert ours.keys() == others.keys() and len(ours) == 1
        for rss, shared in (*ours.values(), *others.values()):
            assert rss > 100_000 and shared == rss


def test_readme_addition_is_right(server):
    command = next(c for c in COMMANDS if "What is 23 + 45?" in c)
    assert "68" in run(f"{command} --server={server.address}", shell=True).stdout


def test_stubs_are_generated_as_documented(tmp_path):
    (command,) = [c for c in COMMANDS if c.startswith("python3 -m grpc_tools.protoc")]
    assert command.count("_out=.") == 2
    result = run([sys.executable, *command.replace("_out=.", f"_out={tmp_path}").split()[1:]])
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "berth/v1/inference_pb2_grpc.py").exists()


def test_every_other_command_is_known():
    rest = [c for c in COMMANDS if not c.startswith((CLI, "curl", "python3 -m grpc_tools.protoc"))]
    assert all(c.startswith(NOT_RUN) for c in rest), rest
    commands = re.findall(r"^(?:\./dev ([\w ]*\w))", read_dev_help(), re.M)
    for name in re.findall(r"\./dev(?: (bench))? (\w+)", "\n".join(read(document) for document in DOCUMENTS)):
        if name[0]:
            assert name[1] in read_dev_help(), f"./dev bench {name[1]}"
        elif name[1] != "help":
            assert any(command.split()[0] == name[1] for command in commands), f"./dev {name[1]}"


PROGRAMS = [(guide, number) for guide in GUIDES for number, program in enumerate(blocks(guide, "python"))
            if GATEWAY not in program]


@pytest.mark.parametrize("guide, number", PROGRAMS, ids=[f"{guide} {number}" for guide, number in PROGRAMS])
def test_python_programs_work(server, guide, number):
    environment = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "clients/python/src")}
    result = run([sys.executable, "-c", at(server, blocks(guide, "python")[number])], env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    if guide == "README.md":
        assert "68" in result.stdout


def test_readme_has_clients_of_five_lines():
    openai, own = blocks("README.md", "python")
    assert GATEWAY in openai and len(openai.splitlines()) <= 5
    assert "berth_client" in own and len(own.splitlines()) <= 5


def read_dev_help():
    return subprocess.run(["./dev", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_dev_lists_its_commands():
    for name in re.findall(r"^cmd_(\w+)\(\)", read("dev"), re.M):
        assert name == "help" or f"./dev {name.replace('_', '-')}" in read_dev_help()


def test_flags_that_documents_name_exist():
    """Inline code that begins with a flag, such as `--arena=8GiB`, names one of the server or of the client."""
    helps = ["bazel-bin/server/berth-server --help", *(f"{CLI} {command} --help" for command in ("generate", "chat", "status", "trace", "load", "drain", "flush", "erase", "token"))]
    known = {"--help"} | set(re.findall(r"--\w+", "\n".join(run(text.split()).stdout for text in helps)))
    named = {(document, flag) for document in DOCUMENTS for flag in re.findall(r"`(--\w+)", read(document))}
    assert len(named) > 50
    assert {(document, flag) for document, flag in named if flag not in known} == set()


def anchors(path):
    """GitHub's names of the headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", read(path), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)]+)\)", read(document)):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
        assert os.path.exists(os.path.join(ROOT, path)), f"{document} links to {target}"
        assert not anchor or anchor in anchors(path), f"{document} links to {target}"


def test_every_guide_is_linked_from_the_readme():
    assert [guide for guide in GUIDES[1:] if f"({guide}" not in read("README.md")] == []


def test_table_of_architectures_is_the_binarys():
    printed = subprocess.run(["bazel-bin/server/berth-server", "--list_models"], cwd=ROOT, capture_output=True, text=True,
                             check=True).stdout
    listed = re.findall(r"^(\| \w+ \| [^|]+ \|).*\|$", read("docs/models.md"), re.M)
    assert listed[1:] == printed.splitlines()[2:]


WHERE_IS = re.findall(r"^\| [^|]+ \| (\S+/\S+) \| (\S+) \|$", read("ARCHITECTURE.md"), re.M)


@pytest.mark.parametrize("path, symbol", WHERE_IS)
def test_architecture_finds_what_it_says(path, symbol):
    assert re.search(rf"\b{re.escape(symbol)}\b", read(path)), f"{path} has no {symbol}"


def test_architecture_answers_fifteen_questions():
    assert len(WHERE_IS) >= 15


# Folders that a document's paths may be relative to, beside its own. torch/torch.h is torch's.
PATH_FOLDERS = (".", "proto")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_in_documents_exist(document):
    """Paths such as models/step.h, outside of links."""
    text = re.sub(r"\]\([^)]*\)", "]", read(document))
    for path in re.findall(r"(?<![\w/.])((?:[a-z_0-9]+/)+[\w.]+\.(?:h|cc|py|md|proto|inc|cu|rs|yml|txt))\b", text):
        found = any(os.path.exists(os.path.join(ROOT, folder, path)) for folder in (*PATH_FOLDERS, os.path.dirname(document)))
        assert found or path == "torch/torch.h", f"{document} names {path}"
