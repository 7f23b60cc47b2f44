"""The demo's material: a seeded many-language crawl and the exact truth about it.

Invariants: `truth` measures texts and imports neither `fingerprinting` nor `index`; `crawl` was
frozen before the recipe was tuned, and a golden test holds its bytes.
"""
