#!/usr/bin/env python3
"""Packs what `./dev gpu-check` needs into one archive, for a machine with a GPU that has neither compiler nor network.

It holds the built programs, stripped, with the shared libraries of Debian that they need. It also holds the Python code
and the modules that protoc generates for it, the demo models, and `dev` with tools/dev. The other machine has the
driver, Python with torch, transformers and grpcio, glibc and libstdc++. `./dev gpu-pack` builds the programs and runs
this.
"""

import argparse
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

from stages import BIN, DEVICE_TESTS, ROOT

PROGRAMS = ["server/berth-server", "client/berth-cli", "server/libberth_cuda.so", "server/libberth_cuda_graph.so",
            "bench/kernel_bench", *DEVICE_TESTS]
FILES = ["dev", "tools/dev", "tools/gpu", "tools/parity", "bench/peers", "tests/e2e", "tests/testing", "models/demo",
         "docs/cuda.md", "LICENSE", "THIRD_PARTY.md"]
KINDS = (".py", ".sh", ".md", ".json", ".safetensors", ".jinja", "/dev", "/LICENSE")
# Libraries of the other machine: glibc, libstdc++, and what torch brings.
NOT_PACKED = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|gcc_s|stdc\+\+|gomp|torch.*|c10.*|cud.*|cupti|nv.*))\.so.*")
LIMIT = 64 << 20  # bytes


def pack_programs(folder):
    libraries = {}
    for name in PROGRAMS:
        source, target = BIN / name, folder / "bazel-bin" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["strip", "--strip-unneeded", "-o", target, source.resolve()], check=True)
        found = subprocess.run(["ldd", source.resolve()], check=True, capture_output=True, text=True).stdout
        libraries |= {name: path for name, path in re.findall(r"(\S+) => (/\S+)", found) if not NOT_PACKED.fullmatch(name)}
    (folder / "lib").mkdir()
    for name, path in libraries.items():
        shutil.copy(pathlib.Path(path).resolve(), folder / "lib" / name)


def pack_files(folder):
    for name in FILES:
        source = ROOT / name
        for path in [source, *source.rglob("*")]:
            inside = path.relative_to(ROOT)
            if path.is_file() and f"/{inside}".endswith(KINDS) and not any(part.startswith(".") for part in inside.parts):
                target = folder / inside
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)


def pack_stubs(folder):
    """By Debian's protoc, whose modules older and newer versions of protobuf's and gRPC's Python packages take."""
    (folder / "stubs").mkdir()
    protos = sorted((ROOT / "proto/berth/v1").glob("*.proto"))
    subprocess.run(["protoc", f"-I{ROOT}/proto", f"--python_out={folder}/stubs", f"--grpc_out={folder}/stubs",
                    f"--plugin=protoc-gen-grpc={shutil.which('grpc_python_plugin')}", *protos], check=True)


def pack(archive, preset):
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
        folder = pathlib.Path(temporary) / "berth-gpu"
        folder.mkdir()
        pack_programs(folder)
        pack_files(folder)
        pack_stubs(folder)
        # The programs have much in common: a dictionary as long as they are together.
        filters = [{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": 128 << 20}]
        with lzma.open(archive, "wb", filters=filters) as file, tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(folder, "berth-gpu")
    size = archive.stat().st_size
    print(f"{os.path.relpath(archive)}: {size / (1 << 20):.1f} MiB")
    if size > LIMIT:
        sys.exit(f"larger than {LIMIT >> 20} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", type=pathlib.Path, default=ROOT / ".gpu/berth-gpu.tar.xz")
    parser.add_argument("--targets", action="store_true", help="print the Bazel targets of the programs instead")
    parser.add_argument("--preset", type=int, default=6, help="xz's; less is faster and larger")
    arguments = parser.parse_args()
    if arguments.targets:
        print(*("//" + ":".join(name.removesuffix(".so").rsplit("/", 1)) for name in PROGRAMS))
        return
    pack(arguments.archive.absolute(), arguments.preset)


if __name__ == "__main__":
    main()
