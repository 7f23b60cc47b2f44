"""What crawlers send, and how it is told from how they send it: presets, framing, encodings, HTML,
files, addresses.

Pure but `children`, `html`, `registry` and `stores`.

`registry` (Confluent's frame, and schemas by their ids, read by `avro`),
`charset` (bytes of a page to text), `html` (the main text of a page, made by `html_child`),
`children` (processes of their own for what strangers wrote), `packed` (gzip and zstd), `warc`
(pages in WARC files), `columnar` (Parquet and Arrow), `elsewhere` (texts by their addresses, many
at once), `stores` (what reads one), `sources` (documents of files of all kinds). The worker's
decoder and the readers of files use them; this room knows neither.
"""
