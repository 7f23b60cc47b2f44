"""What every role has around its loop: probes and metrics over HTTP, logs, and an orderly end.

`health` is what the loop says about itself, `http` serves it, `metrics` counts, `logs` writes,
`process` ends; `asking` is the other side, for commands and pages. Nothing in this room decides
about a document.
"""
