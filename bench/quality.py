"""Measure what each recipe and plan finds among real texts with known near-duplicates, and what it
drops falsely: `bench quality`.

For every set, recipe and plan two things are measured:

- *pairs*: all of them, without sampling: the exact distance of any two prints, then the plan's predicate. Recall counts the
  `dup` pairs; the easy `exact` pairs are left out. A *false pair* is one whose truth is `diff`, listed or not.
- *a stream*: the set's documents and as many pages of template sites (`templates`) in each of its languages, shuffled by a
  seed and judged by the real index (`offline`), each on a separate site. A *false drop* is as in `truth`: no document
  kept before resembles the dropped one by 0.5, or the named one does not. The rate is per 100,000
  documents that are distinct from all kept before.

Peers (other programs) return the pairs that they call near; their stream is a greedy pass over
these pairs in the same order, as any index that returns all neighbours would do it.

Invariants: counts are of whole pairs and documents, and can be added over sets, groups and hash
keys; a pair counts for `en` or `zh` if both texts have that language, otherwise for `ja+others`.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.bands import BandCounts, count_bands, nearest_kept
from bench.corpus import (
    GROUPS,
    LISTED_FROM,
    Corpus,
    CorpusDocument,
    Group,
    KnownPair,
    group_of,
    read_corpora,
)
from bench.peers import PeerMethod, Peers
from bench.prose import Dice
from bench.templates import Templates, template_language, template_pages
from stream_dedup.audit.scan import ComparedText, PlanRules
from stream_dedup.demo.score import Pair, TrueJudgement, score_verdicts
from stream_dedup.domain.document import Verdict
from stream_dedup.domain.errors import ConfigurationError, StreamDedupError
from stream_dedup.domain.plan import PLANS, Plan
from stream_dedup.domain.sketch import SURE, alike_each, alike_min
from stream_dedup.files.offline import OfflineDocument, judge_documents
from stream_dedup.fingerprinting import PRESETS as ALL_PRESETS
from stream_dedup.fingerprinting import PUBLIC_DEMO_KEY, Content, Fingerprinter, Prints, Recipe

ALL: Final = "all"
PRESETS: Final = tuple(name for name, method in ALL_PRESETS.items() if not method.takes_vectors)
_PAIRS_AT_ONCE: Final = 1 << 22

Say = Callable[[str], None]
Pairs = set[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class QualityOptions:
    """What to measure. `plans` that need more than a recipe computes are left out. `keys`: hash
    keys, the public one first.
    """

    corpus: Path
    presets: tuple[str, ...] = ("words",)
    plans: tuple[Plan, ...] = tuple(PLANS.values())
    keys: int = 1
    seed: int = 1


@dataclass(frozen=True, slots=True)
class PairCounts:
    """Counts; adding two objects adds each number.

    `dup`, `grey`, `diff`: the number of pairs with that truth; `found`, `grey_taken`,
    `false_pairs`: how many of them the method called near; `far_pairs`: false pairs with a Jaccard
    below 0.3. `distinct`: documents of the stream that are unlike all kept before; `false_drops`:
    false drops of the stream.
    """

    dup: int = 0
    found: int = 0
    grey: int = 0
    grey_taken: int = 0
    diff: int = 0
    false_pairs: int = 0
    far_pairs: int = 0
    distinct: int = 0
    false_drops: int = 0

    def __add__(self, other: PairCounts) -> PairCounts:
        return PairCounts(
            *(getattr(self, column.name) + getattr(other, column.name) for column in fields(self))
        )

    @property
    def recall(self) -> float | None:
        """Share of `dup` pairs taken; None if there are none."""
        return self.found / self.dup if self.dup else None

    @property
    def false_per_million(self) -> float | None:
        """False pairs per million `diff` pairs; None if there are none."""
        return 1e6 * self.false_pairs / self.diff if self.diff else None

    @property
    def drops_per_100_000(self) -> float | None:
        """False drops per 100,000 distinct documents; None if there are none."""
        return 1e5 * self.false_drops / self.distinct if self.distinct else None


@dataclass(frozen=True, slots=True)
class QualityFinding:
    """The result of one method on one set, under one hash key: counts of each language group of the
    set.

    `bands`: the set's documents in the stream, without the template pages.
    """

    method: str
    plan: str
    set: str
    key: int
    counts: Mapping[Group, PairCounts]
    bands: BandCounts


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the table: counts over all keys, and the lowest recall of any key."""

    method: str
    plan: str
    name: str
    counts: PairCounts
    recall_min: float | None

    def as_json(self) -> dict[str, object]:
        """Return the counts and rates by name."""
        rates = {
            "recall": self.counts.recall,
            "recall_min": self.recall_min,
            "false_per_million": self.counts.false_per_million,
            "drops_per_100_000": self.counts.drops_per_100_000,
        }
        return {
            "method": self.method,
            "plan": self.plan,
            "set": self.name,
            **asdict(self.counts),
            **rates,
        }


