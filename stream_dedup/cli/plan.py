"""`plan`: what the sensible plans find and cost, and which one to take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from stream_dedup.cli.options import JsonOption, command
from stream_dedup.ground.errors import InputError
from stream_dedup.ground.tables import FittedTable
from stream_dedup.ground.terminal import console, print_json

if TYPE_CHECKING:
    from stream_dedup.index.advice import Advice, Figures

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_DOCUMENTS_MAX = 10**12


@command("plan", example="stream-dedup plan --documents 1e8 --threshold 18 --memory 16GB")
def plan_command(
    documents: Annotated[
        str, typer.Option("--documents", metavar="N", help="Representatives that the index will hold, as in 1e8.")
    ],
    threshold: Annotated[int, typer.Option("--threshold", min=0, max=255, help="Bits that near-duplicates may differ in.")],
    width: Annotated[int, typer.Option("--width", min=1, max=256, help="Bits of the print that are judged.")] = 128,
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="What the index may take, as in 8GB.")] = None,
    recall: Annotated[float, typer.Option("--recall", help="Share to find at every distance up to the threshold.")] = 0.99,
    as_json: JsonOption = False,
) -> int:
    """Tell what the sensible plans find and cost for so many documents, and which one to take.

    Recall, by distance and by similarity, is counted; documents per second are predicted from a calibration of about a second
    on this machine.
    """
    return show_plan(documents=documents, threshold=threshold, width=width, memory=memory, recall=recall, as_json=as_json)


def show_plan(*, documents: str, threshold: int, width: int, memory: str | None, recall: float, as_json: bool) -> int:
    """Calibrate, print the table or its JSON; return the exit code, 1 if no plan will do.

    Raises:
        InputError: a number cannot be read.
        ConfigurationError: there can be no plan of such numbers.
    """
    from stream_dedup.index.advice import advise
    from stream_dedup.index.calibration import calibrate

    count, room = _count(documents), None if memory is None else read_size(memory)
    advice = advise(count, threshold, width, calibrate(), memory_bytes=room, recall=recall)
    if as_json:
        print_json({"documents": count, "threshold": threshold, "width": width, **advice.as_json()})
    else:
        _show(advice, count, threshold)
    return 0 if advice.picked else 1


def _show(advice: Advice, documents: int, threshold: int) -> None:
    from stream_dedup.index.advice import SIMILARITIES
    from stream_dedup.index.measured import MEASURED

    out, constants = console(), advice.constants
    out.print(
        f"{documents:,} representatives; recall by exact counting, the rest predicted from a calibration on this machine\n"
    )
    columns = sorted({distance for distance in (threshold - 4, threshold) if distance >= 0})
    similarities = [place for place, similarity in enumerate(SIMILARITIES) if similarity in (0.7, 0.8, 0.9)]
    headings = ["sure within", *(f"at {distance}" for distance in columns)]
    headings += [*(f"alike {SIMILARITIES[place]}" for place in similarities), "tables", "probes", "candidates"]
    names = ("plan", *headings, "RAM/doc", "RAM, GB", "disk/doc", "documents/s")
    table = FittedTable(names, right=range(1, len(names)))
    for one in advice.figures:
        chosen = "> " if one is advice.picked else "  "
        row = [
            str(one.guaranteed),
            *(f"{one.recalls[distance]:.4f}" for distance in columns),
            *(f"{one.alike[place]:.4f}" for place in similarities),
            str(one.plan.tables),
            f"{one.plan.probes:,}",
            f"{one.candidates:,.0f}" if one.candidates >= 10 else f"{one.candidates:.2g}",
            f"{one.memory_bytes / documents:,.0f}",
            f"{one.memory_bytes / 1e9:,.2f}",
            f"{one.disk_bytes:,.0f}",
            f"{one.documents_per_second:,.0f}",
        ]
        table.add_row(chosen + one.plan.name, *row)
    table.print_to(out)
    out.print(f"\n{advice.why}")
    if advice.picked:
        out.print(f"\n{_each_distance(advice.picked)}")
    for one in advice.figures:
        if one.least_memory is not None:
            out.print(
                f"\n{one.plan.name} is served with INDEX_MEMORY of {one.least_memory / 1e9:,.2f} GB or more, the whole process "
                "included: what does not fit lies in files, and looking up is slower."
            )
    out.print(
        f"\nMeasured over {constants.entries:,} entries, CPU of one thread: a document {constants.document_us:.2f} us, a "
        f"table {constants.table_us:.2f} us, a probe {constants.probe_us * 1000:.0f} ns, both {constants.far:.1f} times that "
        f"beyond the caches; a candidate {constants.narrow_us * 1000:.2f} ns up to a threshold of 7, above that "
        f"{constants.wide_us * 1000:.2f} ns; a table of whole keys {constants.keyed_us * 1000:.0f} ns, entering it "
        f"{constants.keyed_table_us * 1000:.0f} ns. Measured before: {MEASURED.surrounding_us:g} us around each search, "
        f"{MEASURED.disk_bytes:g} bytes on disk with an id of {MEASURED.id_bytes:g}. "
        "Recall at a distance counts differing bits as equally likely; similarity is that of runs of three words, from "
        "which the distance to be expected follows. Candidates are of real texts that are like none of those kept."
    )


def _each_distance(one: Figures) -> str:
    from stream_dedup.index.advice import SIMILARITIES

    if one.plan.needs_sketch:
        parts = ", ".join(f"{alike} {share:.4f}" for alike, share in zip(SIMILARITIES, one.alike, strict=True))
        return f"{one.plan.name} finds by similarity: {parts}."
    parts = ", ".join(f"{distance} {share:.4f}" for distance, share in enumerate(one.recalls) if distance > one.guaranteed)
    sure = f"{one.plan.name} finds all pairs up to {one.guaranteed} bits"
    return f"{sure}; beyond, by distance: {parts}." if parts else f"{sure}."


def _count(text: str) -> int:
    try:
        count = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        count = 0.0
    if not 1 <= count <= _DOCUMENTS_MAX:
        raise InputError(
            f"The number of documents must be from 1 to {_DOCUMENTS_MAX:.0e}, as in 1e8 or 5000000, not {text!r:.40}."
        )
    return int(count)


def read_size(text: str) -> int:
    """Return the bytes of a size such as 8GB.

    Raises:
        InputError: it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip().upper())
    if found is None:
        raise InputError(f"The memory must be written as 8GB or 500MB, not {text!r:.40}.")
    return int(float(found[1]) * _UNITS[found[2]])
