"""Benchmarks of the filter. Each one also measures a baseline, on the same machine, broker and
documents.

Compare the ratio of two figures of one run; a single figure depends on the machine as much as on
the filter.
"""
