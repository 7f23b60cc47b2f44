"""Hooks of hatchling: a wheel that holds kernels which were compiled ahead, for one platform and
Python (`make wheel`), and metadata that name the project's address.

Without STREAM_DEDUP_WHEEL_KERNELS, as everywhere else, the wheel is for all and holds none. Where a
forge builds a release, it names server and repository in the environment; elsewhere there is no
address, and the links of the long description stay as they are.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#|mailto:)([^)\s]+)\)")


def absolute(text: str, project: str, version: str) -> str:
    """Return Markdown whose links and pictures lead to the files of a version's tag."""

    def found(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}{link[2]}({project}/{kind}/v{version}/{link[3]})"

    return _LINK.sub(found, text)


class AddressHook(MetadataHookInterface):
    """Makes the long description from README.md, and the project's URLs."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling for the fields that pyproject.toml calls dynamic."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        names = [os.environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY")]
        metadata["urls"] = {}
        if all(names):
            project, version = "/".join(names), metadata["version"]
            text = absolute(text, project, version)
            metadata["urls"] = {
                "Homepage": project,
                "Source": f"{project}/tree/v{version}",
                "Documentation": f"{project}/blob/v{version}/docs/index.md",
                "Changelog": f"{project}/blob/v{version}/CHANGELOG.md",
                "Issues": f"{project}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the folder that the environment names beside the module that looks for it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before the files are gathered."""
        del version
        kernels = os.environ.get("STREAM_DEDUP_WHEEL_KERNELS")
        if kernels:
            build_data["pure_python"] = False
            build_data["tag"] = os.environ["STREAM_DEDUP_WHEEL_TAG"]
            build_data["force_include"][kernels] = "stream_dedup/kernels/compiled_kernels"
