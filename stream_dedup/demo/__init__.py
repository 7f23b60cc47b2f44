"""Run the demo: filter a crawl in nine languages, whose true copies are known, on a real Kafka.

Invariants: `score` uses only the measured pairs, and imports neither `fingerprinting` nor `index`; a
test compares the file of the crawl with its generator in `bench`.
"""
