"""Two machines with kernels of their own: guests of qemu that share a folder by NFS, which only a kernel can mount.

Their root is this machine's, read-only beneath a layer in memory, so all that is installed here is there too. Both see
`folder`/out as /mnt, at once, for a script and what it leaves behind; qemu emulates their processors, so that they run
where there is no KVM, at a twentieth of the speed. Needs root, apt-get and 10 GiB of memory.
"""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.ports import free_port

PACKAGES = ("qemu-system-x86", "busybox-static", "nfs-kernel-server", "nfs-common", "kmod", "cpio")
MODULES = ("virtio_pci", "virtio_net", "9p", "9pnet_virtio", "overlay", "nfsd", "nfs", "nfsv4")
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc && mount -t devtmpfs dev /dev
for module in /modules/*; do insmod $module; done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=512000 root /below
mount -t tmpfs -o size=3g tmpfs /layer && mkdir /layer/changes /layer/work
mount -t overlay -o lowerdir=/below,upperdir=/layer/changes,workdir=/layer/work overlay /root
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=512000 out /root/mnt
mount -t proc proc /root/proc && mount -t sysfs sys /root/sys && mount -t devtmpfs dev /root/dev
mkdir -p /root/dev/shm && mount -t tmpfs tmpfs /root/dev/shm
for empty in /root/run /root/tmp; do mount -t tmpfs tmpfs $empty; done
name=$(sed 's/.*name=\\([a-z]*\\).*/\\1/' /proc/cmdline)
chroot /root /bin/bash /mnt/script.sh $name > /root/mnt/$name.console 2>&1
poweroff -f
"""


def run(*command, **more):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, **more).stdout


class Guests:
    """A server and a client, which run `script` with their name as its argument, to its end."""

    def __init__(self, folder, script):
        self.folder, self.processes = folder, []
        (folder / "out").mkdir(exist_ok=True)
        shutil.copy(script, folder / "out" / "script.sh")
        self.kernel = unpacked_kernel(folder)
        self.init = packed_init(folder)

    def start(self):
        port = free_port()
        for number, (name, line) in enumerate((("server", "listen"), ("client", "connect"))):
            shared = []
            for tag, path, more in (("root", "/", ",readonly=on"), ("out", self.folder / "out", "")):
                shared += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{more}",
                           "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]  # fmt: skip
            command = [
                "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "4096", "-nodefaults",
                "-display", "none", "-no-reboot", "-kernel", self.kernel, "-initrd", self.init, *shared,
                "-append", f"quiet net.ifnames=0 name={name}", "-netdev", f"socket,id=net,{line}=127.0.0.1:{port}",
                "-device", f"virtio-net-pci,netdev=net,mac=52:54:00:00:00:0{number}",
            ]  # fmt: skip
            self.processes.append(subprocess.Popen(list(map(str, command))))
            while line == "listen" and not listens(port):  # a client that comes too early stays without a network
                assert self.processes[-1].poll() is None, "the server's qemu ended"
                time.sleep(0.1)

    def wait(self):
        for process in self.processes:
            process.wait()

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()


def listens(port):
    """Whether some process listens there, without connecting: qemu takes the first connection for the other guest."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(int(row[1].split(":")[1], 16) == port and row[3] == "0A" for row in rows)


def check_guests():
    """Skip where they can't be had."""
    if os.geteuid() or shutil.which("apt-get") is None:
        pytest.skip("left out: guests need root, and apt-get for qemu and their kernel")
    more = {"env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, "capture_output": True, "text": True}
    for command in (["update", "-q"], ["install", "-qy", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(["apt-get", *command], **more)
        if done.returncode:
            pytest.skip(f"left out: `apt-get {' '.join(command)}` fails: {done.stderr.strip().splitlines()[-1:]}")


def unpacked_kernel(folder):
    """Debian's, of which nothing is installed."""
    package = re.search(r"Depends: (\S+)", run("apt-cache", "depends", "linux-image-amd64").decode())[1]
    run("apt-get", "download", "-q", package, cwd=folder)
    [file] = folder.glob("linux-image-*.deb")
    run("dpkg", "-x", file, folder / "kernel")
    [image] = (folder / "kernel" / "boot").glob("vmlinuz-*")
    return image


def packed_init(folder):
    """What a guest starts from: busybox, INIT, and the modules in the order in which they need each other."""
    root, [version] = folder / "init", [path.name for path in (folder / "kernel" / "lib" / "modules").iterdir()]
    run("depmod", "-b", folder / "kernel", version)
    for name in ("bin", "modules", "proc", "dev", "below", "layer", "root"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")
    needed = {}
    for module in MODULES:
        shown = run("modprobe", "-d", folder / "kernel", "-S", version, "--show-depends", module).decode()
        needed |= dict.fromkeys(re.findall(r"^insmod (\S+)", shown, re.MULTILINE))
    for number, module in enumerate(needed):
        shutil.copy(module, root / "modules" / f"{number:03}-{Path(module).name}")
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)
    packed = run("cpio", "-o", "-H", "newc", "--quiet", cwd=root,
                 input=b"\n".join(str(path.relative_to(root)).encode() for path in root.rglob("*")))  # fmt: skip
    (folder / "init.cpio").write_bytes(packed)
    return folder / "init.cpio"
