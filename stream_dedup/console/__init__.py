"""Show decisions and their reasons, as pages for people and as JSON for programs. Read-only.

Invariants: the console changes nothing; the templates escape all input from outside, and write
control characters as escape sequences; the content security policy forbids that a page loads
anything from another origin; links are relative, so that a proxy may serve the console under any
path; if something is unavailable (the broker, the index, a deleted text), the page says so and shows
the rest. Only `outputs.py` and `attention.py` read Kafka, and only `app.py` and `source_calls.py`
import starlette; the other modules are pure.
"""
