"""Corpora that are built from a repository can be read by `bench quality`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.build_corpora import SOURCES, Source, main
from bench.corpus import read_corpora
from stream_dedup.domain.errors import InputError

WORDS = [f"word{number}" for number in range(60)]


def commit(repository: Path, files: dict[str, str]) -> str:
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    if not repository.exists():
        subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text, encoding="utf-8")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "more"], check=True)
    ended = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return ended.stdout.strip()


def test_sets_of_a_repository_have_documents_truth_and_licence(tmp_path: Path) -> None:
    """Pages of two commits are versions: pairs are marked as equal or near."""
    repository = tmp_path / "repository"
    page, other = " ".join(WORDS), " ".join(reversed(WORDS))
    first = commit(
        repository,
        {"docs/a.md": f"---\ntitle: A\n---\n# {page}\n", "docs/fr/b.md": other, "c.txt": "no page"},
    )
    second = commit(
        repository, {"docs/a.md": f"**{page}** changed here\n", "lines.txt": "1 one\n2 two\n"}
    )
    pages = Source(str(repository), [first, second], "MIT", r"docs/(?:(?P<lang>\w\w)/)?\w\.md")
    lines = Source(str(repository), [second], "CC0", r"lines\.txt", "de", has_lines=True)
    fewest = Source(str(repository), [second], "MIT", r"docs/.*", most=1)
    to = tmp_path / "to"

    main(to, {"pages": pages, "lines": lines, "fewest": fewest})

    found = {corpus.name: corpus for corpus in read_corpora(to)}
    assert [(document.id, document.language) for document in found["pages"].documents] == [
        (f"docs/a.md@{first}", "en"),
        (f"docs/fr/b.md@{first}", "fr"),
        (f"docs/a.md@{second}", "en"),
        (f"docs/fr/b.md@{second}", "fr"),
    ]
    shown = {pair: known.verdict for pair, known in found["pages"].pairs.items()}
    assert shown == {(0, 2): "dup", (1, 3): "exact"}
    assert found["pages"].documents[0].text == page
    shown = [
        (document.id, document.text, document.language) for document in found["lines"].documents
    ]
    assert shown == [("1", "one", "de"), ("2", "two", "de")]
    assert len(found["fewest"].documents) == 1
    sentence = f"- `pages`: {repository} {first}, {second}; licence: MIT\n"
    assert sentence in (to / "SOURCES.md").read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"No file of .* is a document of none"):
        main(to, {"none": Source(str(repository), [first], "MIT", "nothing")})


def test_every_source_names_its_licence_and_a_fixed_commit() -> None:
    for source in SOURCES.values():
        assert source.licence
        assert all(len(sha) >= 7 and int(sha, 16) >= 0 for sha in source.commits)
