"""Find and judge in memory: the columns of the live representatives, and tables that find them.

This package knows neither the log nor the volume's format. In reading order: `rows` (the arrays that
kernels read and fill), `neighbours` (the interface), `blocks` (the tables that a plan needs), `keyed`
(these tables), `finder` (the memory of a table), `entry_columns` (the columns of the entries),
`budget` (memory or files).
"""
