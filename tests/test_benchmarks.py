"""The benchmarks run, on next to nothing, and write what they say; no number of theirs is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT

BENCHMARKS = ROOT / "benchmarks"


def run(script: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(BENCHMARKS / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured(folder: Path, *sections: str) -> tuple[dict[str, Any], str]:
    """Run sections of bench.py; return what the JSON and the Markdown file say."""
    files = folder / "bench.json", folder / "bench.md"
    run("bench.py", "--quick", "--only", *sections, "--json", files[0], "--markdown", files[1])
    return json.loads(files[0].read_text(encoding="utf-8")), files[1].read_text(encoding="utf-8")


def tables(markdown: str) -> list[list[str]]:
    """Return the Markdown tables, each a list of lines."""
    found: list[list[str]] = [[]]
    for line in markdown.splitlines():
        if line.startswith("|"):
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [lines for lines in found if lines]


def assert_well_formed(content: dict[str, Any], markdown: str, sections: set[str]) -> None:
    assert content["quick"] is True
    assert content["machine"]["processor"] in markdown
    assert set(content["sections"]) == sections
    for section in content["sections"].values():
        assert section["rows"], section["title"]
        assert f"## {section['title']}" in markdown
        assert all(set(goal) == {"what", "aim", "measured", "met"} for goal in section["goals"])
    for lines in tables(markdown):
        assert len({line.count("|") for line in lines}) == 1, lines[0]


@pytest.mark.slow
def test_what_runs_in_one_process_is_measured(tmp_path: Path) -> None:
    sections = {"kernel", "solves", "folds", "baseline", "growth", "plan"}
    content, markdown = measured(tmp_path, *sections)
    assert_well_formed(content, markdown, sections)


@pytest.mark.slow
@pytest.mark.mpi
def test_what_starts_ranks_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    sections = {"server", "overhead", "large", "startup"}
    content, markdown = measured(tmp_path, *sections)
    assert_well_formed(content, markdown, sections)


@pytest.mark.slow
def test_the_baseline_computes_the_same_and_sections_left_out_stay(tmp_path: Path) -> None:
    first, _ = measured(tmp_path, "baseline")
    (row,) = first["sections"]["baseline"]["rows"]
    assert row["largest difference in accuracy"] == 0
    assert row["in objective (relative)"] < 1e-9
    both, markdown = measured(tmp_path, "growth")
    assert both["sections"]["baseline"] == first["sections"]["baseline"]
    assert_well_formed(both, markdown, {"baseline", "growth"})


def test_the_baseline_names_every_parameter_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import baseline

    from fedande_mpi import ande

    X = np.array([[0, 1, 2], [1, 0, 0], [0, 0, 1]])
    arity = [2, 2, 3]
    theta = baseline.log_probabilities(X, np.array([0, 1, 0]), (1,), arity, 2)
    assert sum(table.size for table in theta.values()) == 2 * ande.n_cells((1,), np.array(arity))
    assert np.exp(theta["prior"]).sum() == pytest.approx(1.0)
    np.testing.assert_allclose(np.exp(theta[2]).reshape(2, 2, 3).sum(axis=2), 1.0)
