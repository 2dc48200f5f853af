"""Checkpoints within a fold on real ranks: stopped at any of them, continued on any number of ranks."""

from __future__ import annotations

from pathlib import Path

from tests.mpi.launch import assert_same_bytes, fedande

JOB = """\
datasets = "tic-tac-toe"
n = 2
clients = 5
repeats = 1
only_folds = 0
evaluate = "all"
save = ["predictions", "weights"]
methods = ["discriminative", "hybrid"]
[discriminative]
rounds = 2
local_steps = 2
[hybrid]
rounds = 2
local_steps = 2
epsilon = 1.0

[[grid]]
methods = ["discriminative", "generative"]
scopes = "local"
max_iterations = 4

[[grid]]
methods = "generative"
combine = "joint"
"""

CHECKPOINTS = ("--set", "checkpoint_minutes=1e-9", "--set", "block_mib=0.01")

STOP = """
from fedande_mpi import checkpoint
from fedande_mpi.errors import Interrupted
keep, kept = checkpoint.Checkpoint.keep, []
def keep_and_stop(self, partial):
    keep(self, partial)
    kept.append(1)
    if len(kept) == NUMBER:
        raise Interrupted("stopped after a checkpoint")
checkpoint.Checkpoint.keep = keep_and_stop
"""


def test_stopped_after_checkpoints_and_continued_on_other_ranks_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    whole = fedande(1, "run", "job.toml", "-o", "whole", "-q", "--set", "checkpoint_minutes=0", cwd=tmp_path)
    assert whole.code == 0, whole.err
    hook = STOP.replace("NUMBER", "15")
    starts, taken_up = 0, 0
    arrangements = [(3, ()), (5, ("--set", "shards=2")), (1, ()), (4, ("--set", "shards=3")), (2, ())]
    code = 75
    while code == 75:
        ranks, settings = arrangements[starts % len(arrangements)]
        done = fedande(
            ranks, "run", "job.toml", "-o", "parts", *CHECKPOINTS, *settings, cwd=tmp_path, hook=hook
        )
        code = done.code
        taken_up += done.err.count("goes on from a checkpoint")
        starts += 1
        assert starts < 30, done.err
    assert code == 0, done.err
    assert taken_up >= 4
    assert_same_bytes(tmp_path / "whole", tmp_path / "parts")
    assert not list((tmp_path / "parts").glob("*.checkpoint"))
