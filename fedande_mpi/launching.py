"""What launchers say of the job they started, and whether the MPI library belongs to them."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fedande_mpi.errors import FederationError

LAUNCHERS = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Where a launcher says how many ranks it started, in order of precedence."""


def launched_size(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the variable that says how many ranks were started, and the number; None without a launcher."""
    for name in LAUNCHERS:
        text = environ.get(name, "")
        if text.isdigit() and int(text) > 0:
            return name, int(text)
    return None


def available_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_launch(size: int, environ: Mapping[str, str], *, allow_singleton: bool = False) -> None:
    """Refuse a world that is smaller than what the launcher started.

    Parameters
    ----------
    size : int
        Size of the world this process sees.
    environ : mapping
        Environment variables.
    allow_singleton : bool
        Let separate single-rank runs through.

    Raises
    ------
    FederationError
        When the launcher's number differs, with what to do.
    """
    launched = launched_size(environ)
    if allow_singleton or launched is None or launched[1] == size:
        return
    name, expected = launched
    raise FederationError(
        f"expected a world of {expected} ranks ({name}={expected}), got {size}: launcher and MPI library do "
        "not belong together, and every process would run the whole job; start it with the mpiexec of the "
        "MPI library that mpi4py loads, or with srun --mpi=pmi2 (or --mpi=pmix); --allow-singleton runs it "
        "all the same"
    )


def check_library(version: str, environ: Mapping[str, str]) -> None:
    """Refuse Open MPI's launcher for ranks of another MPI, which would die in their first call without a hint.

    Parameters
    ----------
    version : str
        What the library says of itself.
    environ : mapping
        Environment variables.

    Raises
    ------
    FederationError
        With what to do.
    """
    size = environ.get("OMPI_COMM_WORLD_SIZE")
    if size is None or "Open MPI" in version:
        return
    found = " ".join(version.replace("Version:", "").split()[:2])
    raise FederationError(
        f"expected Open MPI for {size} ranks (OMPI_COMM_WORLD_SIZE={size}) that its mpiexec started, got {found}: "
        "launcher and MPI library do not belong together; start it with the mpiexec of the MPI library that "
        "mpi4py loads (with fedande-mpi[mpich]: the one beside this Python), or with srun --mpi=pmi2 (or "
        "--mpi=pmix)"
    )
