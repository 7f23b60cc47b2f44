"""The contract of both stores, and the faults of a store in a directory."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from stream_dedup.domain.errors import StoreError
from stream_dedup.index.storage.contract import Store
from stream_dedup.index.storage.store import RocksStore
from tests.index.damage import flip

Opener = Callable[[], Store]


def test_a_store_is_a_sorted_dictionary(opener: Opener) -> None:
    """Whatever is put, deleted and ranged over, and however often it is opened again: single keys,
    many, prefixes, and all.

    A range goes before the puts of its write, without its end; a key is asked for twice, in vain,
    or none at all; what is not there is deleted; a scan is left in its middle; a store is closed
    twice.
    """
    chance = random.Random(int(os.environ["TEST_SEED"]))
    print("seed", os.environ["TEST_SEED"])
    keys = [
        b"a",
        b"b",
        b"b\x00",
        b"b\x01",
        b"b\xff\xff",
        b"c",
        b"\x00\xff",
        b"\xff",
        *(bytes([number]) for number in range(9)),
    ]
    model: dict[bytes, bytes] = {}
    store = opener()
    for _ in range(120):
        puts = {
            key: chance.randbytes(chance.randrange(300))
            for key in chance.sample(keys, chance.randrange(4))
        }
        deletes = [key for key in chance.sample(keys, chance.randrange(3)) if key not in puts]
        ranges = [
            tuple(sorted(chance.choices(keys, k=2))) for _ in range(chance.choice([0, 0, 1, 2]))
        ]
        store.write(puts, deletes, ranges)
        model = {
            key: model[key]
            for key in model
            if key not in deletes and not any(a <= key < b for a, b in ranges)
        } | puts
        asked = chance.choices([*keys, b"zz"], k=chance.randrange(5))
        assert store.get_many(asked) == [model.get(key) for key in asked]
        prefix = chance.choice([b"", b"b", b"bb", b"\xff"])
        assert list(store.scan(prefix)) == sorted(
            item for item in model.items() if item[0].startswith(prefix)
        )
        next(store.scan(b""), None)
        if model and chance.random() < 0.2:  # one that held data and opens empty is refused
            assert store.size_bytes() > 0
            store.close()
            store.close()
            store = opener()
    store.close()


def test_a_closed_store_raises(opener: Opener) -> None:
    store = opener()
    store.close()
    for use in (
        lambda: store.get_many([b"a"]),
        lambda: store.write({b"a": b""}, []),
        lambda: [*store.scan(b"")],
        store.size_bytes,
    ):
        with pytest.raises(StoreError, match="closed"):
            use()


def test_a_reader_sees_the_state_at_its_opening(tmp_path: Path) -> None:
    """A volume that is being written can be read: as it was when it was opened, and never
    changed."""
    writer = RocksStore(tmp_path)
    writer.write({b"a": b"1"}, [])
    reader = RocksStore(tmp_path, read_only=True)
    writer.write({b"a": b"2", b"b": b"2"}, [])

    assert list(reader.scan(b"")) == [(b"a", b"1")]
    assert reader.get_many([b"b"]) == [None]
    with pytest.raises(StoreError, match="for reading only"):
        reader.write({b"c": b"3"}, [])
    later = RocksStore(tmp_path, read_only=True)
    assert list(later.scan(b"")) == [(b"a", b"2"), (b"b", b"2")]
    for store in (reader, later, writer):
        store.close()


def test_a_checkpoint_is_an_independent_copy(tmp_path: Path) -> None:
    """The copy holds what was written before it, neither side sees the other's later writes, and a
    copy overwrites nothing."""
    writer = RocksStore(tmp_path / "v")
    writer.write({b"a": b"1"}, [])
    writer.checkpoint(tmp_path / "copy")
    writer.write({b"b": b"2"}, [])
    copy = RocksStore(tmp_path / "copy")
    copy.write({b"c": b"3"}, [])

    assert list(copy.scan(b"")) == [(b"a", b"1"), (b"c", b"3")]
    assert [key for key, _ in writer.scan(b"")] == [b"a", b"b"]
    with pytest.raises(StoreError, match="does not exist yet"):
        writer.checkpoint(tmp_path / "copy")
    copy.close()
    writer.close()


def test_a_reader_needs_a_volume(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="contains no index volume"):
        RocksStore(tmp_path / "none", read_only=True)

    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
from stream_dedup.index.storage.store import RocksStore
store = RocksStore(sys.argv[1])
for number in range(1_000_000):
    name = number.to_bytes(8, "big")
    before = [b"two" + (number - 1).to_bytes(8, "big")] if number else []
    store.write({b"one" + name: name * 500, b"two" + name: name, b"last": name}, before)
    print(number, flush=True)
"""


def test_a_killed_process_loses_no_write_and_leaves_none_half_done(tmp_path: Path) -> None:
    """After SIGKILL in mid-stream every write that returned is there, whole, and the next is there
    whole or not at all."""
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "v")], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) == 3000:
            break
    child.send_signal(signal.SIGKILL)
    returned = max([3000, *(int(line) for line in child.stdout.read().split("\n")[:-1])])
    child.wait()
    store = RocksStore(tmp_path / "v")
    ones = [
        int.from_bytes(key[3:], "big") for key, value in store.scan(b"one") if len(value) == 4000
    ]
    (last,) = store.get_many([b"last"])
    assert last is not None
    written = int.from_bytes(last, "big")

    assert ones == list(range(written + 1))
    assert written in {returned, returned + 1}
    assert [key for key, _ in store.scan(b"two")] == [b"two" + last]
    store.close()


