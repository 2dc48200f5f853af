"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


def _shared(name: str) -> Path:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"the shared folder '{name}' is not beside this repository")
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Directory with the twelve data sets as ARFF."""
    return _shared("data")


@pytest.fixture(scope="session")
def golden() -> Path:
    """Directory with the recorded cases."""
    return _shared("golden")


@pytest.fixture(scope="session")
def reference() -> Path:
    """Directory with other programs' numbers."""
    return _shared("reference")
