#!/usr/bin/env bash
# One experiment on this machine, continued until it is complete: jobs/laptop.sh jobs/demo.toml [DIRECTORY]
# Ctrl-C stops it with everything complete saved; the same command continues it.

# Stop at names that are not set; errors are dealt with one by one.
set -u

# What to run, and where its results go; what follows is passed on to `fedande run`.
experiment="${1:?expected an experiment: jobs/laptop.sh EXPERIMENT.toml [DIRECTORY] [OPTIONS]}"
output="${2:-results/$(basename "$experiment" .toml)}"

# The environment: the virtual environment in .venv, where there is one (its mpiexec belongs to its MPI).
if [[ -f .venv/bin/activate ]]; then
    # shellcheck source=/dev/null
    source .venv/bin/activate
fi

# A rank for each core, and one more: the first rank serves and sleeps while the others compute.
cores="$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)"
ranks="${RANKS:-$((cores + 1))}"

# Run it; without an MPI library one process does it all.
if command -v mpiexec >/dev/null; then
    mpiexec -n "$ranks" fedande run "$experiment" -o "$output" "${@:3}"
else
    fedande run "$experiment" -o "$output" "${@:3}"
fi
code=$?

# 75 says that a signal stopped it; anything else but 0 has said what is wrong.
if [[ "$code" -eq 75 ]]; then
    echo "stopped; to continue: $0 $*"
elif [[ "$code" -eq 0 ]]; then
    fedande table "$output"
fi
exit "$code"
