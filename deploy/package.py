#!/usr/bin/env python3
"""Packs the built server and client with all that they need: a folder, and of it a tarball and a Python wheel.

    deploy/package.py [--gpu] [--folder=FOLDER] [--out=FOLDER]

The folder can be moved, because programs and libraries find each other by $ORIGIN:

    bin/                programs
    lib/                shared libraries: all but glibc, libstdc++ and libgcc_s, which every system has
    share/berth/        the demo model, a service of systemd, and the licences

With --folder it makes that folder alone. Else it writes both archives into --out (.package). --gpu adds the CUDA kernels
and CUDA's libraries, which `./dev cuda` installs. `./dev package` builds the programs and runs this.
"""

import argparse
import base64
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = ["server/berth-server", "client/berth-cli"]
CUDA_KERNELS = ["server/libberth_cuda.so", "server/libberth_cuda_graph.so"]
DEMO = "falcon_h1-demo"
# What systems have, by the name that programs ask for. The wheel's tag allows these too.
SYSTEM = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|resolv|util|gcc_s|stdc\+\+))\.so\.\d+")
# glibc 2.36 is that of Debian 12, on which the programs are built; tests/deploy/test_package.py reads what they need.
PLATFORM = "manylinux_2_36_x86_64"
# Parts of other packages than those whose libraries are packed: headers, and GNU OpenMP, which the torch wheel brings.
OTHER_PACKAGES = ["nlohmann-json3-dev", "libxxhash-dev", "gcc-12-base"]
LICENCE_FILE = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE|AUTHORS)([.-].*)?", re.I)
EPOCH = (2020, 1, 1, 0, 0, 0)  # of all files in the archives, so that equal files make equal archives
MEBIBYTE = 1 << 20

METADATA = """\
Metadata-Version: 2.1
Name: berth-server
Version: {version}
Summary: Text-generation server for transformers, state-space models and hybrids, over gRPC
License: Apache-2.0
Requires-Python: >=3.8
Description-Content-Type: text/markdown

`berth-server` serves the bundled demo model, and `berth-server --model=DIR` a Hugging Face checkpoint. `berth-cli` is its
client. Both are native programs; Python only starts them.
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: deploy/package.py
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""
ENTRY_POINTS = """\
[console_scripts]
berth-server = berth_server:server
berth-cli = berth_server:cli
"""
PYTHON_MODULE = '''\
"""Starts the programs of this package in place of the Python process."""

import os
import sys


def _run(name):
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)
    os.execv(program, [program, *sys.argv[1:]])


def server():
    _run("berth-server")


def cli():
    _run("berth-cli")
'''


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def version():
    return re.search(r'kVersion\[\] = "(.*)"', (ROOT / "server/version.h").read_text()).group(1)


def libraries_of(programs):
    """{name: path} of the shared libraries that the programs load, without the system's."""
    found = {}
    for program in programs:
        output = run("ldd", program)
        if missing := re.findall(r"(\S+) => not found", output):
            raise SystemExit(f"{program}: {', '.join(missing)} not found")
        found |= {name: path for name, path in re.findall(r"(\S+) => (/\S+)", output) if not SYSTEM.fullmatch(name)}
    return found


def copy_program(source, target, run_path, strip):
    """A stripped copy that looks for libraries in `run_path`, before LD_LIBRARY_PATH."""
    target.parent.mkdir(parents=True, exist_ok=True)
    run("strip", strip, "-o", target, pathlib.Path(source).resolve())
    target.chmod(0o755)
    run("patchelf", "--force-rpath", "--set-rpath", run_path, target)


def copy_programs(folder, libraries):
    for name in PROGRAMS:
        # The names of functions stay, for the traces of crashes.
        target = folder / "bin" / os.path.basename(name)
        copy_program(ROOT / "bazel-bin" / name, target, "$ORIGIN/../lib", "--strip-debug")
    for name, path in libraries.items():
        copy_program(path, folder / "lib" / name, "$ORIGIN", "--strip-unneeded")


def copy_cuda(folder):
    """CUDA's libraries keep their folders, because libtorch_cuda.so looks for the others beside its own."""
    for name in CUDA_KERNELS:
        shutil.copy(ROOT / "bazel-bin" / name, folder / "bin")
    shutil.copytree(ROOT / ".deps/libtorch_cuda", folder / "libtorch_cuda")


def packages_of(paths):
    """The Debian packages that hold the files at `paths`."""
    wanted = [name for path in paths for name in (path, os.path.realpath(path), "/usr" + path)]
    lines = subprocess.run(["dpkg", "-S", *wanted], capture_output=True, text=True).stdout.splitlines()
    return {line.split(":")[0] for line in lines}


