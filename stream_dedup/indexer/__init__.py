"""Role two, the index: it reads the log, judges, and answers.

role   the loop from one log record to the next
api    what the role answers over HTTP
"""
