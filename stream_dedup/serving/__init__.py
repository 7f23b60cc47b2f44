"""Services around the loop of every role: probes and metrics over HTTP, logs, and an orderly end.

`health` stores the state of the loop, `http` serves it, `metrics` counts, `logs` configures logging,
`process` handles signals and memory; `http_client` is the HTTP client of commands and pages. Nothing in
this package decides about a document.
"""
