"""How much memory this process may take, as its control group says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream_dedup.ground import memory_limit
from stream_dedup.ground.memory_limit import limit_of_group, resident_bytes

MIB = 1 << 20
UNLIMITED_V1 = "9223372036854771712\n"


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limit, "machine_bytes", lambda: 64 << 30)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("own", "files", "limit"),
    [
        pytest.param("0::/\n", {"memory.max": f"{512 * MIB}\n"}, 512 * MIB, id="version 2, in a container"),
        pytest.param("0::/\n", {"memory.max": "max\n"}, None, id="version 2, no limit"),
        pytest.param(
            "0::/system.slice/worker.service\n",
            {"system.slice/memory.max": f"{700 * MIB}\n", "system.slice/worker.service/memory.max": f"{900 * MIB}\n"},
            700 * MIB,
            id="version 2, the least of those above",
        ),
        pytest.param(
            "0::/../../escaped\n", {"memory.max": f"{512 * MIB}\n"}, 512 * MIB, id="version 2, a path outside the namespace"
        ),
        pytest.param(
            "5:cpu,cpuacct:/a\n4:memory:/kubepods/pod1\n",
            {"memory/memory.limit_in_bytes": UNLIMITED_V1, "memory/kubepods/pod1/memory.limit_in_bytes": f"{600 * MIB}\n"},
            600 * MIB,
            id="version 1, under its path",
        ),
        pytest.param(
            "4:memory:/kubepods/pod1\n",
            {"memory/memory.limit_in_bytes": f"{600 * MIB}\n"},
            600 * MIB,
            id="version 1, in a container",
        ),
        pytest.param("4:memory:/\n", {"memory/memory.limit_in_bytes": UNLIMITED_V1}, None, id="version 1, no limit"),
        pytest.param("", {}, None, id="no control groups"),
        pytest.param("0::/\n", {"memory.max": f"{128 << 30}\n"}, None, id="more than the machine has"),
        pytest.param("0::/\n", {"memory.max": "nonsense\n"}, None, id="what nobody knows"),
    ],
)
def test_the_limit_is_the_least_of_the_groups(tmp_path: Path, own: str, files: dict[str, str], limit: int | None) -> None:
    cgroups = write(tmp_path / "cgroup", files)
    cgroups.mkdir(exist_ok=True)
    owner = tmp_path / "own"
    owner.write_text(own)

    assert limit_of_group(cgroups, owner) == limit


def test_a_system_without_any_of_it_has_no_limit(tmp_path: Path) -> None:
    assert limit_of_group(tmp_path / "none", tmp_path / "nothing") is None
    assert resident_bytes(tmp_path / "nothing") > 100 * MIB


def test_what_is_resident_is_what_the_system_says(tmp_path: Path) -> None:
    statm = tmp_path / "statm"
    statm.write_text("1000 300 20 1 0 400 0\n")

    assert resident_bytes(statm) % 300 == 0
    assert resident_bytes() > 10 * MIB
