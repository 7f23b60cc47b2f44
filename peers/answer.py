"""Other near-duplicate programs, called over standard input and output; `bench/peers.py` describes
the lines.

Runs in `.venv-peers` and imports nothing of stream_dedup. Each program runs with its documented
defaults. If it leaves the features to its user (datasketch, gaoya), it gets the features of the
truth: word 3-grams, or character 5-grams in Chinese and Japanese. That is its best case. Texts of
the two kinds are never compared then.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
import unicodedata
from collections import defaultdict
from itertools import combinations

os.environ.setdefault("HF_HUB_OFFLINE", "1")

PERMUTATIONS = 128
WORDS, CHARACTERS = 3, 5
BY_CHARACTERS = ("zh", "zh-Hant", "ja")
WORD = re.compile(r"\w+")


def shingles(text, language):
    folded = unicodedata.normalize("NFKC", text).lower()
    if language in BY_CHARACTERS:
        run = "".join(character for character in folded if character.isalnum())
        return {run[start : start + CHARACTERS] for start in range(len(run) - CHARACTERS + 1)}
    words = WORD.findall(folded)
    return {" ".join(words[start : start + WORDS]) for start in range(len(words) - WORDS + 1)}


def sharing(keys_of_each):
    """Return the pairs of places that share a key."""
    buckets = defaultdict(list)
    for place, keys in enumerate(keys_of_each):
        for key in keys:
            buckets[key].append(place)
    return {pair for places in buckets.values() for pair in combinations(places, 2)}


class Datasketch:
    def __init__(self, threshold):
        from datasketch import MinHash, MinHashLSH

        self.MinHash = MinHash
        self.lsh = lambda: MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS)

    def sign(self, text, language):
        signature = self.MinHash(num_perm=PERMUTATIONS)
        signature.update_batch([shingle.encode() for shingle in shingles(text, language)])
        return signature

    def pairs(self, texts, languages):
        index = self.lsh()
        found = []
        for place, (text, language) in enumerate(zip(texts, languages, strict=True)):
            signature = self.sign(text, language)
            if signature.is_empty():
                continue  # no shingle at all: such texts would all be each other's duplicates
            found += [(other, place) for other in index.query(signature)]
            index.insert(place, signature)
        return found


class Rensa:
    def __init__(self):
        from rensa import RMinHash, RMinHashLSH

        self.make = lambda: RMinHash(num_perm=PERMUTATIONS, seed=42)
        self.lsh = lambda: RMinHashLSH(threshold=0.7, num_perm=PERMUTATIONS, num_bands=16)

    def sign(self, text, language):
        signature = self.make()
        signature.update(sorted(shingles(text, language)))
        return signature

    def pairs(self, texts, languages):
        index = self.lsh()
        signed, found = {}, []
        for place, (text, language) in enumerate(zip(texts, languages, strict=True)):
            if not shingles(text, language):
                continue
            signature = signed[place] = self.sign(text, language)
            # As its own deduplicator does: a bucket only proposes, the signatures' estimate
            # decides.
            found += [
                (other, place)
                for other in index.query(signature)
                if signed[other].jaccard(signature) >= 0.7
            ]
            index.insert(place, signature)
        return found


class Gaoya:
    """One index for each kind of features, because an index has one analyzer."""

    def __init__(self, make):
        self.make = make
        self.signers = {by: self.index(by) for by in (True, False)}

    def index(self, by_characters):
        return self.make(
            "char" if by_characters else "word",
            (CHARACTERS,) * 2 if by_characters else (WORDS,) * 2,
        )

    def pairs(self, texts, languages):
        indexes = {by: self.index(by) for by in (True, False)}
        found = []
        for place, (text, language) in enumerate(zip(texts, languages, strict=True)):
            if not shingles(text, language):
                continue
            index = indexes[language in BY_CHARACTERS]
            found += [(other, place) for other in index.query(text)]
            index.insert_document(place, text)
        return found


class GaoyaMinHash(Gaoya):
    def __init__(self):
        from gaoya.minhash import MinHashStringIndex

        super().__init__(
            lambda analyzer, ngram: MinHashStringIndex(
                analyzer=analyzer, lowercase=True, ngram_range=ngram
            )
        )

    def sign(self, text, language):
        return self.signers[language in BY_CHARACTERS].minhash_index.tokenize_and_minhash(text)


class GaoyaSimHash(Gaoya):
    def __init__(self):
        from gaoya.simhash import SimHashStringIndex

        super().__init__(
            lambda analyzer, ngram: SimHashStringIndex(
                analyzer=analyzer, lowercase=True, ngram_range=ngram
            )
        )

    def sign(self, text, language):
        # It has no call for the signature alone; a query of an empty index computes it and finds
        # nothing.
        return self.signers[language in BY_CHARACTERS].query(text)


class SimhashPyPI:
    def __init__(self):
        from simhash import Simhash

        self.Simhash = Simhash

    def sign(self, text, language):
        return self.Simhash(text).value

    def pairs(self, texts, languages):
        values = [
            self.sign(text, language) for text, language in zip(texts, languages, strict=True)
        ]
        # Four blocks: values within 3 bits share one. The package's own SimhashIndex(k=3) takes the
        # same pairs.
        keys = [[(block, value >> (16 * block) & 0xFFFF) for block in range(4)] for value in values]
        return [(a, b) for a, b in sharing(keys) if (values[a] ^ values[b]).bit_count() <= 3]


class TextDedupSimHash:
    def __init__(self):
        from text_dedup import simhash
        from text_dedup.utils.args import SimHashArgs
        from text_dedup.utils.hashfunc import xxh3_64_digest

        self.simhash = simhash
        self.defaults = SimHashArgs()
        self.hash = xxh3_64_digest
        self.permutations = simhash._create_permutations(
            self.defaults.f, k=self.defaults.bit_diff, b=self.defaults.num_bucket
        )

    def sign(self, text, language):
        arguments = {
            "ngram": self.defaults.ngram,
            "permutations": self.permutations,
            "hash_func": self.hash,
        }
        try:
            return self.simhash.embed_func(text, 0, **arguments)
        except (TypeError, ValueError):
            return None  # a text shorter than one n-gram has no signature in it

    def pairs(self, texts, languages):
        signed = [
            self.sign(text, language) for text, language in zip(texts, languages, strict=True)
        ]
        values = [int.from_bytes(one["__signature__"], "big") if one else None for one in signed]
        found = sharing([map(tuple, one["__keys__"]) if one else () for one in signed])
        return [
            (a, b)
            for a, b in found
            if (values[a] ^ values[b]).bit_count() <= self.defaults.bit_diff
        ]


class TextDedupMinHash:
    def __init__(self):
        import numpy as np
        from text_dedup import minhash
        from text_dedup.utils.analysis import optimal_param
        from text_dedup.utils.args import MinHashArgs
        from text_dedup.utils.hashfunc import sha1_hash

        self.minhash = minhash
        defaults = MinHashArgs()
        bands, rows = optimal_param(defaults.threshold, defaults.num_perm, 0.5, 0.5)
        prime = np.uint64((1 << 61) - 1)
        random = np.random.RandomState(defaults.seed)
        self.arguments = {
            "num_perm": defaults.num_perm,
            "hashranges": [(band * rows, (band + 1) * rows) for band in range(bands)],
            "ngram_size": defaults.ngram,
            "min_length": defaults.min_length,
            "permutations": (
                random.randint(1, prime, size=(defaults.num_perm,), dtype=np.uint64),
                random.randint(0, prime, size=(defaults.num_perm,), dtype=np.uint64),
            ),
            "hash_func": lambda data: sha1_hash(data, d=32),
            "dtype": np.uint64,
            "max_hash": np.uint32((1 << 32) - 1),
            "modulo_prime": prime,
        }
        self.min_length = defaults.min_length

    def sign(self, text, language):
        return self.minhash.embed_func(text, 0, **self.arguments)

    def pairs(self, texts, languages):
        keys = []
        for text, language in zip(texts, languages, strict=True):
            is_short = (
                len(self.minhash.NON_ALPHA.split(text.lower())) < self.min_length
            )  # it leaves these out first
            keys.append(() if is_short else enumerate(self.sign(text, language)["__signatures__"]))
        return list(sharing(keys))


METHODS = (
    (
        "text-dedup simhash",
        "64 bits, k = 3",
        "character 3-grams, xxh3; its defaults",
        "text-dedup",
        TextDedupSimHash,
    ),
    (
        "text-dedup minhash",
        "250 permutations, 0.7",
        "word 5-grams, sha1; its defaults",
        "text-dedup",
        TextDedupMinHash,
    ),
    (
        "datasketch",
        "128 permutations, 0.7",
        "MinHashLSH, the truth's shingles",
        "datasketch",
        lambda: Datasketch(0.7),
    ),
    (
        "datasketch 0.8",
        "128 permutations, 0.8",
        "MinHashLSH, the truth's shingles",
        "datasketch",
        lambda: Datasketch(0.8),
    ),
    (
        "rensa",
        "128 permutations, 16 bands, 0.7",
        "RMinHashLSH, the truth's shingles",
        "rensa",
        Rensa,
    ),
    (
        "gaoya minhash",
        "20 bands of 5, 0.75",
        "its defaults, the truth's shingles",
        "gaoya",
        GaoyaMinHash,
    ),
    (
        "gaoya simhash",
        "64 bits, k = 5",
        "its defaults, the truth's shingles",
        "gaoya",
        GaoyaSimHash,
    ),
    ("simhash", "64 bits, k = 3", "character 4-grams, MD5; its defaults", "simhash", SimhashPyPI),
)


def load():
    """Return the loaded methods by name, and the first line to write."""
    loaded, versions, missing, methods = {}, {}, {}, []
    for name, plan, does, package, make in METHODS:
        try:
            loaded[name] = make()
            versions[package] = importlib.metadata.version(package.partition("[")[0])
            methods.append({"name": name, "plan": plan, "does": does})
        except Exception as error:
            missing[package] = f"{type(error).__name__}: {error}"
    return loaded, {"versions": versions, "missing": missing, "methods": methods}


def answer(loaded, question):
    method = loaded[question["method"]]
    return {
        "pairs": sorted(
            {
                (min(pair), max(pair))
                for pair in method.pairs(question["texts"], question["languages"])
            }
        )
    }


def main():
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a peer prints is no answer
    loaded, reply = load()
    while True:
        out.write(json.dumps(reply) + "\n")
        out.flush()
        line = sys.stdin.readline()
        if not line:
            return
        try:
            reply = answer(loaded, json.loads(line))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