@dataclass(frozen=True, slots=True)
class QualityReport:
    """All findings, with the context to read them. `templates`: (pages, quantiles of the nearest
    page's Jaccard).

    `peers_failed`: for each method that failed, the set and the reason; its findings for earlier
    sets are included.
    """

    findings: tuple[QualityFinding, ...]
    templates: Mapping[str, tuple[int, tuple[float, float, float]]]
    peer_versions: Mapping[str, str]
    peers_missing: Mapping[str, str]
    peers_failed: Mapping[str, str]

    def summaries(self) -> list[Summary]:
        """Return one line for each method and set, then for each method and group, and for all of
        it together.
        """
        methods = dict.fromkeys((finding.method, finding.plan) for finding in self.findings)
        lines = [
            self._summary(*method, name, of_set, of_group)
            for name, of_set, of_group in [
                *(
                    (name, name, None)
                    for name in dict.fromkeys(finding.set for finding in self.findings)
                ),
                *((group, None, group) for group in GROUPS),
                (ALL, None, None),
            ]
            for method in methods
        ]
        return [
            line for line in lines if line.counts.diff or line.counts.dup or line.counts.distinct
        ]

    def bands(self) -> dict[tuple[str, str, str], BandCounts]:
        """Return of each set, method and plan the documents and drops by their nearest kept one,
        over all keys.
        """
        found: defaultdict[tuple[str, str, str], BandCounts] = defaultdict(BandCounts)
        for finding in self.findings:
            found[finding.set, finding.method, finding.plan] += finding.bands
        return dict(found)

    def _summary(
        self, method: str, plan: str, name: str, of_set: str | None, of_group: Group | None
    ) -> Summary:
        by_key: defaultdict[int, PairCounts] = defaultdict(PairCounts)
        for finding in self.findings:
            if (finding.method, finding.plan) == (method, plan) and of_set in (None, finding.set):
                for group, counts in finding.counts.items():
                    if of_group in (None, group):
                        by_key[finding.key] += counts
        recalls = [counts.recall for counts in by_key.values() if counts.recall is not None]
        return Summary(
            method, plan, name, sum(by_key.values(), PairCounts()), min(recalls, default=None)
        )

    def as_json(self) -> dict[str, object]:
        """Return everything, for `--json`."""
        return {
            "summaries": [line.as_json() for line in self.summaries()],
            "findings": [
                {
                    **asdict(finding),
                    "counts": {group: asdict(counts) for group, counts in finding.counts.items()},
                    "bands": finding.bands.as_json(),
                }
                for finding in self.findings
            ],
            "templates": {
                code: {"pages": pages, "nearest_jaccard_10_50_90": [round(cut, 3) for cut in cuts]}
                for code, (pages, cuts) in self.templates.items()
            },
            "peers": dict(self.peer_versions),
            "peers_missing": dict(self.peers_missing),
            "peers_failed": dict(self.peers_failed),
        }


