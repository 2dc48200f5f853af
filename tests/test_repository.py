"""The files around the package agree with each other and name nobody's machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from fedande_mpi.config import config_reference, load_experiment

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RUNTIME = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = [
    requirement
    for lines in PROJECT["optional-dependencies"].values()
    for requirement in map(Requirement, lines)
    if requirement.name != PROJECT["name"]
]
NAMES = sorted({requirement.name for requirement in (*RUNTIME, *EXTRAS)})


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pins() -> dict[str, str]:
    lines = [line for line in text_of("constraints.txt").splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def tracked_files() -> list[Path]:
    """Return what git tracks or would track."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60)
    if listed.returncode:
        pytest.skip("git does not read this checkout")
    paths = (ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name)
    return [path for path in paths if path.is_file()]


def test_the_lock_has_exact_versions_only() -> None:
    lines = text_of("constraints.txt").splitlines()
    wrong = [line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)]
    assert not wrong


@pytest.mark.parametrize("requirement", [*RUNTIME, *EXTRAS], ids=str)
def test_the_lock_pins_an_allowed_version(requirement: Requirement) -> None:
    assert Version(pins()[canonicalize_name(requirement.name)]) in requirement.specifier


@pytest.mark.parametrize("requirement", RUNTIME, ids=str)
def test_conda_installs_every_dependency_of_a_run(requirement: Requirement) -> None:
    found = re.search(rf"^  - {re.escape(requirement.name)} ?(\S*)", text_of("environment.yml"), re.MULTILINE)
    assert found, f"add {requirement.name} to environment.yml"
    assert found[1] == str(requirement.specifier)


@pytest.mark.parametrize("name", ["python", "mpich", "matplotlib", "pytest"])
def test_conda_installs_what_else_a_user_needs(name: str) -> None:
    assert re.search(rf"^  - {name}\b", text_of("environment.yml"), re.MULTILINE)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_make_alone_lists_its_targets() -> None:
    # MAKEFLAGS of a make that runs these tests would change what this one does.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }
    done = subprocess.run(
        ["make", "--no-print-directory"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    listed = {line.split()[1] for line in done.stdout.splitlines()}
    assert {"help", "demo", "test", "test-all", "lint", "docs"} <= listed


def test_the_ci_script_is_sound() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text(encoding="utf-8")
    if (bash := shutil.which("bash")) is not None:
        subprocess.run([bash, "-n", str(script)], check=True, timeout=60)


def test_the_changelog_has_a_place_for_what_is_new() -> None:
    assert "\n## [Unreleased]\n" in text_of("CHANGELOG.md")


def test_the_licence_is_the_declared_one() -> None:
    assert PROJECT["license"] == "MIT"
    assert text_of("LICENSE").startswith("MIT License\n\nCopyright (c) 2026 The fedande_mpi developers\n")


def test_the_configuration_reference_is_current() -> None:
    assert text_of("docs/configuration.md") == config_reference(), "run: make docs"


@pytest.mark.parametrize(("name", "cells"), [("demo", 60), ("smoke", 126), ("paper", 792)])
def test_the_experiments_can_be_read(name: str, cells: int) -> None:
    experiment = load_experiment(ROOT / "jobs" / f"{name}.toml")
    assert experiment.name == name
    assert len(experiment.cells()) == cells
    assert not experiment.skipped()


@pytest.mark.parametrize("name", ["demo", "smoke"])
def test_the_examples_need_no_network(name: str) -> None:
    generated = ("tic-tac-toe", "kr-vs-k", "synthetic:")
    assert all(
        source.startswith(generated) for source in load_experiment(ROOT / "jobs" / f"{name}.toml").datasets
    )


def test_no_file_names_a_machine_or_a_package_index() -> None:
    # In pieces, so that this file does not name them either.
    hosts = [
        r"pypi\." + "org",
        "python" + r"hosted\.",
        "npm" + r"js\.",
        r"deb\.deb" + "ian",
        r"conda\.ana" + "conda",
    ]
    paths = [
        rf"(?<![\w.$}})~])/{name}/"
        for name in ("ro" + "ot", "wo" + "rk", "ho" + "me/[a-z]+", "opt/wh" + "eels")
    ]
    pattern = re.compile("|".join((*hosts, *paths)))
    wrong = []
    for path in tracked_files():
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        wrong += [f"{path.relative_to(ROOT)}: {found[0]}" for found in pattern.finditer(content)]
    assert not wrong
