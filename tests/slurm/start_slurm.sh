#!/usr/bin/env bash
# A SLURM cluster of one node, this machine, to try batch scripts on; without systemd, for tests in a container too.
#
#     start_slurm.sh --install       install Debian's packages
#     start_slurm.sh DIRECTORY       start; everything of it is in DIRECTORY, its configuration in DIRECTORY/slurm.conf
#     start_slurm.sh --stop DIRECTORY
#
# Then `export SLURM_CONF=DIRECTORY/slurm.conf`, and sbatch, squeue and srun work. It has 4 CPUs whatever the machine has,
# and two partitions: `main`, and `urgent`, whose jobs requeue those of `main`. It must be root. Where it cannot do what it
# is asked it says why in one line and exits with 1.
set -euo pipefail

packages=(slurm-wlm slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins)

fail() {
    echo "start_slurm.sh: $*" >&2
    exit 1
}

[[ $# -ge 1 ]] || fail "expected --install, --stop DIRECTORY or DIRECTORY"
[[ "$(id -u)" -eq 0 ]] || fail "expected to be root, to install packages and start munged as its own user"

if [[ "$1" == --install ]]; then
    command -v apt-get >/dev/null || fail "expected Debian's apt-get to install ${packages[*]}"
    # Nothing to do where they are there already.
    if ! dpkg --status "${packages[@]}" >/dev/null 2>&1; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get -qq update >/dev/null 2>&1 || fail "apt-get update failed: is there a package mirror?"
        apt-get -qq install --yes --no-install-recommends "${packages[@]}" >/dev/null 2>&1 \
            || fail "apt-get could not install ${packages[*]}"
    fi
    exit 0
fi

if [[ "$1" == --stop ]]; then
    export SLURM_CONF="${2:?expected the directory}/slurm.conf"
    # Jobs first: what they started would outlive the daemons.
    scancel --signal=KILL --full --user=root 2>/dev/null || true
    scancel --user=root 2>/dev/null || true
    scontrol shutdown 2>/dev/null || true
    # Only a munged that this script started has its pid here.
    if [[ -f "$2/munged.pid" ]]; then
        kill "$(cat "$2/munged.pid")" 2>/dev/null || true
    fi
    exit 0
fi

for program in slurmctld slurmd munged; do
    command -v "$program" >/dev/null || fail "expected the program $program; start_slurm.sh --install brings it"
done

mkdir -p "$1"
directory="$(cd "$1" && pwd)"
node="$(hostname -s)"
mkdir -p "$directory/state" "$directory/spool"

# SLURM authenticates its messages with munge, whose daemon runs as its own user. One that runs already will do.
if ! munge --no-input 2>/dev/null | unmunge >/dev/null 2>&1; then
    mkdir -p /run/munge
    chown munge:munge /run/munge
    runuser --user munge -- munged --force || fail "munged did not start: see /var/log/munge"
    cp /run/munge/munged.pid "$directory/munged.pid"
fi

# Ports of its own, so that it does not meet a real cluster or another one of these.
free_port() {
    local port
    while port=$((20000 + RANDOM % 10000)); (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do :; done
    echo "$port"
}

# FirstJobId             not the numbers of the last cluster's jobs: MPICH names shared memory after them, which stays
#                        where ranks were killed, and fails when it finds it
# SlurmUser, SlurmdUser  root, since there is nobody else in a container
# AuthType, CredType     munge
# ProctrackType, Task*   plain process groups: no cgroups in a container
# SelectType             CPUs one by one, so that several jobs share the node
# SlurmdParameters       believe NodeName's numbers, not the hardware's
# Preempt*               a job of a partition with a higher tier requeues others
# ReturnToService        a node that comes back is used again
# KillWait               seconds between TERM and KILL at the time limit
cat >"$directory/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
FirstJobId=$((RANDOM * 2000 + RANDOM % 2000 + 1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=$directory/state
SlurmdSpoolDir=$directory/spool
SlurmctldPidFile=$directory/slurmctld.pid
SlurmdPidFile=$directory/slurmd.pid
SlurmctldLogFile=$directory/slurmctld.log
SlurmdLogFile=$directory/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=bf_interval=1,batch_sched_delay=0
ReturnToService=2
KillWait=5
MpiDefault=none
MailProg=/bin/true
NodeName=$node NodeAddr=127.0.0.1 CPUs=4 RealMemory=16000 State=UNKNOWN
PartitionName=main Nodes=$node Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 State=UP
PartitionName=urgent Nodes=$node PriorityTier=10 State=UP
CONF

export SLURM_CONF="$directory/slurm.conf"
slurmctld -c || fail "slurmctld did not start: see $directory/slurmctld.log"  # -c: forget the jobs of last time
slurmd || fail "slurmd did not start: see $directory/slurmd.log"

# The node reports to the controller: a fraction of a second.
for _ in $(seq 100); do
    if [[ "$(sinfo --noheader --partition=main --format=%T 2>/dev/null)" == idle ]]; then
        echo "export SLURM_CONF=$SLURM_CONF"
        exit 0
    fi
    sleep 0.1
done
fail "the node did not come up: see $directory/slurmctld.log"