def run_quality(options: QualityOptions, peers: Peers | None, say: Say) -> QualityReport:
    """Measure every set with every recipe and plan, then with every method of the peers; one that
    fails is put down as such.

    Raises:
        InputError: the corpora cannot be read.
        ConfigurationError: there is no such recipe.
    """
    streams = [QualityStream(corpus, options.seed) for corpus in read_corpora(options.corpus)]
    findings, failed = [], {}
    for preset, number in itertools.product(options.presets, range(options.keys)):
        fingerprinter = fingerprinter_of(preset, number)
        for stream in streams:
            say(f"{preset}, hash key {number + 1} of {options.keys}: {stream.corpus.name}")
            findings += _measure(stream, preset, fingerprinter, options.plans, number)
    for method in peers.methods if peers is not None else ():
        for stream in streams:
            say(f"{method.name}: {stream.corpus.name}")
            try:
                findings.append(_measure_peer(stream, method, peers))  # type: ignore[arg-type] # there are methods
            except StreamDedupError as error:
                failed[method.name] = f"{stream.corpus.name}: {error}"
                break
    used = {code: pages for stream in streams for code, pages in stream.templates.items()}
    return QualityReport(
        tuple(findings),
        {code: (len(pages.documents), pages.quantiles()) for code, pages in used.items()},
        {} if peers is None else peers.versions,
        {} if peers is None else peers.missing,
        failed,
    )


def presets_named(names: Sequence[str]) -> tuple[str, ...]:
    """Return the recipes to measure: those named, each checked, or all presets of texts.

    Raises:
        ConfigurationError: there is no such recipe, or it takes vectors.
    """
    for name in names:
        if recipe_of(name).method.takes_vectors:
            raise ConfigurationError(
                f"The recipe {name!r} takes vectors, and what is measured here are texts: name "
                "another."
            )
    return tuple(names) or PRESETS


def recipe_of(preset: str, key: bytes = PUBLIC_DEMO_KEY) -> Recipe:
    """Return a recipe by its name.

    Raises:
        ConfigurationError: there is no such recipe.
    """
    return Recipe(preset, key=key)


def hash_key(number: int) -> bytes:
    """Return the hash key of a number; 0 is the public demo key, which a first try uses."""
    return (
        PUBLIC_DEMO_KEY
        if number == 0
        else hashlib.blake2b(f"quality bench {number}".encode(), digest_size=32).digest()
    )


def fingerprinter_of(preset: str, key: int) -> Fingerprinter:
    """Return the fingerprinter of a recipe with the hash key of number `key`."""
    return Fingerprinter(recipe_of(preset, hash_key(key)))


def plans_for(recipe: Recipe, plans: Iterable[Plan]) -> list[Plan]:
    """Return the plans that judge no more than a recipe makes: its bits, and its sketches."""
    return [
        plan
        for plan in plans
        if plan.width <= recipe.width and (recipe.sketch_bytes or not plan.needs_sketch)
    ]


