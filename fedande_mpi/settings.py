"""Settings of a cell as one flat dictionary, whether they come from its TOML or from the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Keys that never change a result.
EXECUTION_KEYS = frozenset(
    (
        "name",
        "repeats",
        "only_folds",
        "data_dir",
        "transport",
        "shards",
        "block_mib",
        "checkpoint_minutes",
        "allow_empty",
    )
)
_METHODS = ("discriminative", "generative", "hybrid")
# Keys that are lists in an experiment, and have one value in a cell.
_GRID = {"datasets": "dataset", "methods": "method", "scopes": "scope", "n": "n", "clients": "clients"}


def cell_settings(mapping: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Flatten the settings of one cell.

    Parameters
    ----------
    mapping : Mapping
        A cell's resolved TOML, or its settings, nested or dotted.
    method : str
        The cell's method; the sections of others are left out.

    Returns
    -------
    dict
        Key to value, sorted. The keys of the method's own section stand without its name, so that they
        compare across methods; lists are tuples, grid keys have one value, and keys which never change a
        result or have no value are absent.
    """
    flat: dict[str, Any] = {}
    for key, value in _flatten(mapping, ""):
        section = key.partition(".")[0]
        if key in EXECUTION_KEYS or value is None or (section in _METHODS and section != method):
            continue
        key = key.removeprefix(f"{method}.")
        single = _GRID.get(key)
        if single and isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        flat[single or key] = value
    return dict(sorted(flat.items()))


def _flatten(mapping: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            pairs += _flatten(value, f"{prefix}{key}.")
        else:
            pairs.append(
                (prefix + key, tuple(value) if isinstance(value, list | tuple | set | frozenset) else value)
            )
    return pairs


def differing_keys(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Say which keys that both have differ, with both values.

    Parameters
    ----------
    stored, wanted : Mapping
        As :func:`cell_settings` returns them.

    Returns
    -------
    list of str
        ``key (a in the file, b asked for)``, sorted.
    """
    return [
        f"{key} ({stored[key]!r} in the file, {wanted[key]!r} asked for)"
        for key in sorted(stored.keys() & wanted.keys())
        if stored[key] != wanted[key]
    ]
