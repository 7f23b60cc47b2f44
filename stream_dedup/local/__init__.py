"""The same core without Kafka: on a log in memory.

api       the public names: `fingerprint`, `Index`, `Print`, `Answer`, `Match`
offline   files judged at once, as `check` does
"""
