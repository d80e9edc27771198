"""TLS sockets, gRPC and Eclipse Zenoh between sites: seconds of an exchange, lost peers, attacks.

    pip install cryptography eclipse-zenoh grpcio
    python -m benchmarks.site_engines                                  # as root, about 20 minutes
    python -m benchmarks.site_engines --parts speed --links loopback --neighbours 2 --engines tcp,tls

In an exchange every process sends an array to each of its neighbours and has received theirs. All engines have mutual TLS 1.3
and one connection for each pair, except for "tcp", which is the code of "tls" without TLS: the reference. On the link "100:20"
each process has a network namespace of its own (`benchmarks.machines`), sends at most 100 Mbit/s, and what it sends arrives
20 ms later. "dnasa" is our engine, "tls" the shortest program with the same sockets.

`--parts` are speed; loss: the seconds until a peer that was killed, stopped or cut off is reported, with engines that give up a
peer after 3 silent seconds; attack: what strangers at the port of a process do to it.
"""

import argparse
import datetime
import ipaddress
import json
import math
import os
import resource
import secrets
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from benchmarks.machines import NEEDS, Machines, machines, permitted

LOOPBACK = "loopback"
ENGINES = ["tcp", "tls", "dnasa", "grpc", "zenoh"]
PARTS = ["speed", "loss", "attack"]
SIZES = {1_000: "1 kB", 40_000_000: "40 MB"}
STRANGERS = 200


# ---------------------------------------------------------------- keys


def make_keys(folder: Path, sites: int) -> None:
    """A folder for each site, one for a revoked certificate and one for a certificate of another authority."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise SystemExit("Certificates need cryptography: pip install cryptography") from None
    pem = serialization.Encoding.PEM
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    end = start + datetime.timedelta(days=2)

    def signed(name: str, own: Any, issuer: str, signer: Any, *extensions: Any) -> Any:
        subject, by = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in (name, issuer))
        made = x509.CertificateBuilder(by, subject, own.public_key(), x509.random_serial_number(), start, end)
        for extension in extensions:
            made = made.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return made.sign(signer, hashes.SHA256())

    def authority() -> tuple[Any, Any]:
        key = ec.generate_private_key(ec.SECP256R1())
        return key, signed("authority", key, "authority", key, x509.BasicConstraints(ca=True, path_length=0))

    def bundle(name: str, signer: Any, address: str) -> Any:
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", address)]
        names = x509.SubjectAlternativeName([x509.DNSName(name), *hosts])
        certificate = signed(name, key, "authority", signer, names)
        plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / name).mkdir()
        (folder / name / "site.crt").write_bytes(certificate.public_bytes(pem))
        (folder / name / "site.key").touch(0o600)
        (folder / name / "site.key").write_bytes(key.private_bytes(pem, *plain))
        return certificate

    key, root = authority()
    for i in range(sites):
        bundle(f"site{i}", key, f"10.77.0.{i + 1}")
    serial = bundle("revoked", key, "127.0.0.1").serial_number
    bundle("stranger", authority()[0], "127.0.0.1")
    entry = x509.RevokedCertificateBuilder(serial, start).build()
    revoked = x509.CertificateRevocationListBuilder(root.subject, start, end, revoked_certificates=[entry])
    for i in range(sites):
        (folder / f"site{i}" / "authority.crt").write_bytes(root.public_bytes(pem))
        (folder / f"site{i}" / "revoked.pem").write_bytes(revoked.sign(key, hashes.SHA256()).public_bytes(pem))


# ---------------------------------------------------------------- processes


class Lost(Exception):
    """A connection that should have lasted."""


class Node:
    """A process of `benchmarks.site_engines_node`, which answers a line with a line and also reports lost peers."""

    def __init__(self, engine: str, i: int, addresses: list[Any], folder: Path, made: Machines | None):
        words = [
            sys.executable,
            "-m",
            "benchmarks.site_engines_node",
            engine,
            str(i),
            str(folder),
            json.dumps(addresses),
        ]
        self.address = addresses[i]
        self.log = folder / f"{engine}-{i}.log"
        environment = {"GRPC_VERBOSITY": "INFO"} | os.environ
        self.process = subprocess.Popen(
            made.on(i, *words) if made else words,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
        )

    def ask(self, size: int, repeat: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([size, repeat]) + "\n")
        self.process.stdin.flush()

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"A process has failed:\n{self.log.read_text()[-3000:]}")
        return json.loads(line)

    def answer(self) -> dict[str, Any]:
        found = self.line()
        if "lost" in found:
            raise Lost(found["why"])
        return found

    def memory(self) -> float:
        """Resident megabytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6


