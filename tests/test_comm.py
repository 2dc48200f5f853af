"""Who joins which job."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedande_mpi.comm import connect
from fedande_mpi.errors import FederationError
from fedande_mpi.serial import SerialComm

# --- connecting -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("environ", [{}, {"PMI_SIZE": "1"}, {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}])
def test_a_single_rank_loads_no_mpi_library(environ: dict[str, str]) -> None:
    text = (
        "import sys; from fedande_mpi.comm import connect\n"
        f"print(type(connect({environ!r})).__name__, 'mpi4py' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["SerialComm", "False"]


def test_several_ranks_without_an_mpi_library_are_refused_with_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(
        FederationError, match=r"MPI library for 2 ranks \(PMI_SIZE=2\).*fedande-mpi\[mpich\]"
    ):
        connect({"PMI_SIZE": "2"})
    assert isinstance(connect({"PMI_SIZE": "2"}, allow_singleton=True), SerialComm)
