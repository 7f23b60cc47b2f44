"""Other programs that copy a topic, measured in the rounds of `bench path`: which are installed, and
how to start them.

A peer is a script in `peers/` of the source folder: `SCRIPT BOOTSTRAP DOCUMENTS COPY GROUP
TRANSACTION_DOCUMENTS`, which runs until its standard input ends. Like the copy, it is measured by
the committed offsets of its group.

Invariants: this process imports no peer; a peer that is not installed is reported together with the
command that installs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bench.peers import ENVIRONMENT
from stream_dedup.settings.properties import child_environment

PLAIN: Final = "plain"
QUIX: Final = "quix"
_ROOT: Final = Path(__file__).parents[1]
_ASK_SECONDS: Final = 60.0
_VERSIONS: Final = """
import json, sys
from importlib.metadata import version
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


@dataclass(frozen=True, slots=True)
class CopyPeer:
    """A program that copies.

    `packages`: those whose versions are reported, the program's own package first. `is_apart`: it
    is installed in the peers' environment, not in this program's.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    remedy: str
    is_exactly_once: bool
    is_apart: bool
    versions: Mapping[str, str] = field(default_factory=dict)

    def python(self, root: Path = _ROOT) -> Path:
        """Return the interpreter of its environment: the peers' own, or ours."""
        return root / ENVIRONMENT / "bin" / "python" if self.is_apart else Path(sys.executable)

    def script(self, root: Path = _ROOT) -> Path:
        """Return its program."""
        return root / "peers" / f"copy_{self.name}.py"

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs it."""
        return [str(self.python()), str(self.script()), *arguments]


PEERS: Final = (
    CopyPeer(
        PLAIN,
        "confluent-kafka without transactions",
        ("confluent-kafka",),
        "install crawl-dedup again",
        False,
        False,
    ),
    CopyPeer(
        QUIX,
        "Quix Streams",
        ("quixstreams", "confluent-kafka"),
        "run `make peers` (again)",
        True,
        True,
    ),
)


def peer_environment() -> dict[str, str]:
    """Return the environment of a peer: nothing in it is meant for us or for our interpreter."""
    return {
        name: value
        for name, value in child_environment({}).items()
        if not name.startswith("PYTHON")
    }


def find_peers(root: Path = _ROOT) -> tuple[dict[str, CopyPeer], dict[str, str]]:
    """Return the peers that are here, with their versions, and for each other one a sentence that
    says why not.
    """
    found, missing = {}, {}
    for peer in PEERS:
        if not peer.script(root).exists():
            missing[peer.name] = (
                f"{peer.title} is measured from the source folder of stream-dedup only: {root} has "
                "no peers/."
            )
            continue
        try:
            asked = subprocess.run(
                [str(peer.python(root)), "-c", _VERSIONS, *peer.packages],
                env=peer_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_ASK_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            sentence = (
                error.stderr.strip().splitlines()[-1:]
                if isinstance(error, subprocess.CalledProcessError)
                else [str(error)]
            )
            missing[peer.name] = (
                f"{peer.title} is not here, so it is not measured: {peer.remedy}. "
                f"({' '.join(sentence)})"
            )
            continue
        found[peer.name] = replace(peer, versions=json.loads(asked.stdout))
    return found, missing
