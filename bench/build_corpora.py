"""Build corpora for `bench quality` from public repositories:
`python -m bench.build_corpora FOLDER`.

Each set is made of the files of one repository at fixed commits. Markdown is reduced to the text
that a reader sees. The truth is exact: the Jaccard of all pairs (`truth`). `SOURCES.md` names
the repository, the commits and the licence of each set; a text keeps the licence of its source.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import truth
from bench.corpus import LISTED_FROM, CorpusDocument
from stream_dedup.domain.errors import InputError

_VERDICTS = {"exact": "exact", "duplicate": "dup", "grey": "grey", "different": "diff"}
_LICENCE_NOTE = "A text keeps the licence of its source."


@dataclass(frozen=True, slots=True)
class Source:
    """Where the documents of a set come from.

    `commits`: one, or several for versions of the same files. `path`: a pattern of the files that
    are documents; its group `lang`, if there is one, matches the language, otherwise `language` is
    the language. `has_lines`: each line of a file is a document, an id and its text. `most`: the
    largest number of files of a commit; they are chosen by a digest of their path.
    """

    repository: str
    commits: Sequence[str]
    licence: str
    path: str
    language: str = "en"
    has_lines: bool = False
    most: int | None = None


SOURCES: Mapping[str, Source] = {
    "en_articles": Source(
        "https://github.com/chrisjmccormick/MinHash",
        ["b3b3343"],
        "MIT",
        r"data/articles_1000\.train",
        has_lines=True,
    ),
    "en_versions": Source(
        "https://github.com/etcd-io/website",
        ["8245979"],
        "CC BY 4.0, © etcd Authors",
        r"content/en/docs/v3\.[2457]/.*\.md",
    ),
    "zh_laws": Source(
        "https://github.com/LawRefBook/Laws",
        ["2f4c5c2"],
        "texts of law, no copyright (PRC Copyright Law, art. 5)",
        r".*\.md",
        language="zh",
        most=530,
    ),
    "multi_guides": Source(
        "https://github.com/github/opensource.guide",
        ["ebc9678", "8fe3516"],
        "CC BY 4.0, © Open Source Guides authors",
        r"_articles/(?:(?P<lang>[\w-]+)/)?(?:building-community|code-of-conduct|finding-users"
        r"|how-to-contribute|legal|maintaining-balance-for-open-source-maintainers"
        r"|starting-a-project)\.md",
    ),
    "cmdlets_office": Source(
        "https://github.com/MicrosoftDocs/office-docs-powershell",
        ["93336da"],
        "CC BY 4.0, © Microsoft",
        r"(?:skype|teams)/.*\.md",
    ),
}


def build_set(name: str, source: Source, folder: Path) -> int:
    """Write `name.jsonl` and `name.pairs.tsv` into `folder`; return the number of documents.

    Raises:
        InputError: the repository cannot be read, or no file of it is a document.
    """
    clone = folder / "repositories" / f"{name}.git"
    if not clone.exists():
        _git("clone", "--quiet", "--bare", source.repository, str(clone))
    documents = [
        document for commit in source.commits for document in _documents(source, clone, commit)
    ]
    if not documents:
        raise InputError(f"No file of {source.repository} is a document of {name}.")
    lines = [
        json.dumps(
            {"id": document.id, "text": document.text, "lang": document.language},
            ensure_ascii=False,
        )
        for document in documents
    ]
    (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    rows = ["id_a\tid_b\tverdict\tjaccard\n"]
    for pair in truth.find_pairs(documents):
        ids = f"{documents[pair.earlier].id}\t{documents[pair.later].id}"
        rows.append(f"{ids}\t{_VERDICTS[pair.verdict]}\t{pair.jaccard:.4f}\n")
    (folder / f"{name}.pairs.tsv").write_text("".join(rows), "utf-8")
    return len(documents)


def _documents(source: Source, clone: Path, commit: str) -> Iterator[CorpusDocument]:
    names = _git("-C", str(clone), "ls-tree", "-r", "-z", "--name-only", commit).split("\0")
    found = {name: match for name in names if (match := re.fullmatch(source.path, name))}
    chosen = sorted(found, key=lambda name: hashlib.blake2b(name.encode()).digest())[: source.most]
    for name in sorted(chosen):
        raw = _git("-C", str(clone), "show", f"{commit}:{name}")
        language = found[name].groupdict().get("lang") or source.language
        if source.has_lines:
            for line in raw.splitlines():
                identifier, _, text = line.partition(" ")
                yield CorpusDocument(identifier, text, language)
        elif text := reduce_markdown(raw):
            identifier = "_".join(f"{name}@{commit}".split())  # no tab in a table's column
            yield CorpusDocument(identifier, text, language)


def reduce_markdown(raw: str) -> str:
    """Return the text that a reader of a Markdown page sees, without front matter and marks."""
    text = re.sub(r"\A---\n.*?\n---\n", "", raw.replace("\r\n", "\n"), flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->|\{\{.*?\}\}|\{%.*?%\}", "", text, flags=re.DOTALL)
    text = re.sub(r"</?[A-Za-z][^<>]*>", "", text)
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", text)
    text = re.sub(r"^[ \t]*(?:```.*|~~~.*|[-*_=]{3,})$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^[ \t]*(?:#+|>+|\d+\.|[-*+])[ \t]+", "", text, flags=re.MULTILINE)
    text = re.sub(r"\*\*|__|`", "", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _git(*arguments: str) -> str:
    try:
        ended = subprocess.run(["git", *arguments], check=True, capture_output=True)
    except OSError as error:
        raise InputError(f"git cannot be started: {error.strerror}; install it.") from error
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode("utf-8", "replace").strip()
        raise InputError(f"git {' '.join(arguments)} failed: {reason}") from error
    return ended.stdout.decode("utf-8", "replace")


def main(folder: Path, sources: Mapping[str, Source] = SOURCES) -> None:
    """Build each set that is not in `folder` yet, and write `SOURCES.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"# Sources\n\n{_LICENCE_NOTE} Pairs from a Jaccard of {LISTED_FROM} are listed.\n\n"]
    for name, source in sources.items():
        if not (folder / f"{name}.pairs.tsv").exists():
            print(f"{name}: {build_set(name, source, folder):,} documents")
        commits = ", ".join(source.commits)
        lines.append(f"- `{name}`: {source.repository} {commits}; licence: {source.licence}\n")
    (folder / "SOURCES.md").write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m bench.build_corpora FOLDER")
    main(Path(sys.argv[1]))
