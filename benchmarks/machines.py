"""Network namespaces that stand for machines: each has a name, an address and an interface `eth0`, joined by a switch."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def address(i: int) -> str:
    return f"10.77.0.{i + 1}"


def address6(i: int) -> str:
    return f"fd77::{i + 1}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def permitted() -> bool:
    """Containers may forbid namespaces to root."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "ss", "unshare"))):
        return False
    probe = ["unshare", "--net", "--mount", "--uts", "true"]
    return subprocess.run(probe, capture_output=True).returncode == 0


NOBODY = "02:00:00:00:00:00"  # no machine's link address
NEEDS = "network namespaces need root, iproute2 (ip, ss) and util-linux (unshare)"


# stands for ssh: the first word is the machine, the rest a command for its shell; the folder `disk` is the machine's own
SHELL = """#!/bin/sh
machine=$1; shift
exec unshare --uts sh -c 'hostname "$0"; exec ip netns exec "$0" sh -c "mount -t tmpfs none {disk}; $1"' "$machine" "$*"
"""


class Machines:
    def __init__(self, count: int, folder: Path):
        prefix = f"m{os.getpid() % 100000}"
        self.names = [f"{prefix}-{i + 1}" for i in range(count)]
        self.switch = f"{prefix}-switch"
        self.disk, self.hostfile, self.shell = folder / "disk", folder / "hosts", folder / "shell"
        self.disk.mkdir()
        self.hostfile.write_text("".join(f"{name} slots=1\n" for name in self.names))
        self.shell.write_text(SHELL.format(disk=self.disk))
        self.shell.chmod(0o755)
        self.relay: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        hosts = "".join(f"{address(i)} {name}\n" for i, name in enumerate(self.names))
        for i, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"port{i}", "netns", self.switch)
            ip("-n", self.switch, "link", "set", f"port{i}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"{address(i)}/24", "dev", "eth0")
            ip("-n", name, "addr", "add", f"{address6(i)}/64", "dev", "eth0", "nodad")
            for device in ("eth0", "lo"):
                ip("-n", name, "link", "set", device, "up")
            etc = Path("/etc/netns") / name  # `ip netns exec` shows its files in /etc
            etc.mkdir(parents=True)
            (etc / "hosts").write_text("127.0.0.1 localhost\n" + hosts)

    def stop(self) -> None:
        self._stop_relay()
        for name in (*self.names, self.switch):
            pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
            for pid in map(int, pids):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)

    def limit(self, rate: float, delay: float, highest: float | None = None, loss: float = 0.0) -> None:
        """Each machine sends at most `rate` Mbit/s from now on, and each frame arrives `delay` ms later.

        With `highest`, the delay of two machines lies between the two. A share `loss` of all frames gets lost.
        The kernel limits the rate. The delay is made by a relay in the place of the bridge, because many kernels have no netem.
        """
        burst = int(min(max(rate * 500, 8000), 64_000))  # bytes: 4 ms, and no larger than a frame that TCP leaves to the card
        for name in self.names:
            ip("-n", name, "link", "set", "eth0", "gso_max_size", str(burst))
            limits = f"rate {rate}mbit burst {max(burst, rate * 500):.0f} latency 1s".split()
            tc = ["tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "tbf", *limits]
            subprocess.run(tc, check=True, capture_output=True)
        self._stop_relay()
        ports = [f"port{i}" for i in range(len(self.names))]
        for port in ports:
            ip("-n", self.switch, "link", "set", port, *(["nomaster"] if delay else ["master", "bridge"]))
        if delay:
            program = Path(__file__).with_name("delay.py")
            given = [str(number) for number in (delay, highest or delay, loss)]
            words = ["ip", "netns", "exec", self.switch, sys.executable, str(program), *given, *ports]
            self.relay = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)

    def _stop_relay(self) -> None:
        if self.relay is not None:
            self.relay.kill()
            self.relay.wait()
            self.relay = None

    def cut(self, i: int) -> None:
        """Machine i can no longer reach the others, and nobody is told so."""
        ip("-n", self.switch, "link", "set", f"port{i}", "down")

    def mend(self, i: int) -> None:
        """Machine i, which was cut, can reach the others again."""
        ip("-n", self.switch, "link", "set", f"port{i}", "up")

    def separate(self, i: int, j: int) -> None:
        """Frames between these two machines are lost from now on; nobody is told so."""
        for here, there in ((i, j), (j, i)):
            ip(
                "-n",
                self.names[here],
                "neigh",
                "replace",
                address(there),
                "lladdr",
                NOBODY,
                "dev",
                "eth0",
                "nud",
                "permanent",
            )

    def reunite(self, i: int, j: int) -> None:
        """These two machines, which were separated, can reach each other again."""
        for here, there in ((i, j), (j, i)):
            ip("-n", self.names[here], "neigh", "del", address(there), "dev", "eth0")

    def reject(self, i: int, j: int, rule: str = "-A") -> None:
        """A firewall of machine i rejects packets from machine j, which is told so; with the rule "-D" no longer."""
        words = f"iptables {rule} INPUT -s {address(j)} -p tcp -j REJECT --reject-with tcp-reset"
        subprocess.run(self.on(i, *words.split()), check=True, capture_output=True)

    def refuse_connections(self, i: int) -> None:
        """Machine i dials, and nobody can dial it: as behind a firewall, or a router that translates addresses."""
        subprocess.run(self.on(i, *"iptables -A INPUT -p tcp --syn -j DROP".split()), check=True, capture_output=True)

    def limit_ports(self, ports: range) -> None:
        """Sockets that ask for any port get one of these."""
        for i in range(len(self.names)):
            words = f"echo {ports.start} {ports.stop - 1} > /proc/sys/net/ipv4/ip_local_port_range"
            subprocess.run(self.on(i, "sh", "-c", words), check=True)

    def on(self, i: int, *words: object) -> list[str]:
        """The command line that runs these words on machine i."""
        inner = 'hostname "$0"; exec ip netns exec "$0" "$@"'
        return ["unshare", "--uts", "sh", "-c", inner, self.names[i], *map(str, words)]

    def listening(self, i: int) -> list[tuple[str, ...]]:
        """(address, port) of every TCP socket that listens on machine i."""
        out = subprocess.run(self.on(i, "ss", "-Hltn"), capture_output=True, text=True, check=True).stdout
        return [tuple(line.split()[3].rsplit(":", 1)) for line in out.splitlines()]


@contextmanager
def machines(count: int, folder: Path) -> Iterator[Machines]:
    made = Machines(count, folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()
