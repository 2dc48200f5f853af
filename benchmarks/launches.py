"""What starts processes: scaling over hosts, memory of ranks, overhead of MPI, start-up."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import SHAPES, Section, Setting, call, median_ratio, mpiexec, on_ranks, timed

from fedande_mpi.registry import locate


def source(setting: Setting, name: str) -> dict[str, Any]:
    """Say where a data set is to come from, for a job of its own; made up when it is not there."""
    m, d, o, arity = SHAPES[name]
    if setting.quick:
        return {"dataset": f"synthetic:m={min(m, 300)},d={min(d, 4)},o={min(o, 3)},arity={min(arity, 3)}"}
    if locate(name, setting.data_dir).openml_id is not None:
        return {"dataset": f"synthetic:m={m},d={d},o={o},arity={arity}"}
    return {"dataset": name, "data_dir": setting.data_dir} if setting.data_dir else {"dataset": name}


def scaling(setting: Setting) -> Section:
    """One host against two, the same work and twice the work."""
    section = Section(
        "Hosts",
        "`mpiexec -n 2` (a server and one host) against `-n 3` (two hosts), jobs of their own in turn; seconds of "
        "one fold after a first run of one round. Strong: the same work, efficiency = t1 / (2 t2). Weak: two "
        "hosts have twice the rows and clients, efficiency = t1 / t2. Both cores must be free.",
    )
    weak = {"dataset": "synthetic:m={},d=12,o=3,arity=3", "n": 2, "evaluate": "last"}
    m = 300 if setting.quick else 20_000
    cases: list[tuple[str, dict[str, Any], dict[str, Any], float]] = [
        ("strong", {**source(setting, "kr-vs-k"), "n": 2, "clients": 20}, {}, 2.0),
        ("strong", {**source(setting, "nursery"), "n": 2, "clients": 20}, {}, 2.0),
        ("strong", {**source(setting, "kr-vs-kp"), "n": 2, "clients": 20}, {}, 2.0),
        (
            "weak",
            {**weak, "dataset": weak["dataset"].format(m), "clients": 10},
            {"dataset": weak["dataset"].format(2 * m), "clients": 20},
            1.0,
        ),
    ]
    for kind, one, more, hosts in cases:
        runs: dict[int, list[dict[str, Any]]] = {2: [], 3: []}
        for _ in range(setting.repeats):
            runs[2].append(on_ranks(2, **one))
            runs[3].append(on_ranks(3, **one | more))
        seconds = {ranks: [run["seconds"][0] for run in found] for ranks, found in runs.items()}
        efficiency = median_ratio(seconds[2], seconds[3]) / hosts
        section.rows.append(
            {
                "scaling": kind,
                "data": one["dataset"],
                "n": 2,
                "C": runs[2][0]["clients"],
                "1 host, s": statistics.median(seconds[2]),
                "2 hosts, s": statistics.median(seconds[3]),
                "efficiency": efficiency,
            }
        )
        if one["dataset"] == "kr-vs-k":
            section.goal("kr-vs-k n = 2 C = 20, efficiency of two hosts", efficiency, least=0.9)
    return section


def server(setting: Setting) -> Section:
    """Measure what the server takes of a core while two hosts compute."""
    section = Section(
        "The server's share of a core",
        'A2DE-w, C = 20, one fold on 3 ranks, `evaluate = "last"`: CPU seconds of rank 0 from the first broadcast to '
        "the last gather over the seconds on the clock (`/timing/server_cpu` and `/timing/server_wall` in a result).",
    )
    for name in ("kr-vs-k", "nursery", "kr-vs-kp"):
        for transport in ("gather", "reduce"):
            spec = {
                **source(setting, name),
                "n": 2,
                "clients": 20,
                "evaluate": "last",
                "transport": transport,
            }
            found = [on_ranks(3, **spec) for _ in range(setting.repeats)]
            share = statistics.median(run["server_cpu"] / run["server_wall"] for run in found)
            section.rows.append(
                {
                    "data": name,
                    "transport": transport,
                    "CPU, s": statistics.median(run["server_cpu"] for run in found),
                    "clock, s": statistics.median(run["server_wall"] for run in found),
                    "share": share,
                }
            )
            if name == "kr-vs-k":
                section.goal(f"kr-vs-k, {transport}, share", share, most=0.05)
    return section


def overhead(setting: Setting) -> Section:
    """Measure what a round costs when there is next to nothing to compute or send."""
    section = Section(
        "MPI per round",
        "A tiny data set (60 rows, 3 attributes, n = 1, C = 4) for many rounds on 3 ranks: seconds of the longer run "
        "less those of the shorter over the rounds between them, so that everything that happens once drops out; less "
        "the same on one rank, which computes all of it. Per round and shard: broadcast, two gathers, average.",
    )
    few, many = (20, 60) if setting.quick else (200, 1200)
    tiny = {"dataset": "synthetic:m=60,d=3,o=2,arity=2", "n": 1, "clients": 4, "evaluate": "last"}
    costs: dict[tuple[int, int], float] = {}
    for ranks, shards in ((1, 1), (3, 1), (3, 2)):
        per_round = []
        for _ in range(setting.repeats):
            seconds = [on_ranks(ranks, **tiny, rounds=r, shards=shards)["seconds"][0] for r in (few, many)]
            per_round.append(1e6 * (seconds[1] - seconds[0]) / (many - few))
        costs[ranks, shards] = statistics.median(per_round)
    for (ranks, shards), cost in costs.items():
        beyond = (cost - costs[1, 1]) / shards if ranks > 1 else None
        section.rows.append(
            {"ranks": ranks, "shards": shards, "us per round": cost, "us beyond one rank, per shard": beyond}
        )
        if beyond is not None:
            section.goal(f"3 ranks, {shards} shard(s), us per round and shard", beyond, most=300)
    return section


def large(setting: Setting) -> Section:
    """Run the large cells, once each: seconds and memory."""
    section = Section(
        "Large cells",
        'A2DE-w, the first fold, 3 ranks, `evaluate = "last"`, run once. Memory is the sum over ranks of the '
        "largest resident set, shared pages counted in each.",
    )
    for name, clients in (("splice", 100), ("connect-4", 5)):
        more = {"rounds": 2} if setting.quick else {}
        found = on_ranks(3, **source(setting, name), n=2, clients=clients, evaluate="last", warm=0, **more)
        total = sum(found["peak_mib"])
        section.rows.append(
            {
                "data": name,
                "C": found["clients"],
                "parent sets": found["sets"],
                "seconds": found["seconds"][0],
                "MiB server": found["peak_mib"][0],
                "MiB hosts": " + ".join(f"{peak:,.0f}" for peak in found["peak_mib"][1:]),
                "MiB together": total,
                "accuracy": found["accuracy"],
                "grid": "x".join(map(str, found["grid"])),
            }
        )
        if name == "splice":
            section.goal("splice n = 2 C = 100, 3 ranks together, MiB", total, most=2048)
        else:
            section.goal("connect-4 n = 2 C = 5, two hosts, s", found["seconds"][0], most=480)
    return section


EXPERIMENT = """\
name = "start"
datasets = ["synthetic:m=100,d=4"]
n = 1
methods = "discriminative"
scopes = "federated"
clients = 5
repeats = 1
only_folds = 0
[discriminative]
rounds = 1
"""


def startup(setting: Setting) -> Section:
    """Seconds from a command to its end when there is nothing to do."""
    section = Section(
        "Start-up",
        "Seconds of whole commands. `fedande run` is on 100 rows for one round of one fold, so nearly all of it is "
        "start-up; cold is with an empty `NUMBA_CACHE_DIR`, where two or three processes compile a part each, for all.",
    )
    fedande = str(Path(sys.executable).parent / "fedande")
    launcher = mpiexec()
    with tempfile.TemporaryDirectory() as folder:
        experiment = Path(folder) / "start.toml"
        experiment.write_text(EXPERIMENT, encoding="utf-8")
        run = [fedande, "run", str(experiment), "--overwrite", "-q", "-o", str(Path(folder) / "out")]
        commands: dict[str, tuple[list[str], float | None]] = {
            "python -c pass": ([sys.executable, "-c", "pass"], None),
            "import fedande_mpi": ([sys.executable, "-c", "import fedande_mpi"], None),
            "import fedande_mpi.experiment": ([sys.executable, "-c", "import fedande_mpi.experiment"], None),
            "fedande --help": ([fedande, "--help"], 0.3),
            "fedande run, cached": (run, 2.5),
        }
        if launcher:
            commands["mpiexec -n 3 fedande run, cached"] = ([launcher, "-n", "3", *run], 2.5)
        call(run)
        for name, (command, most) in commands.items():
            seconds = statistics.median(
                timed(lambda command=command: call(command)) for _ in range(setting.repeats)
            )
            section.rows.append({"command": name, "seconds": seconds})
            if most is not None:
                section.goal(f"{name}, s", seconds, most=most)
        cold = {"fedande run, cold": run}
        if launcher:
            cold["mpiexec -n 3 fedande run, cold"] = [launcher, "-n", "3", *run]
        if setting.quick:
            cold = {}
        for name, command in cold.items():
            runs = []
            for attempt in range(min(3, setting.repeats)):
                cache = Path(folder) / f"{name} {attempt}"
                runs.append(timed(lambda command=command, c=cache: call(command, NUMBA_CACHE_DIR=str(c))))
            section.rows.append({"command": name, "seconds": statistics.median(runs)})
            section.goal(f"{name}, s", statistics.median(runs), most=15.0)
    section.notes.append("Cold: medians of 3; left out with `--quick`.")
    return section
