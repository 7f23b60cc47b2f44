"""How a command ends: the one place where errors, and readers that have enough, become sentences
and exit codes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TextIO

from stream_dedup.domain.errors import StreamDedupError
from stream_dedup.domain.printable import printable

_FAILURE = 1
_INTERRUPTED = 130
_CLOSED_PIPE = 128 + signal.SIGPIPE
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SENTENCE_CHARACTERS_MAX = 4000


def exit_code_of(run: Callable[[], object]) -> int:
    """Run a command and return its exit code; an error of ours is its sentence on standard error,
    never a traceback.

    With the log level `debug` the traceback follows. An error that is not ours is a fault of the
    program: its traceback is always shown, because nothing else tells what happened.
    """
    try:
        code = _ended(run)
        if not sys.stdout.closed:  # as it is once its reader has gone
            sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(
            OSError
        ):  # else the interpreter would say at its end that it cannot write
            sys.stdout.close()
        if isinstance(error, BrokenPipeError):
            return _CLOSED_PIPE
        _print_sentence(
            f"Not all was written: {error.strerror}. Run the command again once that is mended."
        )
        return _FAILURE
    return code


def _ended(run: Callable[[], object]) -> int:
    """Run a command as `exit_code_of` says.

    Raises:
        OSError: the disk that it writes to is full.
    """
    try:
        run()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else _FAILURE if end.code else 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except StreamDedupError as error:
        if _is_debug():
            traceback.print_exc()
        _print_sentence(str(error))
        return error.exit_code
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            raise
        traceback.print_exc()
        _print_sentence(
            f"This is a fault of stream-dedup: {type(error).__name__}: {error}. Please report the "
            "lines above."
        )
        return _FAILURE
    return 0


def written_out(action: Callable[[], int]) -> int:
    """Run a command, and write out what it has printed; return its exit code, or that of `cat`
    where the reader is gone.

    Raises:
        BrokenPipeError: another pipe is.
    """
    try:
        code = action()
        sys.stdout.flush()
    except BrokenPipeError:
        shut = [stream for stream in (sys.stdout, sys.stderr) if _is_shut(stream)]
        if not shut:
            raise
        for stream in shut:  # else the interpreter would say at its end that it cannot write
            with contextlib.suppress(OSError):
                stream.close()
        return _CLOSED_PIPE
    return code


def _is_shut(stream: TextIO) -> bool:
    poll = select.poll()
    with contextlib.suppress(OSError, ValueError):
        poll.register(stream, 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    return False


def _print_sentence(text: str) -> None:
    """Print a sentence for people on standard error, line by line, each safe to show."""
    for line in text.splitlines():
        sys.stderr.write(printable(line, _SENTENCE_CHARACTERS_MAX) + "\n")
    sys.stderr.flush()


def _is_debug() -> bool:
    asked = os.environ.get("STREAM_DEDUP_LOG_LEVEL", "").lower() == "debug"
    return asked or logging.getLogger("stream_dedup").level == logging.DEBUG
