"""A Slurm of one node with daemons, ports, key and files of its own, for as long as a test needs it."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "squeue", "srun", "scancel", "scontrol", "sinfo")
# Daemons are not on the path of everybody.
SEARCHED = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

# Neither an accounting database nor control groups, so that it runs in a plain container. The node may claim more than
# the machine has: no job waits for memory that none of these tests needs. A node that is set down stays down until it
# is resumed; one that did not answer for a while comes back by itself.
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={slurmctld_port}
SlurmdPort={slurmd_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SlurmdParameters=config_overrides
ReturnToService=1
KillWait=2
MinJobAge=7200
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=64000 Gres=gpu:1
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""

# Snakemake asks for the jobs of its name, and waits ten seconds longer each time that none has ended. So this squeue
# answers when one has ended, or after a time.
SQUEUE = """#!/bin/sh
case "$*" in *--name*) ;; *) exec {squeue} "$@";; esac
seen="{folder}/seen-$(echo "$*" | md5sum | cut -c-32)"
for _ in $(seq 60); do
  said=$({squeue} "$@") || exit
  ended=$(echo "$said" | grep -cvE 'PENDING|CONFIGURING|RUNNING|COMPLETING')
  [ "$ended" = "$(cat "$seen" 2>/dev/null)" ] || break
  sleep 0.3
done
echo "$ended" >"$seen"
echo "$said"
"""


def missing() -> list[str]:
    """Return the programs of Slurm and munge that this machine lacks."""
    return [name for name in (*DAEMONS, *CLIENTS, "setpriv") if shutil.which(name, path=SEARCHED) is None]


@dataclass(frozen=True)
class Slurm:
    """A running Slurm: its folder, and the environment in which its clients, and so Snakemake, find it."""

    folder: Path
    environment: dict[str, str]

    def ask(self, *command: str) -> str:
        """Run a client and return what it says."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{self.logs()}"
        return done.stdout

    def jobs(self) -> dict[str, dict[str, str]]:
        """Return what the scheduler knows of every job that it ever had, by its number."""
        lines = self.ask("scontrol", "show", "jobs", "--oneliner").splitlines()
        records = [dict(pair.split("=", 1) for pair in line.split() if "=" in pair) for line in lines]
        return {record["JobId"]: record for record in records if "JobId" in record}

    def known(self) -> dict[str, str]:
        """Return state by number of the jobs that wait, run or come to their end."""
        said = self.ask("squeue", "--noheader", "--format=%i %T")
        return dict(line.split() for line in said.splitlines())

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "".join(f"\n--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in logs)


@contextmanager
def slurm() -> Iterator[Slurm]:
    """Run munged, slurmctld and slurmd; in the end, whatever happened, cancel all jobs and stop all three."""
    # A socket's path has at most 107 characters, which a test's own folder may exceed.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(end_leftovers, folder)
        running = configure(folder)
        own = [f"--{what}-file={folder}/munge.{what}" for what in ("key", "log", "pid", "seed")]
        start(stack, running, "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *own)
        until((folder / "munge.socket").exists, running)
        start(stack, running, "slurmctld", "-D", "-c")
        start(stack, running, "slurmd", "-D")
        until(lambda: "idle" in said_by(running, "sinfo", "--noheader", "--format=%T"), running)
        stack.callback(empty, running)
        yield running


def configure(folder: Path) -> Slurm:
    """Write key and configuration, and the environment that leads to them."""
    for name in ("bin", "spool", "state"):
        (folder / name).mkdir()
    (folder / "munge.key").touch(mode=0o600)
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
    text = CONFIGURATION.format(folder=folder, host=host(), user=getpass.getuser(), **free_ports())
    (folder / "slurm.conf").write_text(text)
    # The plugin starts the steps of its jobs without SLURM_CONF, and srun would look for the cluster of the machine.
    srun = folder / "bin/srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which("srun", path=SEARCHED)} "$@"\n')
    srun.chmod(0o755)
    squeue = folder / "bin/squeue"
    squeue.write_text(SQUEUE.format(folder=folder, squeue=shutil.which("squeue", path=SEARCHED)))
    squeue.chmod(0o755)
    path = os.pathsep.join([str(folder / "bin"), SEARCHED])
    return Slurm(folder, os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path})


def start(stack: ExitStack, running: Slurm, program: str, *arguments: str) -> None:
    """Start a daemon, and stop it when the stack unwinds."""
    with (running.folder / f"{program}.said.log").open("w") as said:
        daemon = subprocess.Popen(
            # The kernel ends it with this process where nothing can unwind any more.
            ["setpriv", "--pdeathsig", "KILL", shutil.which(program, path=SEARCHED), *arguments],
            env=running.environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def stop() -> None:
        daemon.terminate()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    stack.callback(stop)


def empty(running: Slurm) -> None:
    """Cancel every job and wait until none is left: their processes would outlive the daemons."""
    said_by(running, "scancel", "--user", getpass.getuser())
    until(lambda: not said_by(running, "squeue", "--noheader"), running)


def end_leftovers(folder: Path) -> None:
    """Kill what is left of jobs: without control groups Slurm loses sight of a process whose parent it killed first."""
    mark = f"{folder}/bin".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:  # ended meanwhile, or of another user
            continue


def said_by(running: Slurm, *command: str) -> str:
    """Return what a client says, nothing where the daemons do not answer."""
    done = subprocess.run(command, env=running.environment, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout


def until(reached: Callable[[], object], running: Slurm, seconds: float = 60) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, f"not reached in {seconds} s{running.logs()}"
        time.sleep(0.2)


def host() -> str:
    """Return the name under which Slurm knows this machine."""
    return socket.gethostname().split(".")[0]


def free_ports() -> dict[str, int]:
    """Return two ports that nothing listens on."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return {"slurmctld_port": one.getsockname()[1], "slurmd_port": other.getsockname()[1]}