@contextmanager
def nodes(engine: str, count: int, folder: Path, made: Machines | None) -> Iterator[list[Node]]:
    addresses = [("127.0.0.1", free_port()) if made is None else (f"10.77.0.{i + 1}", 7400) for i in range(count)]
    started = [Node(engine, i, addresses, folder, made) for i in range(count)]
    try:
        for node in started:
            node.answer()  # it is connected with all others
        yield started
    finally:
        for node in started:
            node.process.kill()
            node.process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def exchange(started: list[Node], size: int, repeat: int) -> dict[str, float]:
    for node in started:
        node.ask(size, repeat)
    found = [node.answer() for node in started]
    seconds = statistics.median(second for one in found for second in one["seconds"])
    return {"seconds": seconds, "cpu": sum(one["cpu"] for one in found) / repeat}


# ---------------------------------------------------------------- parts


def speed(engines: list[str], links: list[str], neighbours: list[int], folder: Path) -> None:
    print("| link | neighbours | size | engine | seconds | to tcp | CPU seconds, all processes | to tcp |", flush=True)
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for link in links:
        for count in neighbours:
            with limited(link, count + 1) as made:
                for size in SIZES:
                    measured = [alternated(engines, count, size, link, folder, made) for _ in range(rounds(link))]
                    for engine in engines:
                        cells = [against(measured, engine, engines[0], key) for key in ("seconds", "cpu")]
                        print(f"| {link} | {count} | {SIZES[size]} | {engine} | {' | '.join(cells)} |", flush=True)


def against(measured: list[Any], engine: str, reference: str, key: str) -> str:
    value, other = (statistics.median(one[name][key] for one in measured) for name in (engine, reference))
    return f"{value:.4g} | {value / other:.2f}"


def alternated(
    engines: list[str], neighbours: int, size: int, link: str, folder: Path, made: Machines | None
) -> dict[str, dict[str, float]]:
    found = {}
    for engine in engines:
        with nodes(engine, neighbours + 1, folder, made) as started:
            try:
                found[engine] = exchange(started, size, 100 if size < 1_000_000 else 2)
            except Lost as error:
                print(f"{engine} has lost a connection: {error}", file=sys.stderr, flush=True)
                found[engine] = {"seconds": math.nan, "cpu": math.nan}
    return found


def rounds(link: str) -> int:
    return 1 if link.endswith(":20") else 3


@contextmanager
def limited(link: str, count: int) -> Iterator[Machines | None]:
    if link == LOOPBACK:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder, machines(count, Path(folder)) as made:
        made.limit(*map(float, link.split(":")))
        yield made


def loss(engines: list[str], folder: Path) -> None:
    """The middle one of three processes disappears: the first dialled it, the last was dialled by it."""
    print("\n| engine | the peer was | noticed after seconds: by the one that dialled it | by the one it dialled |")
    print("|---|---|---|---|", flush=True)
    for engine in engines:
        for how in ("killed", "stopped", "cut off"):
            with limited("1000:0" if permitted() else LOOPBACK, 3) as made, nodes(engine, 3, folder, made) as started:
                exchange(started, 1000, 20)
                time.sleep(2)
                start = time.time()
                if how == "cut off":
                    if made is None:
                        continue
                    made.cut(1)
                else:
                    started[1].process.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
                cells = [noticed(node, start) for node in (started[0], started[2])]
                print(f"| {engine} | {how} | {' | '.join(cells)} |", flush=True)


def noticed(node: Node, start: float) -> str:
    signal.alarm(30)
    try:
        found = node.line()
        return f"{found['at'] - start:.2f} ({found['why'][:70]})"
    except TimeoutError:
        return "not within 30"
    finally:
        signal.alarm(0)


def attack(engines: list[str], folder: Path) -> None:
    """Strangers at the port of the second process, which exchanges with the first meanwhile."""
    heads = ["engine", "strangers", "what happened to them", "exchange of 1 kB, ms", "a newcomer's handshake, ms"]
    print(f"\n| {' | '.join([*heads, 'MB more', 'logged with address'])} |\n{'|---' * 7}|", flush=True)
    for engine in engines:
        with nodes(engine, 2, folder, None) as started:
            target = started[1]
            address = target.address
            exchange(started, 1000, 500)
            memory = target.memory()
            for name, strangers in ATTACKS.items():
                with strangers(address, folder) as (ports, fate):
                    found = exchange(started, 1000, 500)["seconds"]
                    newcomer = handshake(address, folder, "site0")[0]
                    more = target.memory() - memory
                    happened = fate()
                text = target.log.read_text()
                logged = sum(f":{port}" in text for port in ports)
                times = [f"{1000 * found:.2f}", f"{1000 * newcomer:.0f}"]
                row = [engine, name, happened, *times, f"{more:.1f}", f"{logged} of {len(ports)}"]
                print(f"| {' | '.join(row)} |", flush=True)


