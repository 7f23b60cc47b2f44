"""One example for each command, shown at the end of its help; a test parses every one of them."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final = {
    "run worker": "stream-dedup run worker --set value_format=json --set text_field=page.body",
    "run index": "stream-dedup run index --set index_dir=/data/index",
    "run all": "stream-dedup run all --bootstrap-servers localhost:9092",
    "topics plan": "stream-dedup topics plan --json",
    "topics apply": "stream-dedup topics apply --partitions 24",
    "config check": "stream-dedup config check --config stream-dedup.toml",
    "config show": "stream-dedup config show --origin",
    "config reference": "stream-dedup config reference",
    "doctor": "stream-dedup doctor --bootstrap-servers kafka:9093 --set kafka.security.protocol=ssl",
    "load": "stream-dedup load pages.jsonl.gz --key-field url",
    "tap": "stream-dedup tap --only duplicates --limit 20",
    "top": "stream-dedup top http://worker-0:8080 http://index-0:8080 --interval 5",
    "stats": "stream-dedup stats --since 7d",
    "rewind": "stream-dedup rewind --dry-run documents-3@8812",
    "compile": "stream-dedup compile --to /opt/cache",
    "check": "stream-dedup check pages.jsonl --text-field body --plan classic",
    "similar": "stream-dedup similar page.txt --index http://localhost:8081 --limit 5",
    "explain": "stream-dedup explain documents-3@8812 documents-0@17",
    "index stats": "stream-dedup index stats --hottest 20 --no-digest",
    "index snapshot": "stream-dedup index snapshot /backup/index --volume /data/index",
    "index restore": "stream-dedup index restore /backup/index /data/index",
    "index verify": "stream-dedup index verify --snapshot /backup/index",
    "broker": "stream-dedup broker --port 9092 --folder ./kafka",
    "demo": "stream-dedup demo --documents 2000 --seed 7",
    "bench path": "stream-dedup bench path --documents 200000 --rounds 3",
    "bench quality": "stream-dedup bench quality --corpus corpora --plan wide --plan classic",
    "bench fingerprint": "stream-dedup bench fingerprint --languages en,zh --json figures.json",
    "version": "stream-dedup version --json",
}
