"""`similar`: every kept document that is near a text, from a running index or from a volume.

The text is fingerprinted here, under the recipe and key of the settings; an index is only ever
given the print.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stream_dedup.cli.options import Given, JsonOption, command
from stream_dedup.domain.errors import ConfigurationError, FormatError, InputError
from stream_dedup.domain.hosts import named_site
from stream_dedup.domain.plan import parse_similarity
from stream_dedup.domain.printable import counted
from stream_dedup.domain.sketch import as_text
from stream_dedup.domain.terminal import note, print_json, print_table
from stream_dedup.files.offline import LIBRARY_LOG
from stream_dedup.fingerprinting import (
    Content,
    Fingerprinter,
    Recipe,
    SiteHasher,
    as_vector,
    number_of,
)
from stream_dedup.index import report
from stream_dedup.index.index import LogIndex
from stream_dedup.index.look_up import Query
from stream_dedup.index.volume.store import RocksStore
from stream_dedup.inputs.decoder import DecodedDocument
from stream_dedup.inputs.fields import scope_number
from stream_dedup.inputs.sources import STANDARD_INPUT, SourceFile, need_one_text
from stream_dedup.serving import asking
from stream_dedup.serving.ports import addresses
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings


@command(
    "similar",
    example="stream-dedup similar page.txt --index http://localhost:8081 --limit 5",
    asks_kafka=False,
    flags=("similarity",),
)
def similar_command(
    given: Given,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TEXT|FILE|-", help="A text, a file with one, or - for standard input."
        ),
    ],
    as_text: Annotated[
        bool,
        typer.Option("--text", help="Use the argument as text even if a file has that name."),
    ] = False,
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            metavar="URL",
            help="Address of a running index.  [default: on this machine]",
        ),
    ] = None,
    volume: Annotated[
        Path | None,
        typer.Option(
            "--volume",
            metavar="DIR",
            help="Read the volume of an index, running or not, or of `check --index`.",
        ),
    ] = None,
    scope: Annotated[
        str | None, typer.Option("--scope", help="Only documents with this value of SCOPE_FIELD.")
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(
            "--site", help="Web site of the text: a host or an address.  [default: the file's]"
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", help="Title of the text.  [default: the file's]")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, help="Show at most N.")
    ] = 100,
    as_json: JsonOption = False,
) -> int:
    """Find the kept documents that are similar to a text as a whole, nearest first.

    All that reach SIMILARITY are shown, with whether the text would be a copy of the nearest one.
    To find documents that contain a sentence, use `find`.
    """
    if index is not None and volume is not None:
        raise typer.BadParameter("give one of --index and --volume")
    settings = given.quiet_settings()
    similarity = given.flags["similarity"]
    asked = None if similarity is None else parse_similarity(str(similarity))
    document = read_text(settings, target, as_text=as_text)
    if scope is not None:
        document = document._replace(scope=scope_number(scope))
    if site is not None:
        document = document._replace(site=named_site(site))
    if title is not None:
        document = document._replace(title=title)
    wanted = print_of(settings, document)
    answer = (
        look_into(volume, wanted, limit, asked)
        if volume
        else ask_index(settings, index, wanted, limit, asked)
    )
    return show(wanted, answer, as_json=as_json)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A text as an index is asked for it; `number` is its print."""

    recipe: Recipe
    number: int
    features: int
    scope: int
    asked: Query

    @property
    def limbs(self) -> list[int]:
        """The print's limbs of 64 bits, low limb first."""
        return [(self.number >> 64 * place) & (2**64 - 1) for place in range(self.recipe.limbs)]


def read_text(settings: Settings, target: str, *, as_text: bool) -> DecodedDocument:
    """Return the text that was given, or what stands in the file of that name, or on standard input
    for `-`.

    A web page and a file that ends in .json are read as `explain` reads them; scope, site and title
    are known of a record only.

    Raises:
        InputError: the file cannot be read.
    """
    path = Path(target)
    is_record = not as_text and (
        path.suffix == ".json"
        or settings.text_is == "html"
        or SourceFile(path, path.name, "text").is_page
    )
    if is_record and _is_file(path) and not recipe_of(settings).method.takes_vectors:
        from stream_dedup.cli.explain import document_in

        need_one_text(path)
        document = document_in(settings, path, takes_vectors=False)
        return document if path.suffix == ".json" else document._replace(id=b"")
    return DecodedDocument(_plain_text(target, as_text=as_text), b"", 0, 0)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False  # a text that is too long for a name


def _plain_text(target: str, *, as_text: bool) -> str:
    if not as_text and target == STANDARD_INPUT:
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        if as_text:
            return target
        if not Path(target).is_file():
            if _is_like_a_path(target):
                raise InputError(
                    f"There is no file {target}; name one that exists, or search for this very "
                    "text with --text."
                )
            return target
        need_one_text(Path(target))
        return Path(target).read_bytes().decode("utf-8", "replace")
    except OSError as error:
        if isinstance(error, FileNotFoundError) or "too long" in str(error):
            return target
        raise InputError(f"{target} cannot be read: {error.strerror or error}.") from error


def _is_like_a_path(target: str) -> bool:
    """Return whether somebody who typed this means a file: one word, with a suffix or a folder in
    it, and no address.
    """
    is_word = len(target.split()) == 1 and "://" not in target
    return is_word and (
        re.fullmatch(r".*\w\.[A-Za-z]\w{0,5}", target) is not None
        or target.startswith(("/", "./", "../", "~/"))
    )


