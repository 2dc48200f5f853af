"""Made-up data of any size: ``synthetic:m=1000,d=10,o=2,arity=3,seed=1,kind=mixture``."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedande_mpi.errors import DataError
from fedande_mpi.table import Column, Table

_N_COMPONENTS = 3
_KINDS = ("mixture", "noise", "xor")


@dataclass(frozen=True)
class Synthetic:
    """What to make.

    Attributes
    ----------
    m, d, o, arity : int
        Instances, attributes, classes, values of each attribute.
    seed : int
        Same seed, same rows.
    kind : {"mixture", "noise", "xor"}
        ``mixture``: each class is a mixture of three products of random distributions, so attributes
        tell classes apart and depend on each other within a class. ``noise``: the same attributes, but
        the class is drawn apart from them. ``xor``: the class is the exclusive or of the parities of
        the first two attributes, and each attribute alone tells nothing (needs o = 2, d >= 2).
    """

    m: int = 1000
    d: int = 10
    o: int = 2
    arity: int = 3
    seed: int = 1
    kind: Literal["mixture", "noise", "xor"] = "mixture"

    def __post_init__(self) -> None:
        for name, least in (("m", 1), ("d", 1), ("o", 2), ("arity", 2), ("seed", 0)):
            if getattr(self, name) < least:
                raise DataError(f"synthetic: expected {name} >= {least}, got {name}={getattr(self, name)}")
        if self.kind not in _KINDS:
            raise DataError(f"synthetic: expected kind={' or '.join(_KINDS)}, got kind={self.kind}")
        if self.kind == "xor" and (self.o != 2 or self.d < 2 or self.arity % 2):
            raise DataError(
                "synthetic: kind=xor needs o=2, d>=2 and an even arity, "
                f"got o={self.o}, d={self.d}, arity={self.arity}"
            )

    @classmethod
    def parse(cls, text: str) -> Synthetic:
        """Read ``key=value,...``; what is not given keeps its default.

        Raises
        ------
        DataError
            If a key is unknown or given twice, or a value is out of range.
        """
        known = [field.name for field in fields(cls)]
        given: dict[str, int | str] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            key, separator, value = (piece.strip() for piece in part.partition("="))
            if key not in known or not separator:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]}?" if near and separator else ""
                raise DataError(f"synthetic: expected {', '.join(known)} as key=value, got {part!r}{hint}")
            if key in given:
                raise DataError(f"synthetic: {key} is given twice; remove one")
            try:
                given[key] = value if key == "kind" else int(value)
            except ValueError:
                raise DataError(f"synthetic: expected a whole number for {key}, got {value!r}") from None
        return cls(**given)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """A name fit for files, which tells every setting."""
        return "synthetic-" + "-".join(f"{field.name}{getattr(self, field.name)}" for field in fields(self))

    def table(self) -> Table:
        """Draw the rows.

        Returns
        -------
        Table
            Attributes ``x0 ...`` with values ``v0 ...`` and the class with values ``c0 ...``.
        """
        rng = np.random.default_rng(np.random.SeedSequence(self.seed))
        if self.kind == "xor":
            x = rng.integers(self.arity, size=(self.d, self.m), dtype=np.int32)
            y = (x[0] ^ x[1]) & 1
        else:
            x, y = self._mixture(rng)
            if self.kind == "noise":
                y = rng.integers(self.o, size=self.m, dtype=np.int32)
        values = _names("v", self.arity)
        columns = [Column(name, "nominal", values, x[j]) for j, name in enumerate(_names("x", self.d))]
        return Table((*columns, Column("class", "nominal", _names("c", self.o), y)))

    def _mixture(self, rng: np.random.Generator) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        prior = rng.dirichlet(np.full(self.o, 10.0)) if self.o > 1 else np.ones(1)
        y = np.searchsorted(np.cumsum(prior)[:-1], rng.random(self.m), side="right").astype(np.int32)
        component = y * _N_COMPONENTS + rng.integers(_N_COMPONENTS, size=self.m, dtype=np.int32)
        shape = (self.d, self.o * _N_COMPONENTS)
        bounds = np.cumsum(rng.dirichlet(np.ones(self.arity), size=shape), axis=2)[:, :, :-1]
        x = np.zeros((self.d, self.m), dtype=np.int32)
        for j in range(self.d):
            draw = rng.random(self.m)
            for bound in bounds[j].T:  # (o * components,): one threshold per component
                x[j] += draw >= bound[component]
        return x, y


def _names(letter: str, count: int) -> tuple[str, ...]:
    """Return names whose order as text is that of their numbers."""
    width = len(str(count - 1))
    return tuple(f"{letter}{i:0{width}d}" for i in range(count))