@contextmanager
def silent(address: tuple[str, int], folder: Path) -> Iterator[Any]:
    with many(address) as opened:
        yield ports_of(opened), lambda: f"{still_open(opened, 15)} of {len(opened)} open after 15 s"


@contextmanager
def random_bytes(address: tuple[str, int], folder: Path) -> Iterator[Any]:
    with many(address) as opened:
        for one in opened:
            with suppress(OSError):
                one.sendall(secrets.token_bytes(4096))
        yield ports_of(opened), lambda: f"{still_open(opened, 1)} of {len(opened)} open after 1 s"


def with_certificate(name: str) -> Any:
    def strangers(address: tuple[str, int], folder: Path) -> Any:
        done = [handshake(address, folder, name) for _ in range(20)]
        return nullcontext(([port for _, port, _ in done], lambda: done[-1][2]))

    return strangers


ATTACKS: dict[str, Any] = {
    f"{STRANGERS} silent connections": silent,
    f"{STRANGERS} that send random bytes": random_bytes,
    "20 with another authority's certificate": with_certificate("stranger"),
    "20 with a revoked certificate": with_certificate("revoked"),
}


@contextmanager
def many(address: tuple[str, int]) -> Iterator[list[socket.socket]]:
    opened = [socket.create_connection(address, 5) for _ in range(STRANGERS)]
    time.sleep(0.5)
    try:
        yield opened
    finally:
        for one in opened:
            one.close()


def ports_of(opened: list[socket.socket]) -> list[int]:
    return [one.getsockname()[1] for one in opened]


def still_open(opened: list[socket.socket], seconds: float) -> int:
    time.sleep(seconds)
    count = 0
    for one in opened:
        one.setblocking(False)
        try:
            while one.recv(65536):
                pass
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


def handshake(address: tuple[str, int], folder: Path, name: str) -> tuple[float, int, str]:
    """Seconds until the server's part was done, the port it was called from, and what came of the certificate."""
    context = ssl.create_default_context(cafile=folder / "site0" / "authority.crt")
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])  # gRPC asks for it
    context.load_cert_chain(folder / name / "site.crt", folder / name / "site.key")
    raw = socket.create_connection(address, 15)
    port, start = raw.getsockname()[1], time.perf_counter()
    try:
        secure = context.wrap_socket(raw)  # TLS 1.3: the server judges the certificate after this
    except OSError as error:
        return math.inf, port, f"no handshake: {error}"
    seconds = time.perf_counter() - start
    secure.settimeout(0.3)
    with secure:
        try:
            return seconds, port, "accepted" if secure.recv(1) else "closed"
        except TimeoutError:
            return seconds, port, "accepted"
        except OSError as error:
            return seconds, port, f"refused: {getattr(error, 'reason', error)}"


# ---------------------------------------------------------------- the command


def words_of(known: list[str]) -> Any:
    def read(value: str) -> list[str]:
        words = value.split(",")
        if unknown := set(words) - set(known):
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}. Choose from: {', '.join(known)}")
        return words

    return read


def late(*_: Any) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=words_of(PARTS), default=PARTS)
    parser.add_argument("--engines", type=words_of(ENGINES), default=ENGINES)
    parser.add_argument("--links", type=lambda value: value.split(","), default=[LOOPBACK, "1000:0", "100:20"])
    parser.add_argument("--neighbours", type=lambda value: [int(word) for word in value.split(",")], default=[2, 5])
    options = parser.parse_args()
    if "speed" in options.parts and set(options.links) - {LOOPBACK} and not permitted():
        parser.error(f"{NEEDS}; --links loopback does without")
    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the namespaces are removed
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_keys(folder, sites=max(3, *options.neighbours, 2) + 1)
        if "speed" in options.parts:
            speed(options.engines, options.links, options.neighbours, folder)
        if "loss" in options.parts:
            loss(options.engines, folder)
        if "attack" in options.parts:
            attack([engine for engine in options.engines if engine != "tcp"], folder)


if __name__ == "__main__":
    main()
