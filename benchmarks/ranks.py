"""Run one unit on the ranks of an MPI job and print seconds and memory: `mpiexec -n 3 python ranks.py SPEC`.

SPEC is JSON: `dataset`, `data_dir`, `repeats` (how often; default 1), `warm` (a first run with this many
rounds that does not count; default 1, 0 = none), and keys of a cell, those of `[discriminative]` too.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from folds import unit_of
from measure import peak_mib, reset_peak

from fedande_mpi import load_dataset
from fedande_mpi.comm import connect
from fedande_mpi.federation import run_unit
from fedande_mpi.leaving import ending_job
from fedande_mpi.planning import arrange_unit
from fedande_mpi.programs import drive
from fedande_mpi.rehearsal import warm_up


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    comm = connect(allow_singleton=True)
    with ending_job(comm):
        source, data_dir = spec.pop("dataset"), spec.pop("data_dir", None)
        repeats, warm = spec.pop("repeats", 1), spec.pop("warm", 1)
        data = comm.share(load_dataset(source, data_dir=data_dir) if comm.rank == 0 else None)
        unit = unit_of(data, **spec)
        warm_up([(unit.cell, False)])
        if warm:
            first = unit_of(data, **spec | {"rounds": warm})
            run_unit(comm, first, arrange_unit(first, comm.size))
        before = reset_peak()
        seconds, parts = [], []
        arrangement = arrange_unit(unit, comm.size)
        for _ in range(repeats):
            comm.barrier()
            begin = time.perf_counter()
            result = run_unit(comm, unit, arrangement)
            seconds.append(time.perf_counter() - begin)
            if result is not None:
                parts.append({name: float(values.sum()) for name, values in result.seconds.items()})
        (peaks,) = drive([comm.collect((peak_mib(), before))])
        if comm.rank == 0:
            assert result is not None
            report = {
                "seconds": seconds,
                "parts": parts,
                "peak_mib": [peak for peak, _ in peaks],
                "before_mib": [before for _, before in peaks],
                "grid": [arrangement.n_groups, arrangement.n_shards],
                "clients": unit.cell.clients,
                "sets": len(unit.sets),
                "accuracy": float(result.metrics[-1, 0].mean()),
                "server_cpu": result.server_cpu,
                "server_wall": result.server_wall,
            }
            print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
