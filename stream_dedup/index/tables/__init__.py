"""The live representatives in memory, and what finds and judges them; nothing here knows the log,
or what is kept on disk.

In reading order: `rows` (columns of documents and entries), `neighbours` (the whole), `blocks`
(which tables serve a plan), `keyed` (the tables of a plan), `finder` (how a table lies), `budget`
(what lies in files), `kept` (what is asked of files that outlive the process).
"""
