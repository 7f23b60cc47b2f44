"""What becomes of a volume that was torn, flipped, mistaken for another or put on a full disk: a
sentence with the remedy, or the state after a whole number of records; never a wrong verdict, never
a silent empty start."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stream_dedup.domain.errors import (
    ConfigurationError,
    OtherFormatError,
    StoreError,
    StreamDedupError,
)
from stream_dedup.domain.plan import PLANS
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage import layout
from stream_dedup.index.storage.memory import MemoryStore
from stream_dedup.index.storage.store import RocksStore
from tests.index.damage import cut, flip
from tests.index.logs import APPEND_MS, RandomLog

SEED = int(os.environ["TEST_SEED"])
LOG = "cluster/0123"
RECORDS = 60
FLUSHED = 40  # the state of these is in tables, that of later ones in the write-ahead log


@pytest.fixture(scope="module")
def records() -> list[bytes | None]:
    return RandomLog(SEED, PLANS["blocks"]).records(RECORDS)


@pytest.fixture(scope="module")
def digests(records: list[bytes | None]) -> dict[int, str]:
    """The digest of the state after each number of records, by folding them in memory."""
    index = LogIndex(MemoryStore())
    index.bind(LOG)
    found = {0: index.state_digest().digest}
    for offset, raw in enumerate(records):
        index.apply([(offset, APPEND_MS + offset, raw)])
        found[offset + 1] = index.state_digest().digest
    return found


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, records: list[bytes | None]) -> Path:
    """A volume with tables and a write-ahead log."""
    folder = tmp_path_factory.mktemp("sound")
    index = LogIndex(RocksStore(folder / "first"))
    index.bind(LOG)
    for offset in range(FLUSHED):
        index.apply([(offset, APPEND_MS + offset, records[offset])])
    index.checkpoint(folder / "volume")
    index.close()
    index = LogIndex(RocksStore(folder / "volume"))
    for offset in range(FLUSHED, RECORDS):
        index.apply([(offset, APPEND_MS + offset, records[offset])])
    shutil.copytree(
        folder / "volume", folder / "killed"
    )  # a clean end would move what is in the write-ahead log to a table
    index.close()
    return folder / "killed"


@pytest.fixture(scope="module")
def ended(sound: Path) -> Path:
    """The same volume after a clean end: all data is in tables."""
    return sound.parent / "volume"


@pytest.fixture
def volume(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "volume")
    return tmp_path / "volume"


def opened(volume: Path) -> tuple[int, str]:
    """Open a volume as the role does, and return the log offset and the digest of what it holds."""
    index = LogIndex(RocksStore(volume))
    try:
        index.bind(LOG)
        found = index.state_digest()
        return found.log_offset, found.digest
    finally:
        index.close()


def largest(volume: Path, pattern: str) -> Path:
    return max(volume.glob(pattern), key=lambda path: path.stat().st_size)


def put(volume: Path, key: bytes, value: bytes | None) -> None:
    store = RocksStore(volume)
    store.write({} if value is None else {key: value}, [key] if value is None else [])
    store.close()


def spoil_value(volume: Path, prefix: bytes) -> None:
    store = RocksStore(volume)
    key = max(key for key, _ in store.scan(prefix))
    store.close()
    put(volume, key, b"\x01")


def overwrite(volume: Path, pattern: str, value: bytes) -> None:
    largest(volume, pattern).write_bytes(value)


DAMAGE = "damaged|missing|does not contain|lost writes|instead of|cannot be|not valid"
BAD: dict[str, tuple[Callable[[Path], object], type[StreamDedupError], str]] = {
    "a table is flipped": (lambda v: flip(largest(v, "*.sst"), 700, 0x55), StoreError, DAMAGE),
    "a table is cut": (lambda v: cut(largest(v, "*.sst"), 0.6), StoreError, DAMAGE),
    "a table is missing": (lambda v: largest(v, "*.sst").unlink(), StoreError, DAMAGE),
    "the write-ahead log is flipped at its beginning": (
        lambda v: flip(largest(v, "*.log"), 20, 0x55),
        StoreError,
        DAMAGE,
    ),
    "the write-ahead log is flipped in the middle": (
        lambda v: flip(largest(v, "*.log"), 3000, 0x55),
        StoreError,
        DAMAGE,
    ),
    "MANIFEST is flipped": (lambda v: flip(largest(v, "MANIFEST-*"), 60, 0x55), StoreError, DAMAGE),
    "MANIFEST is empty": (lambda v: overwrite(v, "MANIFEST-*", b""), StoreError, DAMAGE),
    "MANIFEST is missing": (lambda v: largest(v, "MANIFEST-*").unlink(), StoreError, DAMAGE),
    "CURRENT is flipped": (lambda v: flip(v / "CURRENT", 3, 0x55), StoreError, DAMAGE),
    "CURRENT is empty": (lambda v: overwrite(v, "CURRENT", b""), StoreError, DAMAGE),
    "CURRENT is missing": (
        lambda v: (v / "CURRENT").unlink(),
        StoreError,
        "contains no index volume.*CURRENT.*an empty directory",
    ),
    "rocksdict's marker is damaged": (
        lambda v: overwrite(v, "rocksdict-config.json", b"}"),
        StoreError,
        "it is damaged. Start the",
    ),
    "the meta value is gone": (
        lambda v: put(v, layout.KEY_META, None),
        StoreError,
        "meta value.*rebuilt",
    ),
    "the meta value is cut": (
        lambda v: put(v, layout.KEY_META, b"x"),
        StoreError,
        "meta value is damaged.*rebuilt",
    ),
    "the declaration is damaged": (
        lambda v: put(v, layout.KEY_DECLARED, b"{}"),
        StoreError,
        "declaration.*rebuilt",
    ),
    "a page is gone": (
        lambda v: put(v, layout.page_key(0), None),
        StoreError,
        "live entries instead of.*rebuilt",
    ),
    "a source's name is gone": (
        lambda v: put(v, layout.source_key(0), None),
        StoreError,
        "source partition. .*rebuilt",
    ),
    "a watermark is gone": (
        lambda v: put(v, layout.watermark_key(0), None),
        StoreError,
        "does not contain the watermark.*rebuilt",
    ),
    "the format is newer": (
        lambda v: put(v, layout.KEY_FORMAT, b"SDX1\x63\x00"),
        OtherFormatError,
        "format 99.*the version",
    ),
    "the format is another program's": (
        lambda v: put(v, layout.KEY_FORMAT, b"abc"),
        StoreError,
        "not written by stream_dedup",
    ),
    "no format at all": (
        lambda v: put(v, layout.KEY_FORMAT, None),
        StoreError,
        "data that no index wrote",
    ),
    "the log is another one": (
        lambda v: put(v, layout.KEY_LOG, b"cluster/4567"),
        ConfigurationError,
        "belongs to the log 'cluster/4567'.*created again.*another cluster",
    ),
    **{
        f"{what} is damaged": (
            partial(spoil_value, prefix=prefix),
            StoreError,
            "rebuild|rebuilt|empty",
        )
        for what, prefix in (
            ("a page", b"e"),
            ("a kept verdict", b"v"),
            ("a watermark", b"k"),
            ("a source's name", b"s"),
        )
    },
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_volume_is_refused_with_cause_and_remedy(volume: Path, what: str) -> None:
    """Each kind of damage or mistake ends the opening with its sentence, and with 78: a restart
    would meet the same."""
    spoil, error, sentence = BAD[what]
    spoil(volume)
    with pytest.raises(error, match=sentence) as caught:
        opened(volume)

    assert caught.value.exit_code == 78


def test_the_sound_volume_opens(volume: Path, digests: dict[int, str]) -> None:
    """The volume that is damaged above contains all records before that."""
    assert opened(volume) == (RECORDS, digests[RECORDS])


FILES = ["*.sst", "*.log", "MANIFEST-*", "CURRENT", "OPTIONS-*", "rocksdict-config.json"]


@pytest.mark.parametrize(
    ("end", "pattern"),
    [*(("killed", name) for name in FILES), ("clean", "*.sst"), ("clean", "MANIFEST-*")],
)
def test_no_flipped_or_cut_byte_makes_another_state(
    sound: Path, ended: Path, tmp_path: Path, digests: dict[int, str], end: str, pattern: str
) -> None:
    """Wherever a file is flipped or cut: an error with a sentence, or the state after a whole
    number of records."""
    generator = random.Random(SEED)
    base = sound if end == "killed" else ended
    size = largest(base, pattern).stat().st_size
    outcomes = []
    for number in range(16):
        volume = tmp_path / str(number)
        shutil.copytree(base, volume)
        path = largest(volume, pattern)
        position = generator.randrange(size)
        is_cut = number % 4 == 0
        if is_cut:
            cut(path, position / size)
        else:
            flip(path, position, 0x55)
        outcome = outcome_of(volume)
        outcomes.append(outcome)
        if isinstance(outcome, str):
            assert outcome.endswith((".", ").")), outcome
            continue
        applied, digest = outcome
        assert digest == digests[applied], (
            f"{pattern} at {position}: another state at log offset {applied}"
        )
        # A file that ends early may be read up to its end, but not as empty; the log is applied
        # again from there. A flipped length in a MANIFEST looks like its end.
        may_end_early = pattern == "MANIFEST-*" or (is_cut and pattern == "*.log")
        assert applied == RECORDS or (may_end_early and applied > 0), (
            f"{pattern} at {position}: back to {applied}"
        )
    assert pattern.startswith("OPTIONS") or any(isinstance(outcome, str) for outcome in outcomes), (
        "nothing was ever noticed"
    )


def outcome_of(volume: Path) -> tuple[int, str] | str:
    try:
        return opened(volume)
    except StreamDedupError as error:
        return str(error)


def test_a_cut_manifest_never_hides_a_write_before_a_later_one(tmp_path: Path) -> None:
    """Of writes that a table holds which the rest of the MANIFEST does not name, none is missed
    while a later one of the write-ahead log is read; also where nothing counts what they wrote."""
    store = RocksStore(tmp_path / "volume")
    written = [{b"v1": b"a"}, {b"v2": b"b"}, {b"v3": b"c"}]
    for number, puts in enumerate(written):
        store.write(puts, [])
        if number < 2:
            assert store._database is not None
            store._database.flush()
    shutil.copytree(tmp_path / "volume", tmp_path / "killed")
    store.close()
    wholes = [dict(pair for puts in written[:n] for pair in puts.items()) for n in range(4)]
    outcomes = set()
    for size in range(largest(tmp_path / "killed", "MANIFEST-*").stat().st_size + 1):
        shutil.rmtree(tmp_path / "volume")
        shutil.copytree(tmp_path / "killed", tmp_path / "volume")
        os.truncate(largest(tmp_path / "volume", "MANIFEST-*"), size)
        try:
            store = RocksStore(tmp_path / "volume")
        except StoreError as error:
            outcomes.add("lost writes" if "lost writes" in str(error) else "damaged")
            continue
        found = dict(store.scan(b""))
        store.close()
        assert found in wholes, size
        outcomes.add("whole")
    assert outcomes == {"lost writes", "damaged", "whole"}


def test_a_volume_whose_manifest_was_cut_after_its_first_edit_is_refused(
    sound: Path, tmp_path: Path
) -> None:
    """RocksDB opens a volume whose MANIFEST was cut after its first edit as an empty one, without a
    word; we do not."""
    shutil.copytree(sound.parent / "first", tmp_path / "volume")
    cut(largest(tmp_path / "volume", "MANIFEST-*"), 0.75)
    with pytest.raises(StoreError, match=r"contained data but opened empty.*empty directory"):
        opened(tmp_path / "volume")
