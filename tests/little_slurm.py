"""A real Slurm of a few nodes on this machine: the daemons of Debian's slurm-wlm run on machines of namespaces."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

# Machines on this one: each with a network address, a host name and processes of its own, on a network of their own.
#
# They are Linux namespaces, so nothing of them is seen outside, and each machine's death is that of all its processes.
# They share this machine's files, as nodes share a network file system. Needs root.


NETWORK = "10.99.0"
HEAD = "head"
IDLE = "while :; do sleep 0.5; done"  # a shell, as what it adopts must be waited for


def check_machines():
    """Skip where none can be made."""
    if shutil.which("ip") is None:
        pytest.skip("left out: there is no `ip` (iproute2), which gives machines their network")
    if subprocess.run(
        ["unshare", "--net", "--uts", "--pid", "--mount", "--fork", "true"], capture_output=True
    ).returncode:
        pytest.skip("left out: namespaces need root, and a container with its capabilities")


class Machines:
    """A head with the address .254 and nodes with .1, .2, ..., which know each other by name."""

    def __init__(self, folder, names):
        self.folder, self.names, self.inits, self.started = folder, names, {}, []
        self.addresses = {HEAD: f"{NETWORK}.254"} | {name: f"{NETWORK}.{n}" for n, name in enumerate(names, start=1)}
        self._init(HEAD, [])
        self._ip("link", "set", "lo", "up")
        self._ip("link", "add", "bridge", "type", "bridge")
        self._ip("address", "add", f"{self.addresses[HEAD]}/24", "dev", "bridge")
        self._ip("link", "set", "bridge", "up")
        for name in names:
            self.boot(name)

    def _init(self, name, inside):
        """Start the machine's first process; note it under the machine's name."""
        own = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [*inside, "unshare", *own, "bash", "-c", f"hostname {name}; {IDLE}"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # unshare complains when it is killed
        self.started.append(process)
        deadline = time.monotonic() + 60
        while (init := first_of_a_namespace(process.pid)) is None or self.run_in(init, "hostname").strip() != name:
            assert process.poll() is None, f"{name} did not start"
            assert time.monotonic() < deadline, f"{name} did not start in 60 s"
            time.sleep(0.05)
        self.inits[name] = init
        # As on Debian and Ubuntu, a host's own name leads to its loopback.
        known = {other: "127.0.1.1" if other == name != HEAD else at for other, at in self.addresses.items()}
        hosts = self.folder / f"hosts-{name}"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{at} {other}\n" for other, at in known.items()))
        self.run(name, "mount", "--bind", hosts, "/etc/hosts")

    def _ip(self, *arguments):
        """In the head's network, with this machine's numbers of processes."""
        enter = ["nsenter", "--target", str(self.inits[HEAD]), "--net"]
        subprocess.run([*enter, "ip", *map(str, arguments)], check=True)

    def boot(self, name):
        """Switch a node on, or on again."""
        self._init(name, ["nsenter", "--target", str(self.inits[HEAD]), "--mount", "--pid"])
        port = f"to-{name}"
        self._ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", self.inits[name])
        self._ip("link", "set", port, "master", "bridge", "up")
        for what in (f"address add {self.addresses[name]}/24 dev eth0", "link set eth0 up", "link set lo up"):
            self.run(name, "ip", *what.split())

    def kill(self, name):
        """As when its power fails: none of its processes can do anything more."""
        os.kill(self.inits.pop(name), signal.SIGKILL)
        port = Path(f"/proc/{self.inits[HEAD]}/net/dev")
        while f"to-{name}:" in port.read_text():  # its network goes a moment later
            time.sleep(0.05)

    def command(self, name, *arguments, cwd="/"):
        return [*entered(self.inits[name]), "env", "-C", str(cwd), *map(str, arguments)]

    def run(self, name, *arguments, cwd="/", env=None, check=True):
        """What a command says on that machine."""
        done = subprocess.run(
            self.command(name, *arguments, cwd=cwd), capture_output=True, text=True, env=os.environ | (env or {})
        )
        assert not check or done.returncode == 0, f"{name}: {arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def run_in(self, init, *arguments):
        return subprocess.run([*entered(init), *arguments], capture_output=True, text=True).stdout

    def start(self, name, *arguments, log, cwd="/", env=None):
        """Start a command there and go on."""
        with log.open("ab") as file:
            return subprocess.Popen(
                self.command(name, *arguments, cwd=cwd), stdout=file, stderr=file, env=os.environ | (env or {})
            )  # fmt: skip

    def close(self):
        for name in (*(name for name in self.inits if name != HEAD), HEAD):
            os.kill(self.inits[name], signal.SIGKILL)
        for process in self.started:
            process.wait()


def entered(init):
    return ["nsenter", "--target", str(init), "--net", "--uts", "--mount", "--pid"]


def first_of_a_namespace(pid):
    """The process at or below `pid` that is the first one of a namespace of processes."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        if status.partition("NSpid:")[2].split("\n")[0].split()[-1] == "1" and pid != 1:
            return pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if found := first_of_a_namespace(int(child)):
                return found
    except (FileNotFoundError, ProcessLookupError):
        pass
    return None


