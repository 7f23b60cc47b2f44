"""Read documents from the records and files of crawlers: framing, encodings, HTML, addresses.

    decoder    a record as a document: text, id, time, scope, site, title
    fields     fields of a decoded value by their dotted paths
    registry   Confluent's frame, and schemas by their ids, read by `avro`
    charset    the bytes of a page as text
    html       the main text of a page, extracted by the process `html_child`
    children   child processes for untrusted input
    sources    documents in files of all kinds, by `compressed` (gzip, zstd), `warc`, `columnar`
               (Parquet, Arrow) and `remote_files` (files at addresses)
    claim_checks  texts at addresses, many at once; `stores` reads one
    storage    files in a folder or at an address, written and read

All are pure but `children`, `html`, `registry`, `remote_files`, `storage`, `claim_checks` and `stores`.
"""
