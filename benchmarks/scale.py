"""How far one machine and the design reach: 10,000 virtual clients measured, 1,000,000 on paper.

`python benchmarks/scale.py [--quick] [--json FILE]`; the same sections are part of bench.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure import Section, Setting, call, exponent, machine, on_ranks, peak_mib, section_markdown

from fedande_mpi import tally

PAPER = """\
name = "million"
datasets = ["synthetic:m=20000000,d=100,o=2,arity=3"]
n = 2
methods = "discriminative"
scopes = "federated"
clients = 1000000
folds = 2000
only_folds = 0
repeats = 1
evaluate = "last"
transport = "reduce"
"""


def virtual_clients(setting: Setting) -> Section:
    """10,000 clients on 3 ranks: seconds against rows, memory against rounds and parent sets."""
    clients = 50 if setting.quick else 10_000
    most = 2000 if setting.quick else 1_000_000
    section = Section(
        "Ten thousand virtual clients",
        f'FedAnDE A1DE-w, C = {clients:,} clients on 3 ranks, made-up data (o = 2, arity 3), `evaluate = "last"`, each '
        "line one run; a fold holds out about 500 rows, as every client scores all of them. Memory is a rank's "
        "peak from when the data is there, the data included.",
    )
    folds = max(2, most // 500)
    base = {"n": 1, "clients": clients, "evaluate": "last", "warm": 0}
    lines: list[tuple[str, int, int, int]] = [
        *(("rows", m, 12, 3) for m in (most // 4, most // 2, most)),
        *(("rounds", most // 4, 12, rounds) for rounds in (6, 12)),
        *(("parent sets", most // 4, d, 3) for d in (8, 16, 20)),
    ]
    by_rows: dict[int, float] = {}
    peaks: dict[tuple[int, int, int], list[float]] = {}
    for varied, m, d, rounds in lines:
        found = on_ranks(
            3,
            dataset=f"synthetic:m={m},d={d},o=2,arity=3",
            **base,
            rounds=rounds,
            folds=max(2, folds * m // most),
        )
        peaks[m, d, rounds] = found["peak_mib"]
        if varied == "rows":
            by_rows[m] = found["seconds"][0]
        section.rows.append(
            {
                "varied": varied,
                "rows": m,
                "parent sets": d,
                "rounds": rounds,
                "seconds": found["seconds"][0],
                "local s": found["parts"][0]["local"],
                "evaluate s": found["parts"][0]["evaluate"],
                "MiB server": found["peak_mib"][0],
                "MiB hosts": " + ".join(f"{peak:,.0f}" for peak in found["peak_mib"][1:]),
            }
        )
    section.goal("seconds ~ rows^k, k", exponent(list(by_rows), list(by_rows.values())), most=1.1)
    few, many = (max(peaks[most // 4, 12, rounds]) for rounds in (3, 12))
    section.goal("peak of a rank, 12 rounds : 3 rounds", many / few, most=1.1)
    few, many = (max(peaks[most // 4, d, 3]) for d in (8, 20))
    section.goal("peak of a rank, 20 parent sets : 8", many / few, most=1.5)
    return section


def on_paper(setting: Setting) -> Section:
    """`fedande plan` for a million clients."""
    section = Section(
        "A million clients on paper",
        "`fedande plan --ranks 512` for C = 1,000,000 clients, d = 100, n = 2 (4,950 parent sets), 20 M rows of which "
        "nobody makes one (10,000 held out), T = 10 rounds of L = 5 steps.",
    )
    fedande = str(Path(sys.executable).parent / "fedande")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "million.toml"
        path.write_text(PAPER, encoding="utf-8")
        for transport in ("reduce", "gather"):
            text = call([fedande, "plan", str(path), "--ranks", "512", "--set", f"transport={transport}"])
            head, numbers = (line.split("  ") for line in text.splitlines()[:2])
            values: list[Any] = [part.strip() for part in numbers if part.strip()]
            names = [part.strip() for part in head if part.strip()]
            found = dict(zip(names[1:], values[1:], strict=True))
            found["parent sets"] = found.pop("|P|")
            section.rows.append({"transport": transport} | found)
    section.notes.append(BENDS)
    return section


BENDS = f"""\
Where the design bends first: (1) a checkpoint within the fold is of the sums of all clients, clients x test rows x
(o + 2) x 8 bytes, which rank 0 holds: most of what fills its column. `checkpoint_minutes = 0` leaves them to the
hosts, each with those of its own clients. (2) Every machine holds all rows, every rank the test fold and its own
clients' rows once more: most of what fills a host's column. (3) Scoring at each client costs clients x test rows x
parent sets: with many clients the test fold has to be small. (4) A host holds a row per client of its own for at
least one parent set, and under `gather` rank 0 one row per host. What is reported of local steps is rounds x clients
x {8 * tally.COLUMNS} bytes."""

SECTIONS = {"scale": virtual_clients, "plan": on_paper}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small: does it run?")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {}
    for name, measure in SECTIONS.items():
        found[name] = measure(Setting(quick=given.quick))
        print("\n".join(section_markdown(name, found[name])), flush=True)
    if given.json:
        content = {
            "machine": machine(),
            "sections": {name: asdict(section) for name, section in found.items()},
        }
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"peak of this process: {peak_mib():.0f} MiB")


if __name__ == "__main__":
    main()
