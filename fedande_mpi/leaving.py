"""The end of a job that does not end by itself: errors end all ranks, signals let them leave together."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from fedande_mpi.errors import FedandeError, Interrupted
from fedande_mpi.links import Communicator


def stop_if_told(comm: Communicator) -> None:
    """Raise `Interrupted` when another rank is leaving.

    Raises
    ------
    Interrupted
    """
    if comm.told():
        raise Interrupted(
            "stopped by another rank, which got a signal; complete folds are saved, run the same command again "
            "to continue"
        )


class Left(SystemExit):
    """All ranks have left together: MPI is closed, and what was to be said has been said."""


LEAVING_SECONDS = 5.0
"""So long the ranks wait for each other once they are told to stop; then the job is aborted."""


@contextmanager
def ending_job(comm: Communicator) -> Iterator[None]:
    """End the whole job when something raises on this rank, so that the others never wait for it.

    A single process just raises. After an `Interrupted` the ranks leave together: each tells the others,
    waits for them, closes MPI and exits, without the launcher noticing anything but the exit code. Where
    one does not come in time, and after any other error, the job is aborted.
    """
    try:
        yield
    except Left:
        raise
    except BaseException as error:
        if comm.size == 1:
            raise
        if isinstance(error, Interrupted):
            code = report_error(error) if comm.rank == 0 else error.exit_code
            if comm.leave(LEAVING_SECONDS):
                raise Left(code) from error
            if comm.rank == 0:
                comm.abort(code)
                raise
            # rank 0 has said it and ends the job, unless it is the one that does not come: then the next rank
            time.sleep(0.5 + 0.5 * min(comm.rank, 8))
        if comm.rank != 0 and not getattr(error, "__notes__", ()):
            error.add_note(f"rank {comm.rank}")
        code = report_error(error)
        comm.abort(code)
        raise


def report_error(error: BaseException) -> int:
    """Print an error as one line on standard error (a traceback if unexpected); return the exit code."""
    notes = "".join(f" [{note}]" for note in getattr(error, "__notes__", ()))
    if isinstance(error, FedandeError):
        line, code = f"fedande: {error}{notes}", error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        line, code = "fedande: interrupted; run the same command again to continue", Interrupted.exit_code
    elif isinstance(error, UnicodeEncodeError):  # file names, since printing escapes what it cannot write
        line = (
            f"fedande: expected a name in the encoding of this locale ({error.encoding}), got "
            f"{error.object!a}; set LC_ALL=C.UTF-8 or PYTHONUTF8=1{notes}"
        )
        code = 1
    elif isinstance(error, MemoryError):
        line, code = f"fedande: out of memory{notes}: fewer ranks per machine or a smaller block_mib help", 1
    else:
        traceback.print_exception(error, file=sys.stderr)
        line, code = f"fedande: unexpected {type(error).__name__}: {error}{notes}", 70
    print(line.replace("\n", " "), file=sys.stderr, flush=True)
    return code