def print_of(settings: Settings, document: DecodedDocument) -> Wanted:
    """Return the print of a document, by the settings' recipe.

    Raises:
        InputError: nothing is left of the text once it is normalised; or the recipe takes vectors,
        and it is none.
    """
    recipe, text = recipe_of(settings), str(document.text)
    prints = Fingerprinter(recipe).fingerprint(
        [_vector_of(text) if recipe.method.takes_vectors else text]
    )
    if prints.empty[0]:
        raise InputError(
            "There is no text left once it is normalised (only white space or marks), so nothing "
            "is like it."
        )
    number = number_of(prints.prints[0])
    digest, sketch = prints.digests[0].tobytes(), prints.sketches[0].tobytes()
    origin = SiteHasher(recipe).origin_of(document.site, document.title, document.id)
    asked = Query(digest, sketch, origin, document.site)
    return Wanted(recipe, number, int(prints.features[0]), document.scope, asked)


def _vector_of(text: str) -> Content:
    try:
        return as_vector(json.loads(text))
    except ValueError as error:
        raise InputError(
            "The recipe takes vectors, and this is none: give a list of numbers as JSON, as [0.1, "
            "-2, 3]."
        ) from error


def ask_index(
    settings: Settings, url: str | None, wanted: Wanted, limit: int, similarity: int | None = None
) -> dict[str, Any]:
    """Ask a running index at `url`, or on this machine at the port of the settings, or one of the
    next as `run all` has it.

    `similarity`: in per cent, instead of what its plan asks for.

    Raises:
        InputError: no index answers, or it refuses the question.
        ConfigurationError: the index has another recipe.
        StreamDedupError: it cannot answer now.
    """
    more = {"limit": limit} | ({} if similarity is None else {"similarity": as_text(similarity)})
    path = asking.similar_path(
        wanted.recipe.id,
        wanted.limbs,
        wanted.asked.digest,
        wanted.features,
        wanted.scope,
        wanted.asked.sketch,
        wanted.asked.origin,
        **more,
    )
    remedy = "Name one with --index http://HOST:PORT, or look into its volume with --volume DIR."
    bases = [url] if url is not None else addresses(settings)
    return asking.ask_role("index", bases, path, remedy)[1]


def look_into(
    volume: Path, wanted: Wanted, limit: int, similarity: int | None = None
) -> dict[str, Any]:
    """Look into a volume, beside the index that may be running on it.

    Raises:
        ConfigurationError: the volume has another recipe.
        StoreError: it cannot be read.
    """
    with closing(RocksStore(volume, read_only=True)) as store:
        index = LogIndex(store)
        declared = index.declared
        if declared is not None and declared.recipe != wanted.recipe.id:
            raise ConfigurationError(
                f"The volume {volume} holds prints of the recipe {declared.recipe!r}, and the "
                "settings make "
                f"{wanted.recipe.id!r}; they cannot be compared. Use the recipe and the key that "
                "the workers have."
            )
        found = index.similar(
            wanted.limbs,
            wanted.asked.digest,
            wanted.features,
            wanted.scope,
            limit,
            wanted.asked.sketch,
            similarity,
        )
        answer = report.similar(index, found, wanted.asked)
        if index.log == LIBRARY_LOG:  # what `check --index` keeps lies on no topic
            for document in answer["found"]:
                document.update({"position": None, "topic_id": None, "time": None, "log": None})
        return answer


def show(wanted: Wanted, answer: dict[str, Any], *, as_json: bool) -> int:
    """Print what was found; return 0, whether that is something or nothing.

    Raises:
        FormatError: the answer is not that of an index of this version.
    """
    try:
        found, total, is_short, floor = (
            answer["found"],
            answer["total"],
            answer["by_digest_only"],
            answer["floor"],
        )
        rows = [
            [
                "" if document["similarity"] is None else f"{document['similarity']:.2f}",
                str(document["distance"]),
                document["id"],
                document["position"] or "",
                document["time"] or "",
                document.get("log") or "",
            ]
            for document in found
        ]
    except (KeyError, TypeError) as error:
        raise FormatError(
            f"The answer is not that of an index of this version (it lacks {error}); see its "
            "/v1/stats."
        ) from error
    if as_json:
        print_json(
            {
                "features": wanted.features,
                "fingerprint": f"{wanted.number:0{wanted.recipe.width // 4}x}",
                **answer,
            }
        )
        return 0
    if rows:
        titles = ["similarity", "distance", "id", "position", "time", "log"]
        used = (
            len(titles)
            if any(document["position"] for document in found)
            else titles.index("position")
        )
        print_table(titles[:used], [row[:used] for row in rows])
    what = "with an equal text" if is_short else f"within reach of {answer['plan']}"
    more = f", {len(rows)} of them shown (--limit)" if total > len(rows) else ""
    note(f"{counted(total, 'document')} {what}{more}.")
    if rows and (why := found[0].get("why")):
        note(f"The nearest: {why}")
    if is_short:
        note(
            f"The text has {counted(wanted.features, 'feature')} (words and the like), and below "
            f"{floor} a print says too "
            "little: only a document that is this very text, nothing before and nothing after it, "
            "is found. Give more of it."
        )
    return 0
