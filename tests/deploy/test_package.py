"""The package: what its programs need of a system, and that they run by the commands of docs/install.md on systems that
have no more. These are Debian 12 and 13 without any package, and Python without any other."""

import base64
import csv
import hashlib
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYSTEM = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|resolv|util|gcc_s|stdc\+\+))\.so\.\d+")
# The newest symbols of Debian 12, which Ubuntu 24.04 and Debian 13 have too.
NEWEST = {"GLIBC": (2, 36), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
INSTALL = (ROOT / "docs/install.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", INSTALL, re.M | re.S)


@pytest.fixture(scope="module")
def unpacked(package, tmp_path_factory):
    """The folder that the tarball holds."""
    folder = tmp_path_factory.mktemp("unpacked")
    (tarball,) = package.glob("*.tar.gz")
    with tarfile.open(tarball) as tar:
        tar.extractall(folder)
    (top,) = folder.iterdir()
    return top


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def elf_files(folder):
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and is_elf(path)]
    assert len(paths) > 50
    return paths


def readelf(option, path):
    return subprocess.run(["readelf", option, "-W", path], check=True, capture_output=True, text=True).stdout


def test_needs_no_newer_symbol_than_debian_12_has(unpacked):
    needed = {}
    for path in elf_files(unpacked):
        section = readelf("--version-info", path).split("Version needs section")[-1]
        for kind, number in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)", section):
            version = tuple(map(int, number.split(".")))
            needed[kind] = max(needed.get(kind, version), version)
            assert version <= NEWEST[kind], f"{path.name} needs {kind}_{number}"
    assert set(needed) == set(NEWEST), needed


def test_every_library_is_there_and_found_beside_the_programs(unpacked):
    packed = {path.name for path in (unpacked / "lib").iterdir()}
    for path in elf_files(unpacked):
        dynamic = readelf("--dynamic", path)
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
            assert name in packed or SYSTEM.fullmatch(name), f"{path.name} needs {name}"
        (run_path,) = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic)
        assert run_path == ("$ORIGIN/../lib" if path.parent.name == "bin" else "$ORIGIN"), path.name
    assert not any(SYSTEM.fullmatch(name) for name in packed)


def test_programs_are_stripped(unpacked):
    for path in elf_files(unpacked):
        sections = re.findall(r"\] (\.\S+)", readelf("--sections", path))
        assert not any(name.startswith(".debug") for name in sections), path.name
        assert (".symtab" in sections) == (path.parent.name == "bin"), path.name


def test_carries_a_licence_of_every_part(unpacked):
    share = unpacked / "share/berth"
    for name in ("LICENSE", "THIRD_PARTY.md"):
        assert (share / name).read_bytes() == (ROOT / name).read_bytes()
    licences = share / "licences"
    crates = re.findall(r'^name = "(.*)"\nversion = "(.*)"$', (ROOT / "text/crate/Cargo.lock").read_text(), re.M)
    carried = {path.name for path in (licences / "crates").iterdir()}
    assert len(carried) > 60 and carried <= {f"{name}-{version}" for name, version in crates}
    assert {"libgrpc29.txt", "libprotobuf32.txt", "libssl3.txt", "libabsl20220623.txt"} <= set(os.listdir(licences / "debian"))
    assert {path.name.split("-")[0] for path in (licences / "wheels").iterdir()} == {
        "torch", "nvidia_cuda_runtime", "nvidia_cuda_cupti"}


def test_equal_files_make_equal_archives(package):
    for archive in package.iterdir():
        if archive.suffix == ".whl":
            times = {entry.date_time for entry in zipfile.ZipFile(archive).infolist()}
        else:
            times = {(member.mtime, member.uid) for member in tarfile.open(archive)}
        assert len(times) == 1, archive.name


def test_wheel_is_well_formed(package):
    (path,) = package.glob("*.whl")
    name, version, tag = re.fullmatch(r"(\w+)-([\d.]+)-(.*)\.whl", path.name).groups()
    wheel = zipfile.ZipFile(path)
    info = f"{name}-{version}.dist-info"
    assert f"Tag: {tag}\n" in wheel.read(f"{info}/WHEEL").decode()
    assert tag == f"py3-none-manylinux_{'_'.join(map(str, NEWEST['GLIBC']))}_x86_64"
    rows = list(csv.reader(io.StringIO(wheel.read(f"{info}/RECORD").decode())))
    assert sorted(row[0] for row in rows) == sorted(wheel.namelist())
    for file, digest, size in rows:
        if file.endswith("/RECORD"):
            continue
        content = wheel.read(file)
        expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={expected}", len(content)), file


