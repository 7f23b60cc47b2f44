"""Hook of hatchling: a wheel that holds kernels which were compiled ahead, for one platform and
Python (`make wheel`).

Without STREAM_DEDUP_WHEEL_KERNELS, as everywhere else, the wheel is for all and holds none.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the folder that the environment names beside the module that looks for it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before the files are gathered."""
        del version
        kernels = os.environ.get("STREAM_DEDUP_WHEEL_KERNELS")
        if kernels:
            build_data["pure_python"] = False
            build_data["tag"] = os.environ["STREAM_DEDUP_WHEEL_TAG"]
            build_data["force_include"][kernels] = "stream_dedup/machine/compiled_kernels"
