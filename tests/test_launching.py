"""What launchers say, and what is refused because of it (case 15)."""

from __future__ import annotations

import pytest

from fedande_mpi.errors import FederationError
from fedande_mpi.launching import check_launch, check_library, launched_size


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_case_15_a_world_of_one_among_four_is_refused_with_the_hint(name: str) -> None:
    with pytest.raises(FederationError, match=rf"of 4 ranks \({name}=4\), got 1.*srun --mpi=pmi2"):
        check_launch(1, {name: "4"})


def test_case_15_allow_singleton_overrides() -> None:
    check_launch(1, {"PMI_SIZE": "4"}, allow_singleton=True)


def test_case_15_slurm_ntasks_alone_never_refuses() -> None:
    environ = {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}
    check_launch(1, environ)
    assert launched_size(environ) is None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"PMI_SIZE": ""}, None),
        ({"PMI_SIZE": "many", "SLURM_STEP_NUM_TASKS": "2"}, ("SLURM_STEP_NUM_TASKS", 2)),
        ({"SLURM_STEP_NUM_TASKS": "1", "OMPI_COMM_WORLD_SIZE": "3"}, ("OMPI_COMM_WORLD_SIZE", 3)),
        ({"OMPI_COMM_WORLD_SIZE": "3", "PMI_SIZE": "2"}, ("PMI_SIZE", 2)),
    ],
)
def test_the_first_launcher_that_says_a_number_decides(
    environ: dict[str, str], expected: tuple[str, int] | None
) -> None:
    assert launched_size(environ) == expected


def test_the_expected_number_of_ranks_passes() -> None:
    check_launch(4, {"PMI_SIZE": "4"})


@pytest.mark.parametrize(
    "version", ["MPICH Version:      5.0.2\nMPICH Release date: x", "Intel(R) MPI Library 2021"]
)
def test_open_mpis_launcher_for_another_library_is_refused(version: str) -> None:
    with pytest.raises(
        FederationError, match=r"expected Open MPI for 3 ranks .* got (MPICH 5\.0\.2|Intel\(R\) MPI):"
    ):
        check_library(version, {"OMPI_COMM_WORLD_SIZE": "3"})


def test_a_launcher_that_may_belong_to_the_library_passes() -> None:
    check_library("Open MPI v4.1.4", {"OMPI_COMM_WORLD_SIZE": "3"})
    check_library("Open MPI v4.1.4", {"PMI_SIZE": "3"})  # srun --mpi=pmi2 may know it
    check_library("MPICH Version: 5.0.2", {"PMI_SIZE": "3"})
