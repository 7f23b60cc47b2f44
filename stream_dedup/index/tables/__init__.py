"""The live representatives in memory, and the tables that find them; independent of the log and of
the volume's format.

In reading order: `rows` (what the compiled functions read and fill), `neighbours` (the whole), `blocks`
(chooses the tables of a plan), `keyed` (the tables of a plan), `finder` (the memory of a table),
`entry_columns` (the columns of the entries), `budget` (memory or files).
"""
