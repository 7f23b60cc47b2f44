"""Documents without a web site are reported, with the setting that mends it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stream_dedup.log import records
from stream_dedup.preflight.finding import CheckState
from stream_dedup.preflight.sites import check_sites
from stream_dedup.settings.settings import Settings
from tests.log.test_records import make_batch


def log_of(sites: list[int]) -> list[bytes | None]:
    batch = replace(make_batch(len(sites)), site=np.array(sites, np.uint64))
    order = records.encode_control(records.Control("forget", {"ids": [b"a".hex()]}))
    return [order, records.encode_batch(batch), None, b"damaged"]


@pytest.mark.parametrize(
    ("sites", "state"),
    [
        ([0, 0, 0], CheckState.WARNING),
        ([0, 0, 7], CheckState.WARNING),
        ([0, 7], CheckState.OK),
        ([7, 8, 9], CheckState.OK),
    ],
)
def test_most_documents_have_a_site(sites: list[int], state: CheckState) -> None:
    finding = check_sites(Settings(value_format="json"), log_of(sites))

    assert finding.state is state
    assert ("STREAM_DEDUP_SITE_FIELD" in finding.sentence) == (state is CheckState.WARNING)


def test_the_remedy_fits_the_format() -> None:
    assert "key of its record" in check_sites(Settings(), log_of([0])).sentence


def test_a_log_without_documents_is_not_checked() -> None:
    assert check_sites(Settings(), log_of([7])[:1]).state is CheckState.NOT_CHECKED
