"""Runs the Python examples of Markdown pages, as doctest does: `python examples.py PAGE...`."""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path


def run(page: Path) -> tuple[int, int, str]:
    """Run a page's examples in one namespace; return (failed, tried, output)."""
    text = page.read_text(encoding="utf-8")
    # Other text becomes empty lines, so that a failure names the line of the page.
    kept: list[str] = []
    inside = False
    for line in text.splitlines():
        is_fence = line.startswith("```")
        kept.append("" if is_fence or not inside else line)
        inside = (line == "```python") if is_fence else inside
    output: list[str] = []
    flags = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    test = doctest.DocTestParser().get_doctest("\n".join(kept) + "\n", {}, page.name, str(page), 0)
    result = doctest.DocTestRunner(optionflags=flags).run(test, out=output.append)
    return result.failed, result.attempted, re.sub(r"\n{2,}", "\n", "".join(output))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        failed, tried, words = run(Path(name))
        sys.stdout.write(f"{name}: {tried - failed} of {tried} examples\n{words}")
        if failed or not tried:
            sys.exit(1)
