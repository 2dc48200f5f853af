"""`fedande verify` under mpiexec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mpi.launch import fedande
from tests.test_verify import small_case

pytestmark = pytest.mark.mpi

TINY = ("--block-mib", "0.001")


def slow(ranks: int, *options: str) -> Any:
    return pytest.param(ranks, options, marks=pytest.mark.slow)


def readable(value: object) -> str:
    return "".join(value).replace("--", "-") or "plain" if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, ()),
        slow(2, "--transport", "reduce", *TINY),
        slow(3),
        slow(3, "--transport", "reduce"),
        (3, ("--shards", "2")),
        slow(3, "--shards", "2", "--transport", "reduce", *TINY),
        slow(5),
        slow(5, "--shards", "2", *TINY),
        (5, ("--shards", "4", "--transport", "reduce", *TINY)),
    ],
    ids=readable,
)
def test_the_golden_cases_agree(tmp_path: Path, golden: Path, ranks: int, options: tuple[str, ...]) -> None:
    cases = sorted(golden.glob("*.npz"))
    done = fedande(ranks, "verify", *cases, *options, cwd=tmp_path)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert [line.split(":")[0] for line in lines] == [case.name for case in cases]
    assert all(": agrees  weights " in line for line in lines)


@pytest.mark.parametrize("ranks", [0, 3])
def test_a_doctored_case_ends_with_1_on_every_rank_without_an_abort(tmp_path: Path, ranks: int) -> None:
    case = small_case()
    np.savez(tmp_path / "sound.npz", **case)
    np.savez(tmp_path / "doctored.npz", **case | {"w0_prior": case["w0_prior"] + 2e-6})
    done = fedande(ranks, "verify", "doctored.npz", "sound.npz", cwd=tmp_path)
    assert done.code == 1
    assert [line.split("  ")[0] for line in done.out.splitlines()] == [
        "doctored.npz: DIFFERS",
        "sound.npz: agrees",
    ]
    assert done.err == ""


def test_a_file_that_is_no_case_ends_all_ranks_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "case.npz").write_text("no archive")
    done = fedande(3, "verify", "case.npz", cwd=tmp_path)
    assert done.code == 1
    assert len(done.messages) == 1
    assert "expected a recorded case" in done.messages[0]
    assert "case.npz" in done.messages[0]