FILLER = """
import resource, signal, sys
from stream_dedup.domain.errors import StoreError
from stream_dedup.index.storage.store import RocksStore
store = RocksStore(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
written = 0
try:
    while True:
        store.write({written.to_bytes(8, "big"): bytes(1000), b"more" + written.to_bytes(8, "big"): bytes(1000)}, [])
        written += 1
except StoreError as error:
    print(error)
for use in (lambda: store.get_many([b"a"]), lambda: store.write({b"a": b"b"}, []), lambda: list(store.scan(b""))):
    try:
        use()
    except StoreError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.close()
store = RocksStore(sys.argv[1])
numbers = [int.from_bytes(key, "big") for key, _ in store.scan(bytes(4))]
more = [int.from_bytes(key[4:], "big") for key, _ in store.scan(b"more")]
print(numbers == more == list(range(len(numbers))), written <= len(numbers) <= written + 1, written > 50)
"""


def test_a_full_disk_stops_the_store_until_it_is_opened_again(tmp_path: Path) -> None:
    """A write that finds no room is an error with a remedy; everything after it too; opened again,
    no write is half there."""
    done = subprocess.run(
        [sys.executable, "-c", FILLER, str(tmp_path / "v")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    failed, *later, whole = done.stdout.splitlines()

    assert "Could not write to the index volume" in failed
    assert "the disk is full; free or add space" in failed
    assert len(later) == 3
    assert all(
        line.endswith("The index cannot read or write until it is restarted.") for line in later
    )
    assert whole == "True True True"


def make_volume(path: Path) -> Path:
    """Make a volume whose keys are in files, not only in the write-ahead log."""
    options = Options(raw_mode=True)
    database = Rdict(str(path), options)
    for number in range(2000):
        database.put(number.to_bytes(8, "big"), os.urandom(500))
    database.flush()
    database.close()
    return path


OPENER = (
    "import sys; from stream_dedup.index.storage.store import RocksStore; RocksStore(sys.argv[1])"
)


def test_a_volume_cannot_be_opened_twice(tmp_path: Path) -> None:
    """A volume that this or another process has open is refused, and the sentence says what to
    do."""
    store = RocksStore(tmp_path / "v")
    with pytest.raises(
        StoreError, match=r"another process has it open; .* STREAM_DEDUP_STATE_DIR"
    ) as caught:
        RocksStore(tmp_path / "v")
    assert caught.value.exit_code == 1  # it may have ended by the next start
    other = subprocess.run(
        [sys.executable, "-c", OPENER, tmp_path / "v"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert "another process has it open; stop that process" in other.stderr
    store.close()


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("file", lambda path: path.write_text("x"), "not a directory"),
        ("file/below", lambda path: path.parent.write_text("x"), "Could not open"),
        (
            "other",
            lambda path: (path.mkdir(), (path / "photo.jpg").write_text("x")),
            "not empty, but contains no index volume",
        ),
        ("pickled", lambda path: Rdict(str(path)).close(), "raw_mode is False"),
    ],
)
def test_a_path_that_is_no_volume_is_refused(
    tmp_path: Path, name: str, make: Callable[[Path], object], message: str
) -> None:
    """A file, a path through one, a folder with other files, and a pickling RocksDB are never
    opened or overwritten."""
    make(tmp_path / name)
    with pytest.raises(StoreError, match=message):
        RocksStore(tmp_path / name)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("place", ["/proc/nope", "/proc/nope/below", "/dev/null/below", "x" * 300])
def test_a_directory_that_cannot_be_created_is_reported(place: str, read_only: bool) -> None:
    """Where nothing can be made, or looked into: what, why, and the setting that names another one;
    and 78."""
    with pytest.raises(StoreError) as caught:
        RocksStore(place, read_only=read_only)

    assert place in str(caught.value)
    assert read_only or (caught.value.exit_code, "STREAM_DEDUP_STATE_DIR" in str(caught.value)) == (
        78,
        True,
    )


def test_a_new_file_system_is_an_empty_volume(tmp_path: Path) -> None:
    """The folder `lost+found` of a new file system does not make a volume foreign."""
    (tmp_path / "lost+found").mkdir()
    RocksStore(tmp_path).close()


def test_a_damaged_file_found_by_a_read_stops_the_store(tmp_path: Path) -> None:
    """After one read met damage, reads of sound parts fail too: nobody can say what else is
    gone."""
    path = make_volume(tmp_path / "v")
    flip(next(path.glob("*.sst")), bits=0xFF)
    store = RocksStore(path)
    with pytest.raises(StoreError, match="damaged") as caught:
        store.get_many([number.to_bytes(8, "big") for number in range(2000)])
    with pytest.raises(StoreError, match="until it is restarted") as later:
        store.get_many([bytes(8)])
    assert caught.value.exit_code == later.value.exit_code == 78
    store.close()


@pytest.mark.parametrize("left", ["", "{", '{"raw_mode":true,"prefix_extractors"'])
def test_a_volume_whose_opening_was_killed_is_opened(tmp_path: Path, left: str) -> None:
    """A process that is killed while it opens leaves a beginning of rocksdict's own file; nothing
    is lost by that."""
    store = RocksStore(tmp_path / "volume")
    store.write({b"key": b"value"}, ())
    store.close()
    (tmp_path / "volume" / "rocksdict-config.json").write_text(left)
    again = RocksStore(tmp_path / "volume")

    assert again.get_many([b"key"]) == [b"value"]

    again.close()
