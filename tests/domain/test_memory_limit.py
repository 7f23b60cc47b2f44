"""The memory limit of this process, read from its control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream_dedup.domain import memory_limit
from stream_dedup.domain.memory_limit import limit_of_group, resident_bytes

MIB = 1 << 20
UNLIMITED_V1 = "9223372036854771712"
# The cgroup file of the process, the files of its control groups (numbers are MiB), and the limit
# in MiB.
CASES: dict[str, tuple[str, dict[str, int | str], int | None]] = {
    "version 2, in a container": ("0::/", {"memory.max": 512}, 512),
    "version 2, no limit": ("0::/", {"memory.max": "max"}, None),
    "version 2, the least of those above": (
        "0::/a/b",
        {"a/memory.max": 700, "a/b/memory.max": 900},
        700,
    ),
    "version 2, a path outside the namespace": ("0::/../../escaped", {"memory.max": 512}, 512),
    "version 1, under its path": (
        "5:cpu,cpuacct:/a\n4:memory:/pods/1",
        {"memory/memory.limit_in_bytes": UNLIMITED_V1, "memory/pods/1/memory.limit_in_bytes": 600},
        600,
    ),
    "version 1, in a container": ("4:memory:/pods/1", {"memory/memory.limit_in_bytes": 600}, 600),
    "version 1, no limit": ("4:memory:/", {"memory/memory.limit_in_bytes": UNLIMITED_V1}, None),
    "no control groups": ("", {}, None),
    "more than the machine has": ("0::/", {"memory.max": 128 << 10}, None),
    "what nobody knows": ("0::/", {"memory.max": "nonsense"}, None),
}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "machine_bytes", lambda: 64 << 30)


@pytest.mark.parametrize("case", CASES)
def test_the_limit_is_the_least_of_the_groups(tmp_path: Path, case: str) -> None:
    cgroup_text, files, limit = CASES[case]
    (tmp_path / "own").write_text(cgroup_text and f"{cgroup_text}\n")
    for name, content in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content * MIB if isinstance(content, int) else content}\n")

    assert limit_of_group(tmp_path / "cgroup", tmp_path / "own") == (limit and limit * MIB)


def test_a_system_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert limit_of_group(tmp_path / "none", tmp_path / "nothing") is None
    assert resident_bytes(tmp_path / "nothing") > 100 * MIB


def test_resident_bytes_are_read_from_statm(tmp_path: Path) -> None:
    statm = tmp_path / "statm"
    statm.write_text("1000 300 20 1 0 400 0\n")

    assert resident_bytes(statm) % 300 == 0
    assert resident_bytes() > 10 * MIB
