"""What the host gives this process: memory and cores, with the control groups of both versions, on made-up roots."""

import os

import pytest

from nbxtensor.backend import cgroup, sysctl
from nbxtensor.backend.cpu import cores
from nbxtensor.backend.host_memory import MemoryState, linux_memory, memory_state, vm_stat_available
from nbxtensor.errors import MissingFactError

GIB = 1 << 30


@pytest.fixture
def root(tmp_path):
    """Lay files below a root: {path: text}."""

    def lay(files):
        for path, text in files.items():
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return tmp_path

    return lay


MEMINFO = f"MemTotal:       {24 * GIB // 1024} kB\nMemFree:  1 kB\nMemAvailable:   {20 * GIB // 1024} kB\n"
VERSION2 = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/cgroup.controllers": "cpu memory"}
VERSION1 = {"proc/self/cgroup": "5:cpu,cpuacct:/a/b\n4:memory:/a/b\n0::/\n"}


def test_memory_without_groups_is_meminfos(root):
    state = linux_memory(root({"proc/meminfo": MEMINFO}))
    assert (state.total, state.available) == (24 * GIB, 20 * GIB)
    assert state.source.endswith("proc/meminfo")


def test_memory_is_held_to_the_group_with_the_least_left(root):
    base = root(
        {
            "proc/meminfo": MEMINFO,
            **VERSION2,
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.current": "5\n",
            "sys/fs/cgroup/a/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{6 * GIB}\n",
            "sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file 7\n",
        }
    )
    state = linux_memory(base)
    assert (state.total, state.available) == (8 * GIB, 3 * GIB)
    assert state.source.endswith("a/memory.max")


def test_memory_of_version_one_groups(root):
    base = root(
        {
            "proc/meminfo": MEMINFO,
            **VERSION1,
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
            "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes": f"{2 * GIB}\n",
            "sys/fs/cgroup/memory/a/b/memory.usage_in_bytes": f"{3 * GIB}\n",
        }
    )
    state = linux_memory(base)
    assert (state.total, state.available) == (2 * GIB, 0)


def test_a_group_above_the_machine_does_not_hold(root):
    base = root(
        {
            "proc/meminfo": MEMINFO,
            **VERSION2,
            "sys/fs/cgroup/a/memory.max": f"{99 * GIB}",
            "sys/fs/cgroup/a/memory.current": "1",
        }
    )
    assert linux_memory(base).total == 24 * GIB


@pytest.mark.parametrize("files", [{}, {"proc/meminfo": "MemTotal: 3 kB\n"}])
def test_a_host_that_does_not_tell_is_a_missing_fact(root, files):
    with pytest.raises(MissingFactError, match="meminfo"):
        linux_memory(root(files))


def test_this_host():
    state = memory_state()
    assert isinstance(state, MemoryState)
    assert 0 < state.available <= state.total <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert state.source


def test_vm_stat():
    report = (
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\n"
        "Pages free:                               10.\nPages active:                            999.\n"
        "Pages inactive:                           20.\nPages speculative:                        3.\n"
        "Pages wired down:                        500.\nPages purgeable:                          4.\n"
        "Pages stored in compressor:              888.\n"
    )
    assert vm_stat_available(report) == 16384 * 37
    with pytest.raises(MissingFactError, match="vm_stat"):
        vm_stat_available("nothing")


def test_sysctl_knows_nothing_where_there_is_none():
    assert sysctl.integer("hw.no such name") is None
    assert sysctl.text("hw.no such name") is None


def test_quota_of_both_versions_and_of_ancestors(root):
    assert cgroup.cpu_quota(root({})) is None
    base = root({**VERSION2, "sys/fs/cgroup/a/b/cpu.max": "max 100000", "sys/fs/cgroup/a/cpu.max": "150000 100000"})
    assert cgroup.cpu_quota(base) == 1.5
    base = root(
        {
            **VERSION1,
            "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "100000",
        }
    )
    assert cgroup.cpu_quota(base) == 0.5


def siblings(*groups):
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": ",".join(map(str, group)) + "\n"
        for group in groups
        for cpu in group
    }


def test_cores_count_hardware_threads_once_and_follow_the_mask_and_the_quota(root):
    base = root(siblings((0, 4), (1, 5), (2, 6), (3, 7)))
    for mask, expected in [({0, 1, 2, 3, 4, 5, 6, 7}, 4), ({0, 4}, 1), ({0, 5}, 2), ({6, 2, 3}, 2)]:
        assert cores.linux_cores(frozenset(mask), base) == expected
    quotas = {"350000 100000": 3, "50000 100000": 1, "max 100000": 4, "900000 100000": 4}
    for index, (quota, expected) in enumerate(quotas.items()):
        limited = root({**VERSION2, "sys/fs/cgroup/a/b/cpu.max": quota})
        cores.linux_cores.cache_clear()
        assert cores.linux_cores(frozenset(range(8)), limited) == expected, index
    cores.linux_cores.cache_clear()


def test_processors_whose_topology_is_not_told_count_each(root):
    assert cores.linux_cores(frozenset({1, 2, 9}), root({"x": ""})) == 3


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks here")
def test_the_mask_of_this_process_is_followed():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert cores.measured_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert 1 <= cores.measured_cores() <= len(before)
