"""Statistics of each host's documents, from the headers of `unique` and `duplicates`.

`signals` is pure; `app` is the Faust application. It delays no document, and no verdict depends on
it.
"""
