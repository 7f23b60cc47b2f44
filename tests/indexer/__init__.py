"""Tests of the package `stream_dedup/indexer`."""
