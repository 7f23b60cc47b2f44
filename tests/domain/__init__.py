"""Tests of the room `stream_dedup/domain`."""
