#!/usr/bin/env python3
"""Runs a shell command in a root folder of its own, without the network: for tests of what is installed elsewhere.

    in_root.py [--root=FOLDER] [--bind=SOURCE:TARGET[:rw]]... [--user=UID] [--read-only] [--network] COMMAND

What the command writes is lost: above FOLDER lies a layer in memory. SOURCE is seen at TARGET, read-only without :rw.
Loopback is there, all its ports are free, and processes that the command leaves end with it. With --network the machine's
own network is used, and its own certificate authorities. Without --root the machine's own root is used as it is. Needs
root, or sudo without a password.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

AUTHORITIES = "/usr/local/share/ca-certificates"


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


def bind(source, target, mode="ro"):
    if os.path.isdir(source):
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount("--bind", source, target)
    mount("-o", f"remount,bind,{mode}", target)


def make_root(folder, arguments):
    """The root with its layer, binds and system folders."""
    for name in ("upper", "work", "root"):
        (folder / name).mkdir()
    root = folder / "root"
    mount("-t", "overlay", "overlay", "-o", f"lowerdir={arguments.root},upperdir={folder}/upper,workdir={folder}/work", root)
    for pair in arguments.bind:
        source, target, *mode = pair.split(":")
        bind(source, root / target.lstrip("/"), *mode)
    mount("-t", "proc", "proc", root / "proc")
    # A container has it too. Without it, glibc fails to count the processors, and gRPC before 1.61 may take that error for
    # one of connect(), if it comes just after.
    mount("-t", "sysfs", "-o", "ro", "sysfs", root / "sys")
    mount("--rbind", "/dev", root / "dev")
    if arguments.network:
        bind(os.path.realpath("/etc/resolv.conf"), root / "etc/resolv.conf")
        if os.path.isdir(AUTHORITIES):
            shutil.copytree(AUTHORITIES, root / AUTHORITIES.lstrip("/"), dirs_exist_ok=True)
    if arguments.read_only:
        mount("-t", "tmpfs", "tmpfs", root / "tmp")
        mount("-o", "remount,ro", root)
    return root


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path)
    parser.add_argument("--bind", action="append", default=[])
    parser.add_argument("--user", type=int, default=0)
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--network", action="store_true")
    parser.add_argument("command")
    return parser.parse_args()


def main():
    arguments = parse()
    if "IN_ROOT" not in os.environ:
        namespaces = ["--mount", "--pid", *([] if arguments.network else ["--net"])]
        sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
        command = [*sudo, "unshare", *namespaces, "--fork", "--kill-child", "env", "IN_ROOT=1", sys.executable, *sys.argv]
        os.execvp(command[0], command)
    if not arguments.network:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    if arguments.root:
        folder = pathlib.Path("/mnt")
        mount("-t", "tmpfs", "tmpfs", folder)
        os.chroot(make_root(folder, arguments))
        os.chdir("/")
    else:
        mount("-t", "proc", "proc", "/proc")
    os.setgroups([])
    os.setgid(arguments.user)
    os.setuid(arguments.user)
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/tmp"}
    os.execve("/bin/sh", ["sh", "-euc", arguments.command], environment)


if __name__ == "__main__":
    main()
