"""What the documents of each host did: counted by the workers, added up in windows, written as
signals for the crawler.

All of it may lose a count and never holds up a document: no verdict depends on anything here. Pure
but `stream.py`, which alone knows Faust, and `role.py`.
"""
