"""Check whether the log's documents have a web site, which distinguishes pages of one site from
copies on others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stream_dedup.log import records
from stream_dedup.log.record_frame import decode_unless_damaged
from stream_dedup.preflight.finding import CheckFinding, not_checked, ok, warning
from stream_dedup.settings.settings import Settings

LOG_RECORDS: Final = 20
"""Number of the log's last records that are checked."""


def check_sites(settings: Settings, raws: Iterable[bytes | None]) -> CheckFinding:
    """Return whether most documents of these log records have a site.

    Raises:
        OtherFormatError: this version does not know a record's format.
    """
    decoded = (decode_unless_damaged(records.decode, raw) for raw in raws)
    batches = [record for record in decoded if isinstance(record, records.Batch)]
    count = sum(map(len, batches))
    missing = sum(int((batch.site == 0).sum()) for batch in batches)
    if not count:
        return not_checked("sites", "The last records of the log contain no documents.")
    if 2 * missing <= count:
        return ok("sites", f"Of the last {count:,} documents {count - missing:,} have a web site.")
    remedy = (
        "Name the field with the site or the URL: STREAM_DEDUP_SITE_FIELD; or use URLs as ids "
        "(STREAM_DEDUP_ID_FIELD)."
        if settings.value_format != "raw"
        else "Send the URL of a page as the key of its record."
    )
    return warning(
        "sites",
        f"Of the last {count:,} documents {missing:,} have no web site, because their ids are not "
        f"URLs, so pages of one site cannot be distinguished from copies on others. {remedy}",
    )
