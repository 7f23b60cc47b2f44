"""Convert errors, signals and closed pipes at the end of a command to messages and exit codes."""

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
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_SENTENCE_CHARACTERS_MAX = 4000


def exit_code_of(run: Callable[[], object]) -> int:
    """Run a command and return its exit code.

    The sentence of a `StreamDedupError` is printed on standard error, with a traceback only at the log
    level `debug`. Any other error is an internal error, and is printed with its traceback.
    """
    try:
        code = _run(run)
        if not sys.stdout.closed:  # `run_and_flush` closes it if its reader has ended
            sys.stdout.flush()
    except OSError as error:
        # An open stream would make the interpreter report at exit that it cannot write.
        with contextlib.suppress(OSError):
            sys.stdout.close()
        if isinstance(error, BrokenPipeError):
            return _CLOSED_PIPE
        _print_sentence(
            f"The output is incomplete: {error.strerror}. Run the command again once that is fixed."
        )
        return _FAILURE
    return code


def _run(run: Callable[[], object]) -> int:
    """Run a command and return its exit code; print errors as `exit_code_of` does.

    Raises:
        OSError: the disk is full.
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
        if isinstance(error, OSError) and error.errno in _FULL_DISK:
            raise
        traceback.print_exc()
        _print_sentence(
            f"This is a bug in stream-dedup: {type(error).__name__}: {error}. Please report the "
            "lines above."
        )
        return _FAILURE
    return 0


def run_and_flush(action: Callable[[], int]) -> int:
    """Run a command and flush its output; return its exit code, or that for a closed pipe if the
    reader of the output has ended.

    Raises:
        BrokenPipeError: another pipe is closed.
    """
    try:
        code = action()
        sys.stdout.flush()
    except BrokenPipeError:
        closed = [stream for stream in (sys.stdout, sys.stderr) if _has_no_reader(stream)]
        if not closed:
            raise
        for stream in closed:  # else the interpreter reports at exit that it cannot write
            with contextlib.suppress(OSError):
                stream.close()
        return _CLOSED_PIPE
    return code


def _has_no_reader(stream: TextIO) -> bool:
    poll = select.poll()
    with contextlib.suppress(OSError, ValueError):
        poll.register(stream, 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    return False


def _print_sentence(text: str) -> None:
    """Print a message on standard error; control characters are escaped."""
    for line in text.splitlines():
        sys.stderr.write(printable(line, _SENTENCE_CHARACTERS_MAX) + "\n")
    sys.stderr.flush()


def _is_debug() -> bool:
    is_set = os.environ.get("STREAM_DEDUP_LOG_LEVEL", "").lower() == "debug"
    return is_set or logging.getLogger("stream_dedup").level == logging.DEBUG
