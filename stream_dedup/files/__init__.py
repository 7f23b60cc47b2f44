"""The same core without Kafka: on a log in memory.

api       the public names `fingerprint`, `Index`, `Print`, `Answer`, `Match`
datasets  the public names `dedup`, `prints`, `judge`
rows      tables, columns, rows and files, as documents
columns   prints as the columns of a table
parts     files into a folder, as `check --to` does
offline   documents, or their prints, judged in order
"""
