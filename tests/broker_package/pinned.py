"""Write `jars.lock`: what the local broker needs, as Maven resolves it.

python -m tests.broker_package.pinned
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stream_dedup.broker import jars
from stream_dedup.broker.jars import Jar
from stream_dedup.domain.errors import LocalBrokerError

# kafka-clients is listed too because the resolver's mediation otherwise picks 3.8.0 for it. Kafka's
# jars contain the SLF4J 1.7 interface but no logger; this binding matches that interface.
ROOTS = (
    "org.apache.kafka:kafka-clients:4.3.1",
    "org.apache.kafka:kafka_2.13:4.3.1",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.5",
)


def render_lock(jars: Iterable[Jar]) -> str:
    """Return the text of a lock file; `jars.pinned_jars` reads it back."""
    lines = [
        "# The jars of the local broker: Maven coordinate, SHA-256 and size in bytes of each.",
        "# Written by `python -m tests.broker_package.pinned` from:",
        *(f"#   {root}" for root in ROOTS),
    ]
    ordered = sorted(jars, key=lambda jar: jar.coordinate)
    return (
        "\n".join(
            [*lines, *(f"{jar.coordinate} sha256:{jar.sha256} {jar.size_bytes}" for jar in ordered)]
        )
        + "\n"
    )


def resolve_roots() -> tuple[Jar, ...]:
    """Resolve and fetch `ROOTS` with everything they need, and return what a new lock file has to
    pin.

    Raises:
        LocalBrokerError: something could not be fetched, or the `broker` extra is not installed.
    """
    maven = jars.import_extra("jgo.maven")
    with (
        tempfile.TemporaryDirectory() as repository,
        jars.translate_errors("the list of jars"),
        jars.trust_system_certificates(),
    ):
        context = maven.MavenContext(
            repo_cache=Path(repository), timeout=jars.FETCH_TIMEOUT_SECONDS
        )
        roots, others = context.resolver.resolve(
            [context.create_dependency(root) for root in ROOTS]
        )
        return tuple(_pin(dependency) for dependency in [*roots, *others])


def _pin(dependency: Any) -> Jar:
    path: Path = dependency.artifact.resolve()
    content = path.read_bytes()
    coordinate = f"{dependency.groupId}:{dependency.artifactId}:{dependency.version}"
    jar = Jar(coordinate, hashlib.sha256(content).hexdigest(), len(content))
    if path.name != jar.file_name:
        raise LocalBrokerError(
            f"{coordinate} is kept as {path.name}; jars.lock knows neither classifiers nor other "
            "types."
        )
    return jar


def main() -> None:
    """Write `jars.lock` and print what changed; review the difference before committing it."""
    before = set(jars.pinned_jars()) if jars.LOCK_FILE.exists() else set()
    after = set(resolve_roots())
    jars.LOCK_FILE.write_text(render_lock(after), encoding="utf-8")
    for sign, changed in (("-", before - after), ("+", after - before)):
        for jar in sorted(changed, key=lambda jar: jar.coordinate):
            print(sign, jar.coordinate, jar.sha256)
    print(f"{len(after)} jars, {sum(jar.size_bytes for jar in after):,} bytes.")


if __name__ == "__main__":
    main()
