"""Tests of the package `stream_dedup.fingerprinting`."""
