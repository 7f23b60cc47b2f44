"""`bench fingerprint`: text in, signature out, beside other programs on the same texts.

What is timed: from a list of `str` to all signatures, with everything that a program does by itself in between (normalising,
features, hashing). Ours also makes the keyed digest of each normalised text, which the others do not. No index, no search.
Time is CPU time of the process that works, so that neighbours on the machine do not count; each program uses one thread.

Invariants: everybody gets the same texts; rounds take turns (ours, then each peer, then again); the first of ours, which
loads kernels and dictionary, is not counted; medians are of the rounds, and all samples are kept.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.corpus import read_corpora
from bench.peers import Peers
from bench.quality import recipe_of
from stream_dedup.demo.crawl import endless
from stream_dedup.demo.truth import BY_CHARACTERS
from stream_dedup.fingerprinting import Fingerprinter
from stream_dedup.ground.errors import InputError

OURS: Final = "stream-dedup"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FingerprintOptions:
    """What to measure. `corpus` None: generated pages of `size_bytes`; else texts of that folder, whatever their size."""

    languages: tuple[str, ...] = ("en", "zh", "ja", "ru")
    documents: int = 300
    size_bytes: int = 4000
    rounds: int = 3
    seed: int = 1
    presets: tuple[str, ...] = ("words",)
    corpus: Path | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """One program on the texts of one language; `seconds` of CPU for all of them, once a round."""

    program: str
    language: str
    documents: int
    size_bytes: int
    seconds: tuple[float, ...]

    @property
    def megabytes_per_second(self) -> float:
        """Median, of UTF-8."""
        return self.size_bytes / 1e6 / max(statistics.median(self.seconds), 1e-9)

    @property
    def documents_per_second(self) -> float:
        """Median."""
        return self.documents / max(statistics.median(self.seconds), 1e-9)

    def as_json(self) -> dict[str, object]:
        """Return the medians and the raw samples."""
        return {
            "program": self.program,
            "language": self.language,
            "documents": self.documents,
            "bytes": self.size_bytes,
            "megabytes_per_second": round(self.megabytes_per_second, 3),
            "documents_per_second": round(self.documents_per_second, 1),
            "cpu_seconds": [round(one, 6) for one in self.seconds],
        }


@dataclass(frozen=True, slots=True)
class FingerprintReport:
    """All speeds, language by language, ours first."""

    speeds: tuple[Speed, ...]
    peer_versions: Mapping[str, str]
    peers_missing: Mapping[str, str]

    def ratios(self, peer: Speed) -> tuple[float | None, float | None]:
        """Return how many times as fast as a peer ours is: by the first preset measured, and by the one of like features."""
        # The preset whose features are most like those that peers get (`peers/answer.py`): character n-grams or word 3-grams.
        like = f"{OURS} {'chars' if peer.language in BY_CHARACTERS else 'shingles'}"
        ours = [one for one in self.speeds if one.language == peer.language and one.program.startswith(OURS)]
        found = [next(iter(ours), None), next((one for one in ours if one.program == like), None)]
        first, second = (None if one is None else one.megabytes_per_second / peer.megabytes_per_second for one in found)
        return first, second

    def as_json(self) -> dict[str, object]:
        """Return everything, for `--json`."""
        speeds = [one.as_json() for one in self.speeds]
        return {"speeds": speeds, "peers": dict(self.peer_versions), "peers_missing": dict(self.peers_missing)}


def run_fingerprint(options: FingerprintOptions, peers: Peers | None, say: Say) -> FingerprintReport:
    """Measure every preset, and every method of the peers, on the texts of every language.

    Raises:
        InputError: there are no texts in a language.
        StreamDedupError: a peer failed.
    """
    ours = {f"{OURS} {preset}": Fingerprinter(recipe_of(preset)) for preset in options.presets}
    speeds: list[Speed] = []
    for language in options.languages:
        texts = _texts(options, language)
        languages = [language] * len(texts)
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        seconds: dict[str, list[float]] = {name: [] for name in ours}
        for fingerprinter in ours.values():
            fingerprinter.fingerprint(texts)
        for number in range(options.rounds):
            say(f"{language}: round {number + 1} of {options.rounds}")
            for name, fingerprinter in ours.items():
                start = time.process_time()
                fingerprinter.fingerprint(texts)
                seconds[name].append(time.process_time() - start)
            for method in () if peers is None else peers.methods:
                seconds.setdefault(method.name, []).extend(peers.signature_seconds(method, texts, languages, 1))  # type: ignore[union-attr] # there are methods
        speeds += [Speed(name, language, len(texts), size, tuple(found)) for name, found in seconds.items()]
    missing = {} if peers is None else peers.missing
    return FingerprintReport(tuple(speeds), {} if peers is None else peers.versions, missing)


def _texts(options: FingerprintOptions, language: str) -> Sequence[str]:
    if options.corpus is None:
        pages = endless(
            options.seed, options.documents, size_bytes=options.size_bytes, duplicate_share=0, languages=(language,)
        )
        return [page.text for page in pages]
    documents = (document for corpus in read_corpora(options.corpus) for document in corpus.documents)
    texts = [document.text for document in documents if document.language == language][: options.documents]
    if not texts:
        raise InputError(f"No set in {options.corpus} has a document with the lang {language!r}; name others in --languages.")
    return texts
