"""Writes `jars.lock` anew, from what a broker needs and what that needs: `python -m tests.broker_room.write_lock`."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jgo.maven

from stream_dedup.broker import jars
from stream_dedup.broker.jars import Jar

# kafka-clients stands beside kafka_2.13 because the resolver's mediation otherwise picks 3.8.0 for it. Kafka's own jars
# bring the SLF4J 1.7 interface but no logger; this binding matches that interface.
ROOTS = (
    "org.apache.kafka:kafka-clients:4.3.1",
    "org.apache.kafka:kafka_2.13:4.3.1",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.5",
)


def resolved(roots: Iterable[str]) -> tuple[Jar, ...]:
    """Resolve and fetch these with everything they need, and return what a new lock file has to pin."""
    with tempfile.TemporaryDirectory() as repository:
        context = jgo.maven.MavenContext(repo_cache=Path(repository), timeout=jars.FETCH_TIMEOUT_SECONDS)
        found, others = context.resolver.resolve([context.create_dependency(root) for root in roots])
        return tuple(_pin(dependency) for dependency in [*found, *others])


def _pin(dependency: Any) -> Jar:
    path: Path = dependency.artifact.resolve()
    content = path.read_bytes()
    coordinate = f"{dependency.groupId}:{dependency.artifactId}:{dependency.version}"
    jar = Jar(coordinate, hashlib.sha256(content).hexdigest(), len(content))
    assert path.name == jar.file_name, (
        f"{coordinate} is kept as {path.name}; jars.lock knows no classifiers and no other types."
    )
    return jar


def rendered(pinned: Iterable[Jar], roots: Iterable[str] = ROOTS) -> str:
    """Return the text of a lock file; `parse_lock` reads it back."""
    lines = [
        "# The jars of the local broker: Maven coordinate, SHA-256 and size in bytes of each.",
        "# Written by `python -m tests.broker_room.write_lock` from:",
        *(f"#   {root}" for root in roots),
    ]
    ordered = sorted(pinned, key=lambda jar: jar.coordinate)
    return "\n".join([*lines, *(f"{jar.coordinate} sha256:{jar.sha256} {jar.size_bytes}" for jar in ordered)]) + "\n"


def main(lock: Path = jars.LOCK_FILE, roots: Iterable[str] = ROOTS) -> None:
    """Write the list anew and say what changed; review the difference before committing it."""
    before = set(jars.parse_lock(lock.read_text(encoding="utf-8"))) if lock.exists() else set()
    after = set(resolved(roots))
    lock.write_text(rendered(after, roots), encoding="utf-8")
    for sign, changed in (("-", before - after), ("+", after - before)):
        for jar in sorted(changed, key=lambda jar: jar.coordinate):
            print(sign, jar.coordinate, jar.sha256)
    print(f"{len(after)} jars, {sum(jar.size_bytes for jar in after):,} bytes.")


if __name__ == "__main__":
    main()
