"""What the documents of each host did, counted from the headers of `unique` and `duplicates`.

`hosts.py` is pure; `app.py` is the Faust application. Nothing here holds up a document, and no
verdict depends on it.
"""
