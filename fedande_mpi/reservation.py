"""Claims on cells: jobs that share a directory of results do not compute the same cell twice.

A claim is the file ``<cell>.claim``, made only where there is none, with who holds it. Its holder touches it
every few seconds; one that has not been touched for minutes, or whose process is known to be gone, is taken
over. All times are the file system's own: clocks of machines differ. Claims only avoid double work. What
keeps results safe when two jobs do write one cell (a process can stand still for an hour and then go on) is
that files are replaced as a whole, with what the other has done (:mod:`fedande_mpi.cellfile`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from fedande_mpi.storage import check_still_there, refusal, temporary_path

HEARTBEAT = 10.0
"""Seconds between two touches of a claim."""

STALE = 300.0
"""Seconds without a touch after which a claim is taken over."""


@dataclass(frozen=True)
class Holder:
    """Who holds a claim.

    Attributes
    ----------
    host, pid, started :
        Machine, process, and when that process started (in the system's own units; 0 where unknown).
    job, restart :
        SLURM's number of the job, empty outside; how often it has been requeued.
    token : str
        Tells apart two claims of one process.
    """

    host: str
    pid: int
    started: int
    job: str
    restart: int
    token: str

    @classmethod
    def this_process(cls, environ: Mapping[str, str]) -> Holder:
        """Describe this process."""
        restart = environ.get("SLURM_RESTART_COUNT", "")
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            started=_started(os.getpid()) or 0,
            job=environ.get("SLURM_JOB_ID", ""),
            restart=int(restart) if restart.isdigit() else 0,
            token=secrets.token_hex(8),
        )

    def gone(self, me: Holder) -> bool:
        """Whether it is known to have ended: an earlier start of this job, or a dead process of this host.

        What this very process left behind (an earlier run in the same Python) counts as well.
        """
        if self.job and self.job == me.job and self.restart < me.restart:
            return True
        if self.host != me.host:
            return False
        started = _started(self.pid)
        if started is None or (self.pid, self.started) == (me.pid, me.started):
            return True
        return bool(self.started and started and started != self.started)

    def __str__(self) -> str:
        """Return it in a few words, for messages."""
        job = f", job {self.job}" if self.job else ""
        return f"process {self.pid} on {self.host}{job}"


def _started(pid: int) -> int | None:
    """Return when a process of this machine started, 0 if that is unknown, None if there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state == "Z" else int(fields[18])
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except OSError:
        pass
    return 0


def claim_path(directory: Path, name: str) -> Path:
    """Path of the claim on a cell."""
    return directory / f"{name}.claim"


@dataclass(frozen=True)
class Claim:
    """A claim as found on disk.

    Attributes
    ----------
    holder : Holder or None
        None where the file says nothing sensible, as while it is being written.
    touched : float
        When it was last touched, by the file system's clock.
    """

    content: bytes
    touched: float
    holder: Holder | None


def read_claim(path: Path) -> Claim | None:
    """Read a claim; None where there is none."""
    try:
        with open(path, "rb") as stream:
            content, touched = stream.read(), os.fstat(stream.fileno()).st_mtime
    except OSError:
        return None
    try:
        holder = Holder(**json.loads(content))
    except (ValueError, TypeError):
        holder = None
    return Claim(content, touched, holder)


def file_system_time(directory: Path) -> float:
    """Return the time by the clock that stamps the files of a directory.

    Raises
    ------
    ResultsError
        If nothing can be written there.
    """
    probe = temporary_path(directory / "clock")
    try:
        probe.write_bytes(b"")
        return probe.stat().st_mtime
    except OSError as error:
        check_still_there(directory)
        raise refusal(probe, error) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


class Reservation:
    """A claim that this process holds; a context manager that gives it back.

    Attributes
    ----------
    lost : bool
        Whether another job was seen to have taken it over.
    """

    def __init__(self, path: Path, content: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.lost = False
        self._content = content
        self._clock = clock
        self._touched = clock()

    def beat(self) -> None:
        """Touch the claim when it is time to; cheap otherwise."""
        now = self._clock()
        if self.lost or now - self._touched < HEARTBEAT:
            return
        self._touched = now
        found = read_claim(self.path)
        if found is None or found.content != self._content:
            self.lost = True
            return
        with contextlib.suppress(OSError):  # a file system that stutters; the next beat may pass
            os.utime(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found = read_claim(self.path)
        if found is not None and found.content == self._content:
            with contextlib.suppress(OSError):
                self.path.unlink()


def reserve(directory: Path, name: str, environ: Mapping[str, str] = os.environ) -> Reservation | None:
    """Claim a cell.

    Parameters
    ----------
    directory : Path
        Directory of results.
    name : str
        Name of the cell.
    environ : mapping
        Environment variables, for SLURM's number of the job.

    Returns
    -------
    Reservation or None
        None while somebody else holds a live claim.

    Raises
    ------
    ResultsError
        If the directory cannot be written.
    """
    path = claim_path(directory, name)
    me = Holder.this_process(environ)
    content = json.dumps(asdict(me)).encode()
    for _ in range(2):
        try:
            _create(path, content)
            return Reservation(path, content)
        except FileExistsError:
            pass
        except OSError as error:
            check_still_there(directory)
            raise refusal(path, error) from error
        found = read_claim(path)
        if found is not None and not _is_stale(found, me, directory):
            return None
        if found is not None and not _remove(path, found):
            return None
    return None


def _create(path: Path, content: bytes) -> None:
    with open(path, "xb") as stream:
        try:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        except OSError:  # a full disk: an empty claim would keep others away
            path.unlink()
            raise


def _is_stale(found: Claim, me: Holder, directory: Path) -> bool:
    if found.holder is not None and found.holder.gone(me):
        return True
    return file_system_time(directory) - found.touched > STALE


def _remove(path: Path, found: Claim) -> bool:
    """Remove a stale claim, unless somebody was faster and the claim there is already a new one."""
    grave = temporary_path(path.with_suffix(".gone"))
    try:
        os.rename(path, grave)
    except OSError:
        return False
    buried = read_claim(grave)
    if buried is not None and buried.content != found.content:
        with contextlib.suppress(OSError):  # put it back
            os.link(grave, path)
    with contextlib.suppress(OSError):
        grave.unlink()
    return buried is not None and buried.content == found.content


class Others:
    """What is seen of the claims of others, to tell who is alive.

    A claim that is touched while one looks has a living holder, and its cell is left to it. One that is not
    becomes stale, and is taken over.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[str, float] = {}

    def alive(self, name: str) -> Holder | None:
        """Return who holds the cell, once its claim has been touched since the first look."""
        found = read_claim(claim_path(self._directory, name))
        if found is None or found.holder is None:
            return None
        first = self._seen.setdefault(name, found.touched)
        return found.holder if found.touched > first else None
