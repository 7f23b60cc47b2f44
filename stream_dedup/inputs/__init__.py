"""Read documents from the records and files of crawlers: framing, encodings, HTML, addresses.

    decoder    a record as a document: text, id, time, scope, site, title
    fields     fields of a decoded value by their dotted paths
    registry   values in Confluent's frame, by the schema with the id there; `avro` reads them
    charset    the bytes of a page as text
    html       the main text of a page, extracted by the process `html_child`
    children   child processes for untrusted input
    sources    documents in files, read with `compressed` (gzip, zstd), `warc`, `columnar`
               (Parquet, Arrow) and `remote_files` (files at addresses)
    claim_checks  fetch texts at addresses, many at once; `stores` reads one
    storage    read and write files in a folder or at an address

All are pure but `children`, `html`, `registry`, `remote_files`, `storage`, `claim_checks` and `stores`.
"""
