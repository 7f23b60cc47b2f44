"""The demo: a seeded crawl in several languages, and the exact truth about it.

Invariants: `truth` measures texts and imports neither `fingerprinting` nor `index`; `crawl` was
frozen before the recipe was tuned, and a golden test compares its bytes.
"""
