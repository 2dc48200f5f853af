"""When ranks share memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fedande_mpi import windows


def test_shared_memory_is_used_only_where_as_much_again_stays_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows.os, "statvfs", lambda path: SimpleNamespace(f_bavail=10, f_frsize=4096))
    assert windows.fits(5 * 4096)
    assert not windows.fits(5 * 4096 + 1)


def test_without_a_place_for_shared_memory_the_library_looks_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(windows.os, "statvfs", missing)
    assert windows.fits(2**60)
