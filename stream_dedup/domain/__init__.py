"""Value types and functions that all packages use: documents, errors, topics, plans, methods of
recipes. The package imports no other package of `stream_dedup`.
"""
