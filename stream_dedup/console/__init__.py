"""The console: decisions and their reasons, as pages for people and as JSON for programs.
Read-only.

Invariants: nothing is changed; all input from outside is escaped by the templates, and
its control characters are written out; a page loads nothing from elsewhere and says so in its
policy; links are relative, so that a proxy may put the console under any path; a missing
part (no broker, no index, a text that is kept no longer) is a sentence on the page. Pure but `outputs.py`,
which reads Kafka, and `app.py`, which knows starlette.
"""
