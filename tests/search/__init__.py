"""Tests of `stream_dedup/search`."""
