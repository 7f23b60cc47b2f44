"""Measurements that compare: each one runs beside its yardstick, on the same machine, broker and
documents.

A ratio of two figures of one run says something about the filter; a figure alone says as much about
the machine.
"""
