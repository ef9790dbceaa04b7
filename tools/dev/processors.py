"""How many processors this process may use, as the server counts them (base/machine.h)."""

import os


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def quota_of_group(folder, version_1):
    """The processors of a group's quota, rounded up; None without one."""
    files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version_1 else ("cpu.max",)
    words = " ".join(read(f"{folder}/{file}") for file in files).split()
    if len(words) != 2 or not all(word.isdigit() and int(word) for word in words):  # "max", "-1", or no such file
        return None
    return -(-int(words[0]) // int(words[1]))


def quota(root=""):
    """The least of this process's control groups and those around them; None without one. `root`: of a test's files."""
    quotas = []
    for line in read(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = f"{root}/sys/fs/cgroup" + ("/cpu" if controllers else "")
        group = group.rstrip("/")
        while True:
            quotas.append(quota_of_group(mount + group, bool(controllers)))
            if not group:
                break
            group = group.rpartition("/")[0]
    return min((found for found in quotas if found is not None), default=None)


def count():
    allowed = len(os.sched_getaffinity(0))
    limit = quota()
    return allowed if limit is None else min(allowed, limit)