class QualityStream:
    """A set with the template pages added, in an order that depends on the seed."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self.corpus = corpus
        codes = dict.fromkeys(template_language(document.language) for document in corpus.documents)
        self.templates: dict[str, Templates] = {code: template_pages(code, seed) for code in codes}
        self.documents: list[CorpusDocument] = list(corpus.documents)
        self._known = corpus.truth()
        for pages in self.templates.values():
            first = len(self.documents)
            self._known += [
                Pair(first + pair.earlier, first + pair.later, pair.jaccard, pair.verdict)
                for pair in pages.pairs
            ]
            self.documents += pages.documents
        self.order: list[int] = Dice("quality stream", corpus.name, seed).shuffled(
            range(len(self.documents))
        )

    def drops(self, verdicts: Mapping[int, TrueJudgement]) -> dict[Group, PairCounts]:
        """Count distinct documents and false drops of each group, from a verdict for each place,
        in the stream's order.
        """
        score = score_verdicts(self.documents, verdicts, self._known)
        counts: defaultdict[Group, PairCounts] = defaultdict(PairCounts)
        for language, tally in score.by_language.items():
            counts[group_of(language, language)] += PairCounts(
                distinct=tally.negatives, false_drops=tally.false_drops
            )
        return dict(counts)

    def bands(self, verdicts: Mapping[int, TrueJudgement]) -> BandCounts:
        """Count the set's own documents by the nearest of them that was kept before; exact copies
        are in the last band.
        """
        dropped = {place: verdict.is_duplicate for place, verdict in verdicts.items()}
        places = [place for place in self.order if place < len(self.corpus.documents)]
        return count_bands(
            nearest_kept(self._neighbours, places, dropped), [dropped[place] for place in places]
        )

    @functools.cached_property
    def _neighbours(self) -> Mapping[int, list[tuple[float, int]]]:
        """Of each document those that are listed with it, as (Jaccard, document)."""
        alike: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        for pair in self._known:
            alike[pair.earlier].append((pair.similarity, pair.later))
            alike[pair.later].append((pair.similarity, pair.earlier))
        return alike


class KnownPrints:
    """Prints that are computed once and reused: each plan judges the same stream, and the recipe
    `keywords` is slow.
    """

    def __init__(self, fingerprinter: Fingerprinter, texts: Sequence[str]) -> None:
        self.recipe = fingerprinter.recipe
        self.prints = fingerprinter.fingerprint(texts)
        self._rows = {text: row for row, text in enumerate(texts)}

    def fingerprint(self, contents: Sequence[Content]) -> Prints:
        """Return the rows of these texts."""
        rows = [self._rows[str(content)] for content in contents]
        made = self.prints
        return Prints(
            made.prints[rows],
            made.sketches[rows],
            made.features[rows],
            made.digests[rows],
            made.empty[rows],
        )


def _measure(
    stream: QualityStream,
    method: str,
    fingerprinter: Fingerprinter,
    plans: Iterable[Plan],
    key: int,
) -> list[QualityFinding]:
    corpus, recipe = stream.corpus, fingerprinter.recipe
    known = KnownPrints(fingerprinter, [document.text for document in stream.documents])
    prints = known.prints
    rows_of_corpus = slice(len(corpus.documents))
    sources = [
        OfflineDocument(str(place).encode(), stream.documents[place].text, site=f"{place}.example")
        for place in stream.order
    ]
    findings = []
    for plan in plans_for(recipe, plans):
        pairs = near_pairs(
            prints.prints[rows_of_corpus],
            prints.features[rows_of_corpus],
            prints.sketches[rows_of_corpus],
            recipe.floor,
            plan,
        )
        verdicts = {}
        for judged in judge_documents(sources, recipe, plan, known.fingerprint):
            of = None if judged.kept_number is None else stream.order[judged.kept_number]
            verdicts[stream.order[judged.number]] = TrueJudgement(
                judged.verdict is Verdict.DUPLICATE, of
            )
        counts = _sum_counts(count_pairs(corpus, pairs), stream.drops(verdicts))
        findings.append(
            QualityFinding(method, plan.name, corpus.name, key, counts, stream.bands(verdicts))
        )
    return findings


def _measure_peer(stream: QualityStream, method: PeerMethod, peers: Peers) -> QualityFinding:
    texts = [document.text for document in stream.documents]
    pairs = peers.near_pairs(method, texts, [document.language for document in stream.documents])
    pairs_of_corpus = {pair for pair in pairs if max(pair) < len(stream.corpus.documents)}
    verdicts = judge_greedily(pairs, stream.order)
    counts = _sum_counts(count_pairs(stream.corpus, pairs_of_corpus), stream.drops(verdicts))
    return QualityFinding(
        method.name, method.plan, stream.corpus.name, 0, counts, stream.bands(verdicts)
    )


def _sum_counts(
    left: Mapping[Group, PairCounts], other: Mapping[Group, PairCounts]
) -> dict[Group, PairCounts]:
    return {
        group: left.get(group, PairCounts()) + other.get(group, PairCounts())
        for group in GROUPS
        if group in left or group in other
    }


def near_pairs(
    prints: NDArray[np.uint64],
    features: NDArray[np.uint32],
    sketches: NDArray[np.uint8],
    floor: int,
    plan: Plan,
) -> Pairs:
    """Return all pairs (smaller place first) within a plan's reach, of texts at or above the floor
    on different sites, by a plain scan.

    `prints`: (n, limbs of the recipe), low limb first; `features`: (n,); `sketches`: (n, 120), or
    (n, 0) if the recipe makes none.
    """
    places = np.flatnonzero(features >= floor)
    whole = (1 << plan.width) - 1
    masks = [
        np.uint64((whole >> (64 * word)) & 0xFFFF_FFFF_FFFF_FFFF) for word in range(plan.limbs)
    ]
    columns = [prints[places, word] & mask for word, mask in enumerate(masks)]
    numbers = [
        sum(int(column[row]) << (64 * word) for word, column in enumerate(columns))
        for row in range(len(places))
    ]
    counts = features.tolist()
    found, rules = set(), PlanRules(plan)
    step = max(1, _PAIRS_AT_ONCE // max(1, len(places)))
    for first in range(0, len(places), step):
        distances = sum(
            np.bitwise_count(column[first : first + step, None] ^ column[None, :]).astype(np.uint16)
            for column in columns
        )
        may_be_near = distances <= plan.threshold_max
        if plan.needs_sketch:
            may_be_near |= np.stack(
                [
                    alike_each(sketches[place], sketches[places]) >= alike_min(SURE)
                    for place in places[first : first + step]
                ]
            )
        for row, other in zip(*map(np.ndarray.tolist, np.nonzero(may_be_near)), strict=True):
            left = first + row
            a, b = int(places[left]), int(places[other])
            if left < other and rules.is_near(
                ComparedText.of_number(numbers[left], counts[a], sketches[a].tobytes(), (1, 0, 0)),
                ComparedText.of_number(numbers[other], counts[b], sketches[b].tobytes(), (2, 0, 0)),
            ):
                found.add((a, b))
    return found


def count_pairs(corpus: Corpus, taken: Pairs) -> dict[Group, PairCounts]:
    """Compare the pairs that a method took (smaller place first) with the truth, and count them by
    language group.
    """
    sizes = Counter(group_of(document.language, document.language) for document in corpus.documents)
    every = {group: size * (size - 1) // 2 for group, size in sizes.items()}
    mixed = len(corpus.documents) * (len(corpus.documents) - 1) // 2 - sum(every.values())
    counts: defaultdict[Group, PairCounts] = defaultdict(PairCounts)
    for group, pairs in every.items():
        counts[group] += PairCounts(diff=pairs)
    counts["ja+others"] += PairCounts(diff=mixed)
    for pair, known in corpus.pairs.items():
        counts[corpus.group(pair)] += _count_listed(known, pair in taken)
    for pair in taken - corpus.pairs.keys():
        counts[corpus.group(pair)] += PairCounts(false_pairs=1, far_pairs=1)
    return {group: count for group, count in counts.items() if count != PairCounts()}


def _count_listed(known: KnownPair, taken: bool) -> PairCounts:
    """Return what a listed pair adds; all pairs have been counted as `diff` before."""
    match known.verdict:
        case "dup":
            return PairCounts(diff=-1, dup=1, found=taken)
        case "grey":
            return PairCounts(diff=-1, grey=1, grey_taken=taken)
        case "exact":
            return PairCounts(diff=-1)
        case "diff":
            return PairCounts(false_pairs=taken, far_pairs=taken and known.jaccard < LISTED_FROM)


def judge_greedily(pairs: Pairs, order: Sequence[int]) -> dict[int, TrueJudgement]:
    """Return a verdict for each place: a duplicate of its first neighbour kept before, else
    kept.
    """
    neighbours: defaultdict[int, set[int]] = defaultdict(set)
    for first, other in pairs:
        neighbours[first].add(other)
        neighbours[other].add(first)
    kept: dict[int, int] = {}  # place: when it came
    verdicts = {}
    for when, place in enumerate(order):
        of: Any = min(
            (near for near in neighbours[place] if near in kept), key=kept.__getitem__, default=None
        )
        verdicts[place] = TrueJudgement(of is not None, of)
        if of is None:
            kept[place] = when
    return verdicts
