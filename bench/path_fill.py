"""A log that holds documents already, so that the index is not empty when the measured ones come.

The entries are `bench index`'s stream: prints of random bits, of a topic that nobody reads. Each becomes a representative, and
every search meets them, but no measured document is near one. Ids are as long as those of web pages.

Invariant: the log begins with the declaration that the worker itself would have written, so it is as if written by one.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.stream import PrintStream
from stream_dedup.control.declaration import fields_of
from stream_dedup.kafka import LogAppender
from stream_dedup.log.records import Control, encode_control
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.recipe import recipe_of


def fill(own: Mapping[str, str], entries: int) -> None:
    """Begin the log of roles that get the settings `own`, with so many representatives.

    Raises:
        BrokerError: they could not be written.
    """
    settings = load_settings(own, environ={})
    recipe, names = recipe_of(settings), settings.topic_names
    appender = LogAppender(settings, names.fingerprints, "fill")
    appender.send(encode_control(Control("declare", fields_of(settings, recipe))), None, lambda _: None)
    for record in PrintStream(settings.judging_plan, entries, 0.0, 0, recipe=recipe.id).records():
        appender.send(record.raw, None, lambda _: None)
    appender.flush()
