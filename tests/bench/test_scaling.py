"""The curves along one axis: which points are measured, what is computed from them, and a tiny run on a real Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from stream_dedup.__main__ import main
from stream_dedup.bench.path_plot import draw_curves
from stream_dedup.bench.path_report import PathOptions, PathReport, Sample
from stream_dedup.bench.scaling import AXES, SIZE, Curve, parse, points, run_scaling
from stream_dedup.ground.errors import InputError

SVG = "{http://www.w3.org/2000/svg}"


def sample(variant: str, per_second: float) -> Sample:
    return Sample(variant, 1, 1000, 1000 / per_second, 1.0, {"worker": 0.05}, {}, {"worker": 2.0}, {"worker": 7}, {"in": 0})


def test_an_axis_has_its_usual_values_or_those_given() -> None:
    """Nothing said means every axis, in the order in which they stand in the table of axes."""
    assert parse(["size", "workers=1,3"]) == {"size": AXES[SIZE].values, "workers": (1, 3)}
    assert list(parse([])) == list(AXES)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("colour", "no axis 'colour'; choose from workers, partitions"),
        ("workers=many", "'workers=many' is no axis with whole numbers from 1 on; write it like workers=1,2,3,4"),
        ("workers=0", "from 1 on"),
        ("entries=-1", "from 0 on"),
        ("size=100", "from 250 on"),
        ("size=2000000", "size=2000000 cannot be measured: .*250 to 1000000"),
        ("workers=5", "workers=5 cannot be measured: Of 5 workers only 4 would have a partition"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(asked: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence names the axis, and no broker is started for an axis before it."""
    monkeypatch.setattr("stream_dedup.bench.scaling.kafka_of", pytest.fail)

    with pytest.raises(InputError, match=said):
        list(run_scaling(PathOptions(), points(PathOptions(), parse(["partitions=4", asked])), print))


def test_one_thing_changes_at_a_point() -> None:
    """All else is as asked for, but workers get four times as many documents, and of large ones there are 400 MB, or 400."""
    options = PathOptions(documents=50_000, seed=3)
    found = points(options, parse(["workers=1,2", "partitions=16", "entries=1000", "size=1000,100000,1000000"]))

    assert found["workers"] == {
        1: PathOptions(documents=200_000, seed=3),
        2: PathOptions(documents=200_000, seed=3, workers=2),
    }
    assert found["partitions"] == {16: PathOptions(documents=50_000, seed=3, partitions=16)}
    assert found["entries"] == {1000: PathOptions(documents=50_000, seed=3, index_entries=1000)}
    assert [(at.size_bytes, at.documents) for at in found["size"].values()] == [
        (1000, 50_000),
        (100_000, 4000),
        (1_000_000, 400),
    ]


def test_the_picture_has_a_bar_for_each_variant_of_each_point() -> None:
    """Documents per second of workers; of sizes, megabytes per second, or the smallest documents would hide all others."""
    copy, wide = sample("copy", 200.0), sample("wide", 50.0)
    workers = Curve("workers", {1: PathReport(PathOptions(), {"cores": 2}, [copy, wide], mean_value_bytes=1e6)})
    sizes = Curve("size", {1_000_000: PathReport(PathOptions(), {"cores": 2}, [copy, wide], mean_value_bytes=1e6 + 500_000)})

    root = ET.fromstring(draw_curves([workers, sizes]))  # noqa: S314 - our own
    texts = [one.text for one in root.iter(f"{SVG}text")]

    assert [text for text in texts if text and text[0].isdigit()][:-1] == [
        "1, copy",
        "200",
        "1, wide",
        "50 (0.25 of the copy)",
        "1,000,000, copy",
        "300",
        "1,000,000, wide",
        "75 (0.25 of the copy)",
    ]
    assert {"Documents per second by workers", "Megabytes per second by size"} <= set(texts)


@pytest.mark.broker
@pytest.mark.long
def test_a_tiny_run(bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every variant is measured and balanced at every point, and the figures are in the table, the JSON and the picture."""
    wanted = ["--axis", "partitions=3", "--axis", "size=1000000"]
    files = ["--json", str(tmp_path / "found.json"), "--plot", str(tmp_path / "found.svg")]

    code = main(["bench", "scaling", *wanted, "--documents", "2000", "--rounds", "1", "--broker", bootstrap, *files])
    out, err = capsys.readouterr()

    assert code == 0, err
    curves = json.loads((tmp_path / "found.json").read_text())["curves"]
    assert [(curve["axis"], list(curve["points"])) for curve in curves] == [
        ("partitions", ["3"]),
        ("size", ["1000000"]),
    ]
    for curve in curves:
        for value, found in curve["points"].items():
            assert found["complaints"] == []
            assert found["documents"]["count"] == (400 if curve["axis"] == SIZE else 2000)
            assert found["documents"]["partitions"] == (int(value) if curve["axis"] == "partitions" else 4)
            assert {one["variant"] for one in found["samples"]} == {"copy", "bands", "wide", "classic"}
    assert curves[1]["points"]["1000000"]["documents"]["mean_value_bytes"] > 900_000
    for heading in ("partitions", "size", "MB/s", "of the copy", "worker, us"):
        assert heading in out
    assert "by partitions" in (tmp_path / "found.svg").read_text()
