"""How many processors a process may use: the cases of tests/base/machine_test.cc."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/dev"))

import processors  # noqa: E402


def quota(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return processors.quota(str(folder))


def test_no_quota_is_none(tmp_path):
    assert quota(tmp_path, {}) is None
    assert quota(tmp_path, {"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/pod/cpu.max": "max 100000\n"}) is None
    assert quota(tmp_path, {"proc/self/cgroup": "4:cpu,cpuacct:/a\n", "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n"}) is None


def test_the_quota_is_the_least_of_the_groups_around(tmp_path):
    group = {"proc/self/cgroup": "0::/pod/container\n", "sys/fs/cgroup/pod/cpu.max": "300000 100000\n"}
    assert quota(tmp_path, group) == 3
    assert quota(tmp_path, {"sys/fs/cgroup/pod/container/cpu.max": "150000 100000\n"}) == 2, "rounded up"
    assert quota(tmp_path, {"sys/fs/cgroup/pod/container/cpu.max": "1000 100000\n"}) == 1


def test_the_quota_respects_version_1(tmp_path):
    assert quota(tmp_path, {"proc/self/cgroup": "5:cpu,cpuacct:/a/b\n4:memory:/a/b\n",
                            "sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "400000\n",
                            "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "100000\n"}) == 4


def test_the_count_respects_the_affinity():
    before = os.sched_getaffinity(0)
    assert 1 <= processors.count() <= len(before)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert processors.count() == 1
    finally:
        os.sched_setaffinity(0, before)