# Slurm on them

DAEMONS = ("slurmctld", "slurmd", "munged")
CONFIG = """
ClusterName=little
SlurmctldHost={head}
SlurmUser=root
AuthType=auth/munge
# The second is how long Slurm waits before it starts a job again, by default 120 s.
AuthInfo=socket={folder}/munge.socket,cred_expire=15
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=10
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def check_slurm():
    """Skip where Slurm can't be had; install it where apt-get has it."""
    check_machines()
    if all(map(shutil.which, DAEMONS)):
        return
    if shutil.which("apt-get") is None:
        pytest.skip("left out: Slurm is not installed, and there is no apt-get that could install it")
    install = ["apt-get", "install", "-qy", "--no-install-recommends", "slurm-wlm", "munge"]
    for command in (["apt-get", "update", "-q"], install):
        done = subprocess.run(
            command, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, capture_output=True, text=True
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"left out: `{' '.join(command)}` fails: {done.stderr.strip().splitlines()[-1:]}")


class LittleSlurm(Machines):
    """Its controller runs on the head, where jobs are queued too."""

    def __init__(self, folder, names):
        super().__init__(folder, names)
        for made in ("state", *(f"spool-{name}" for name in names)):
            (folder / made).mkdir()
        nodes = (f"NodeName={name} NodeAddr={self.addresses[name]} CPUs=1 State=UNKNOWN" for name in names)
        self.config = folder / "slurm.conf"
        self.config.write_text(CONFIG.format(head=HEAD, folder=folder, nodes="\n".join(nodes)))
        self.env = {"SLURM_CONF": str(self.config)}
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"key": key, "seed": folder / "munge.seed"} | {
            what: folder / f"munge.{what}" for what in ("socket", "pid", "log")
        }
        places = [f"--{what}-file={path}" for what, path in files.items() if what != "socket"]
        self.daemon(HEAD, "munged", "--foreground", "--force", f"--socket={files['socket']}", *places)
        self.daemon(HEAD, "slurmctld", "-D", "-i")
        for name in names:
            self.join(name)
        self.wait_for(lambda: self.slurm("sinfo", "--noheader", "--format=%t %D").split() == ["idle", str(len(names))])

    def daemon(self, name, *command):
        self.started.append(self.start(name, *command, log=self.folder / f"{command[0]}-{name}.log", env=self.env))

    def join(self, name):
        self.daemon(name, "slurmd", "-D", "-N", name)

    def come_back(self, name):
        self.boot(name)
        self.join(name)

    def slurm(self, *command, cwd="/", env=None):
        return self.run(HEAD, *command, cwd=cwd, env=self.env | (env or {}), check=False).strip()

    def submit(self, script, *options, cwd, env):
        """Queue a job; its number."""
        done = self.run(HEAD, "sbatch", "--parsable", *options, script, cwd=cwd, env=self.env | env)
        return done.strip()

    def state(self, job):
        """Such as PENDING, RUNNING, COMPLETED."""
        shown = self.slurm("scontrol", "show", "job", job)
        return dict(part.split("=", 1) for part in shown.split() if "=" in part)

    def wait_for(self, happened, seconds=240):
        deadline = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > deadline:
                pytest.fail("\n".join([self.slurm("scontrol", "show", "job"), self.slurm("sinfo", "-lN"), self.logs()]))
            time.sleep(0.3)

    def logs(self):
        found = [*self.folder.glob("*.log"), *self.folder.rglob("logs/*/*.log"), *self.folder.rglob("forage-*.out")]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in found)