def copy_debian_licences(folder, libraries):
    paths = [path for path in libraries.values() if path.startswith(("/lib/", "/usr/lib/"))]
    packages = sorted(packages_of(paths) | set(OTHER_PACKAGES))
    for package in packages:
        shutil.copy(f"/usr/share/doc/{package}/copyright", folder / f"{package}.txt")


def copy_wheel_licences(folder):
    torch = (ROOT / ".deps/libtorch/lib/libtorch_cpu.so").resolve().parents[2]
    for licences in torch.glob("*.dist-info/licenses"):
        shutil.copytree(licences, folder / licences.parent.name.removesuffix(".dist-info"))


def copy_crate_licences(folder):
    """Copies the licences of the crates that are linked, Oniguruma's in the crate onig_sys included."""
    metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform",
                              "x86_64-unknown-linux-gnu", "--manifest-path", ROOT / "text/crate/Cargo.toml"))
    for crate in metadata["packages"]:
        source = pathlib.Path(crate["manifest_path"]).parent
        for path in [*source.glob("*"), *source.glob("*/COPYING")]:
            if crate["source"] is not None and path.is_file() and LICENCE_FILE.fullmatch(path.name):
                target = folder / f"{crate['name']}-{crate['version']}" / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


def copy_shared(folder, libraries):
    share = folder / "share/berth"
    shutil.copytree(ROOT / "models/demo" / DEMO, share / DEMO, ignore=shutil.ignore_patterns(".berth"))
    for name in ("LICENSE", "THIRD_PARTY.md", "deploy/systemd/berth.service"):
        shutil.copy(ROOT / name, share)
    for part, copy in [("debian", lambda to: copy_debian_licences(to, libraries)), ("wheels", copy_wheel_licences),
                       ("crates", copy_crate_licences)]:
        (share / "licences" / part).mkdir(parents=True)
        copy(share / "licences" / part)


def stage(folder, gpu):
    libraries = libraries_of([ROOT / "bazel-bin" / name for name in PROGRAMS])
    copy_programs(folder, libraries)
    copy_shared(folder, libraries)
    if gpu:
        copy_cuda(folder)


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def write_tarball(folder, archive):
    name = archive.name.removesuffix(".tar.gz")

    def plain(member):
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = "root"
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        for path in files_of(folder):
            tar.add(path, f"{name}/{path.relative_to(folder)}", filter=plain)


def write_wheel(folder, archive):
    info = f"berth_server-{version()}.dist-info"
    record = []

    def add(name, content, mode=0o644):
        entry = zipfile.ZipInfo(name, EPOCH)
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        wheel.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(content)}")

    with zipfile.ZipFile(archive, "w") as wheel:
        add("berth_server/__init__.py", PYTHON_MODULE.encode())
        for path in files_of(folder):
            add(f"berth_server/{path.relative_to(folder)}", path.read_bytes(), path.stat().st_mode & 0o755)
        for name, content in [("METADATA", METADATA.format(version=version())), ("WHEEL", WHEEL.format(platform=PLATFORM)),
                              ("entry_points.txt", ENTRY_POINTS),
                              ("licenses/LICENSE", (ROOT / "LICENSE").read_text(encoding="utf-8"))]:
            add(f"{info}/{name}", content.encode())
        record.append(f"{info}/RECORD,,")
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD", EPOCH), "\n".join(record) + "\n")


def write_archives(folder, out):
    out.mkdir(parents=True, exist_ok=True)
    tarball = out / f"berth-{version()}-linux-x86_64.tar.gz"
    wheel = out / f"berth_server-{version()}-py3-none-{PLATFORM}.whl"
    with concurrent.futures.ThreadPoolExecutor() as pool:  # zlib runs outside Python's lock
        list(pool.map(lambda write, archive: write(folder, archive), [write_tarball, write_wheel], [tarball, wheel]))
    unpacked = sum(path.stat().st_size for path in files_of(folder))
    for archive in (tarball, wheel):
        print(f"{os.path.relpath(archive)}: {archive.stat().st_size / MEBIBYTE:.1f} MiB, "
              f"unpacked {unpacked / MEBIBYTE:.1f} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="add what --device=cuda needs; only with --folder")
    parser.add_argument("--folder", type=pathlib.Path, help="make this folder, and no archive")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / ".package", help="where the archives go")
    arguments = parser.parse_args()
    if arguments.gpu and not arguments.folder:
        sys.exit("--gpu requires --folder: CUDA's libraries are too large for a wheel")
    if arguments.folder:
        stage(arguments.folder, arguments.gpu)
        return
    with tempfile.TemporaryDirectory() as folder:
        stage(pathlib.Path(folder), gpu=False)
        write_archives(pathlib.Path(folder), arguments.out)


if __name__ == "__main__":
    main()
