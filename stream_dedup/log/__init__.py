"""What travels between the roles.

`records`, `answers`, `headers` and `epochs` are bytes, pure; `kafka` is the only user of
confluent_kafka.
"""
