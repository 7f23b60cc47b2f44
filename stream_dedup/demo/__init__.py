"""The demo: a crawl in nine languages whose true copies are known, filtered on a real Kafka.

Invariants: `score` uses only the measured pairs and imports neither `fingerprinting` nor `index`; a
test compares the crawl's file with its generator in `bench`.
"""
