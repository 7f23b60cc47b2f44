"""The core without Kafka, on a log in memory: the Python API and the commands for files.

api       the public names `fingerprint`, `Index`, `Print`, `Answer`, `Match`
datasets  the public names `dedup`, `prints`, `judge`
rows      read tables, columns, rows and files as documents
columns   store fingerprints as the columns of a table
parts     write kept rows and duplicates into a folder, for `check --to`
offline   judge documents, or their fingerprints, in order
decoding  decode the rows of files, for `check`, `prints` and `explain`
checking  the command `check`
printing  the commands `prints` and `judge`
explain   the command `explain`
similar   the command `similar`
one_text  read one document, for `explain`, `similar` and `find`
keep      the option `--keep`
remarks   the notes that a command prints next to its result
threshold the pairs near a threshold, for `calibrate`
"""