def in_background(command):
    """The command as a server: the script continues once it serves."""
    return f"""{command} --port_file="$folder/ports" 2>"$folder/log" &
i=0; until [ -e "$folder/ports" ]; do i=$((i + 1)); [ $i -lt 6000 ] || {{ cat "$folder/log"; exit 1; }}; sleep 0.1; done
"""


def script_of(block):
    """The commands of a block of docs/install.md, with the server in the background."""
    lines = block.splitlines()
    assert sum("berth-server" in line for line in lines) == 1, block
    served = [in_background(line) if re.search(r"berth-server$", line) else line for line in lines]
    return "\n".join(["folder=$(mktemp -d)", *served, ""])


def block_with(word):
    (block,) = [block for block in BLOCKS if word in block]
    return block


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_tarball_runs_on_a_bare_debian(package, in_root, suite):
    (tarball,) = package.glob("*.tar.gz")
    block = block_with("bin/berth-cli")
    assert tarball.name in block
    script = "cd /tmp\n" + script_of(block.replace("tar xzf ", "tar xzf /archives/"))
    printed = in_root(suite, script + 'cat "$folder/log"', "--user=10001", f"--bind={package}:/archives")
    assert "68" in printed.splitlines()[0], printed
    assert "--model is not set; serving the demo model in /tmp/berth-" in printed


def test_service_of_systemd_starts(package, in_root):
    """What `systemctl enable --now` would start, as the user that the service names. There is no systemd here."""
    (tarball,) = package.glob("*.tar.gz")
    *commands, start = block_with("systemctl").splitlines()
    assert start.startswith("systemctl enable")
    (flags,) = re.findall(r"^```\n(--.*?)^```", INSTALL, re.M | re.S)
    service = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / "deploy/systemd/berth.service").read_text(), re.M))
    assert int(service["TimeoutStopSec"]) >= 30 + 30 + 2 + 60
    script = "\n".join([
        "cd /archives", *commands, "cmp /etc/systemd/system/berth.service /opt/berth/share/berth/berth.service",
        f"mkdir -p /etc/berth /srv/models; install -d -o {service['User']} -m {service['StateDirectoryMode']} "
        f"/var/lib/{service['StateDirectory']}",
        "ln -s /opt/berth/share/berth/falcon_h1-demo /srv/models/NAME", f"cat >/etc/berth/flags <<'END'\n{flags}END",
        "folder=$(mktemp -d); chmod 777 $folder",
        f"su {service['User']} -s /bin/sh -c \"{service['ExecStart']} --port_file=$folder/ports\" 2>$folder/log &",
        "until [ -e $folder/ports ]; do kill -0 $! || { cat $folder/log; exit 1; }; sleep 0.1; done",
        '/opt/berth/bin/berth-cli generate --prompt=Once --max_tokens=2 --session_id=one',
        "until ls /var/lib/berth/sessions/*.session; do kill -0 $!; sleep 0.1; done"])
    printed = in_root("bookworm", script, f"--bind={package}:/archives")
    assert re.search(r"/one@\w+\.session$", printed, re.M), printed


def test_wheel_serves_by_the_documented_commands(package, in_root, tmp_path):
    """In a virtual environment without any package, on this system."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    script = f"cd {package}; . {tmp_path}/venv/bin/activate\n" + script_of(block_with("pip install"))
    script += block_with("--dry_run").replace("DIR", f"{ROOT}/models/demo/gemma3-demo")
    printed = in_root(None, script.replace("pip install", "pip install --no-index --quiet --disable-pip-version-check"))
    answer, *sizes = printed.splitlines()
    assert "68" in answer, printed
    assert sizes[0].startswith("model gemma3-demo: ") and sizes[-1].startswith("sequences of "), printed


def test_the_tests_run_every_command_of_the_page():
    """test_image.py runs the client of the last one; Helm and a cluster are not here."""
    assert [block.split()[0] for block in BLOCKS] == ["pip", "tar", "tar", "berth-server", "helm"]
