"""Keys of a configuration: how one is declared, checked, explained and, when misspelt, found again.

A configuration is a frozen dataclass whose fields are made by `key`. The fields' metadata are the one table
that defaults, checks, messages, the written reference and the hash of a result all come from.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fedande_mpi.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")

LARGEST = 2**63 - 1
"""Largest integer that both TOML and HDF5 can hold."""


@dataclass(frozen=True)
class Check:
    """What a key accepts.

    Attributes
    ----------
    expected : str
        The accepted values in words, to follow "expected".
    convert : callable
        Returns the value in its canonical form; raises ``ValueError`` for one that is not accepted.
    """

    expected: str
    convert: Callable[[Any], Any]


def integer(low: int) -> Check:
    """Accept an integer of at least `low`; a boolean is none."""

    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= LARGEST:
            raise ValueError
        return int(value)

    return Check(f"an integer of at least {low}", convert)


def real(*, low: float | None = None, above: float | None = None, infinite: bool = False) -> Check:
    """Accept a number (never NaN) of at least `low` or greater than `above`; ``inf`` when `infinite`."""

    def convert(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        try:
            number = float(value) + 0.0  # -0.0 becomes 0.0: equal values need equal hashes
        except OverflowError:
            raise ValueError from None
        too_large = math.isinf(number) and not (infinite and number > 0)
        if math.isnan(number) or too_large:
            raise ValueError
        if (low is not None and number < low) or (above is not None and number <= above):
            raise ValueError
        return number

    words = "a number"
    if low is not None:
        words += f" of at least {low:g}"
    if above is not None:
        words += f" above {above:g}"
    return Check(words + (", or inf" if infinite else ""), convert)


def choice(*names: str) -> Check:
    """Accept one of `names`."""

    def convert(value: Any) -> str:
        if value not in names or not isinstance(value, str):
            raise ValueError
        return value

    return Check(" or ".join(f'"{name}"' for name in names), convert)


def text(*, file_name: bool = False) -> Check:
    """Accept a non-empty line of text; with `file_name`, one that can name a directory."""

    def convert(value: Any) -> str:
        if (
            not isinstance(value, str)
            or not value.strip()
            or any(ord(c) < 32 or ord(c) == 127 for c in value)
        ):
            raise ValueError
        value.encode("utf-8")  # lone surrogates, from undecodable arguments, raise a ValueError
        if file_name and ("/" in value or value.startswith(".")):
            raise ValueError
        return value

    return Check("a name without '/' or a leading '.'" if file_name else "a line of text", convert)


def boolean() -> Check:
    """Accept true or false."""

    def convert(value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    return Check("true or false", convert)


def many(each: Check, *, empty: bool = False, ordered: bool = True) -> Check:
    """Accept a list of what `each` accepts, or one such value; keeps the first of equal ones.

    With `ordered` false the list is a set, kept sorted.
    """

    def convert(value: Any) -> tuple[Any, ...]:
        items = value if isinstance(value, list | tuple) else (value,)
        if not items and not empty:
            raise ValueError
        unique = tuple(dict.fromkeys(each.convert(item) for item in items))
        return unique if ordered else tuple(sorted(unique))

    return Check(f"{each.expected}, or a list of them", convert)


def optional(check: Check, *, word: str | None = None) -> Check:
    """Accept None (a key left out), or `word` for it, besides what `check` accepts."""
    expected = check.expected if word is None else f'{check.expected}, or "{word}"'
    return Check(expected, lambda value: None if value in (None, word) else check.convert(value))


def always(_cell: Any) -> bool:
    """Say that a key changes the result of every cell."""
    return True


def never(_cell: Any) -> bool:
    """Say that a key changes no result: how, where or how far to compute, not what."""
    return False


def key(
    default: T,
    check: Check,
    description: str,
    *,
    changes: Callable[[Any], bool] = always,
    example: object = None,
) -> T:
    """Declare a field of a configuration.

    Parameters
    ----------
    default : object
        Its value when left out.
    check : Check
        What it accepts.
    description : str
        One line for the reference.
    changes : callable, optional
        Whether the key changes the result of the cell given to it; such keys are hashed.
    example : object, optional
        A value to show in messages where the default is none.
    """
    metadata = {"check": check, "description": description, "changes": changes, "example": example}
    made: T = dataclasses.field(default=default, metadata=metadata)
    return made


def keys(cls: type[DataclassInstance]) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of `cls` that `key` made, by name."""
    return {field.name: field for field in dataclasses.fields(cls) if "check" in field.metadata}


def checked(instance: DataclassInstance, prefix: str = "") -> None:
    """Replace every key of a new instance by its canonical form, or refuse it.

    Parameters
    ----------
    instance : dataclass instance
        A configuration under construction (call this from ``__post_init__``).
    prefix : str, optional
        Written before a key's name in messages, as in ``"discriminative."``.

    Raises
    ------
    ConfigError
        At the first key with a value that is not accepted.
    """
    for name, field in keys(type(instance)).items():
        value = getattr(instance, name)
        check: Check = field.metadata["check"]
        try:
            # The dataclass is frozen for everyone but its own construction.
            object.__setattr__(instance, name, check.convert(value))
        except ValueError:
            raise ConfigError(_refusal(prefix + name, value, field)) from None


def _refusal(name: str, value: object, field: dataclasses.Field[Any]) -> str:
    example = field.metadata["example"]
    if example is None:
        example = field.default
    remedy = "" if example is None else f"; write for example {name} = {written(example)}"
    return f"{name}: expected {field.metadata['check'].expected}, came {written(value)}{remedy}"


def written(value: object) -> str:
    """Return a value as TOML writes it (near enough for a message or a table)."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"' if value.isprintable() else repr(value)
        case list() | tuple():
            return "[" + ", ".join(written(item) for item in value) + "]"
        case Mapping():
            return "a table"
        case None:
            return "nothing"
        case float() if value.is_integer() and abs(value) < 1e16:
            return f"{value:.1f}"
    return str(value)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the name in `known` most like `word`, or None where none is like it."""
    found = difflib.get_close_matches(word.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return found[0] if found else None
