"""A process of `benchmarks.site_engines`: connects with all others, reads jobs, one in each line, prints the results."""

import itertools
import json
import os
import queue
import resource
import select
import socket
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

BEAT, PATIENCE = 1.0, 3.0  # seconds from one sign of life to the next, and until a silent peer is given up
LARGEST = 100_000_000  # bytes of a message
HANDSHAKES, HANDSHAKE = 32, 5.0  # at most so many at a time, then the oldest is given up; seconds for each
LATER = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Zenoh logs to the standard output


def answer(found: dict[str, Any]) -> None:
    print(json.dumps(found), file=ANSWERS, flush=True)


class Engine:
    """Connects with all others; the first of two dials."""

    def __init__(self, own: int, addresses: list[Any], keys: Path):
        self.own, self.addresses, self.keys = own, [tuple(address) for address in addresses], keys
        self.others = [(own + k) % len(addresses) for k in range(1, len(addresses))]
        self.inboxes: dict[int, queue.Queue[Any]] = {j: queue.Queue() for j in self.others}
        self.connect()

    def connect(self) -> None:
        raise NotImplementedError

    def send(self, array: Any) -> None:
        """To all others."""
        raise NotImplementedError

    def exchange(self, array: Any) -> dict[int, Any]:
        self.send(array)
        return {j: np.frombuffer(inbox.get(), np.float32) for j, inbox in self.inboxes.items()}

    def lost(self, j: int, why: object) -> None:
        answer({"lost": j, "why": " ".join(str(why).split()), "at": time.time()})

    def pem(self, name: str) -> bytes:
        return (self.keys / name).read_bytes()


# ---------------------------------------------------------------- sockets


class Connection(threading.Thread):
    """Both directions of one socket: OpenSSL forbids two threads for one connection."""

    def __init__(self, sock: socket.socket, inbox: "queue.Queue[Any]", lost: Callable[[object], None]):
        super().__init__(daemon=True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        self.sock, self.inbox, self.lost = sock, inbox, lost
        self.outbox: deque[memoryview] = deque()
        self.woken = os.eventfd(0, os.EFD_NONBLOCK)
        self.header = bytearray(8)
        self.body: bytearray | None = None
        self.rest = memoryview(self.header)  # what is still to be received
        self.buffers: Iterator[bytearray] = iter(())
        self.length = 0
        self.start()

    def send(self, data: memoryview) -> None:
        header = len(data).to_bytes(8, "big")
        small = len(data) < 8000  # one TLS record
        self.outbox.extend([memoryview(header + data)] if small else [memoryview(header), data])
        os.eventfd_write(self.woken, 1)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self.woken, select.POLLIN)
        heard = beat = time.monotonic()
        try:
            while True:
                read, wrote = self.read(), self.write()
                now = time.monotonic()
                heard = now if read else heard
                if now > heard + PATIENCE:
                    raise TimeoutError(f"silent for {PATIENCE:g} s")
                if now > beat + BEAT and not self.outbox:  # while it receives, too
                    self.outbox.append(memoryview(bytes(8)))
                    beat = now
                if read or wrote or beat == now:
                    continue
                poll.register(self.sock, select.POLLIN | (select.POLLOUT if self.outbox else 0))
                poll.poll(1000 * BEAT / 4)
                with suppress(BlockingIOError):
                    os.eventfd_read(self.woken)
        except OSError as error:
            self.lost(error)

    def read(self) -> bool:
        try:
            count = self.sock.recv_into(self.rest)
        except LATER:
            return False
        if not count:
            raise ConnectionError("closed")
        self.rest = self.rest[count:]
        if not self.rest:
            self.received()
        return True

    def received(self) -> None:
        """A header or a body is complete."""
        if self.body is not None:
            self.inbox.put(self.body)
            self.body = None
        elif length := int.from_bytes(self.header, "big"):
            if length > LARGEST:
                raise ConnectionError(f"announced {length} bytes")
            if length != self.length:  # a peer is at most one exchange ahead, so two buffers do
                self.length, self.buffers = length, itertools.cycle([bytearray(length), bytearray(length)])
            self.body = next(self.buffers)
        self.rest = memoryview(self.header if self.body is None else self.body)

    def write(self) -> bool:
        if not self.outbox:
            return False
        try:
            count = self.sock.send(self.outbox[0])
        except LATER:
            return False
        self.outbox[0] = self.outbox[0][count:]
        if not self.outbox[0]:
            self.outbox.popleft()
        return True


class Sockets(Engine):
    secure = True

    def connect(self) -> None:
        self.connections: dict[int, Connection] = {}
        self.complete = threading.Event()
        self.handshakes: deque[socket.socket] = deque()
        server = socket.create_server(self.addresses[self.own], backlog=256)
        threading.Thread(target=self.accept, args=(server,), daemon=True).start()
        for j in range(self.own + 1, len(self.addresses)):
            self.add(j, self.dial(j))
        self.complete.wait()

    def dial(self, j: int) -> socket.socket:
        while True:
            try:
                raw = socket.create_connection(self.addresses[j], HANDSHAKE)
                if self.secure:
                    return self.context(ssl.PROTOCOL_TLS_CLIENT).wrap_socket(raw, server_hostname=f"site{j}")
                raw.sendall(bytes([self.own]))
                return raw
            except ConnectionError:  # not started yet
                time.sleep(0.1)

    def accept(self, server: socket.socket) -> None:
        context = self.context(ssl.PROTOCOL_TLS_SERVER) if self.secure else None
        while True:
            raw, address = server.accept()
            raw.settimeout(HANDSHAKE)
            sock = context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False) if context else raw
            self.handshakes.append(sock)
            if len(self.handshakes) > HANDSHAKES:
                with suppress(OSError):
                    socket.socket.shutdown(self.handshakes[0], socket.SHUT_RDWR)
            threading.Thread(target=self.welcome, args=(sock, address), daemon=True).start()

    def welcome(self, sock: socket.socket, address: tuple[str, int]) -> None:
        try:
            if isinstance(sock, ssl.SSLSocket):
                sock.do_handshake()
            j = self.name(sock)
            if j in self.connections:
                raise ConnectionError(f"site{j} is connected already")
            self.add(j, sock)
        except (OSError, ValueError) as error:
            print(f"refused {address[0]}:{address[1]}: {error}", file=sys.stderr, flush=True)
            sock.close()
        finally:
            self.handshakes.remove(sock)

    def name(self, sock: Any) -> int:
        """The certificate says who it is, and so what its messages are."""
        if not self.secure:
            return sock.recv(1)[0]
        subject = dict(pair for (pair,) in sock.getpeercert()["subject"])
        return int(subject["commonName"].removeprefix("site"))

    def add(self, j: int, sock: socket.socket) -> None:
        self.connections[j] = Connection(sock, self.inboxes[j], lambda why: self.lost(j, why))
        if len(self.connections) == len(self.others):
            self.complete.set()

    def context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.keys / "authority.crt")
        context.load_verify_locations(self.keys / "revoked.pem")
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        context.load_cert_chain(self.keys / "site.crt", self.keys / "site.key")
        return context

    def send(self, array: Any) -> None:
        for connection in self.connections.values():
            connection.send(memoryview(array).cast("B"))


class Bare(Sockets):
    secure = False


class Ours(Engine):
    """The engine of dnasa."""

    def connect(self) -> None:
        from dnasa.networks.members import Members
        from dnasa.networks.sites import SiteTransport
        from dnasa.sites.file import Site, Sites

        sites = [Site(f"site{j}", *address) for j, address in enumerate(self.addresses)]
        self.members = Members(Sites(sites, self.own, self.addresses[self.own], self.keys), "benchmark", PATIENCE)
        self.members.begin()
        self.transport = SiteTransport(self.members, 0)
        self.received: dict[int, Any] = {}
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        lost = set[int]()
        while True:
            for j in self.others:
                if j not in lost and (self.members.mesh.gone(j) or self.members.mesh.silent(j, PATIENCE)):
                    lost.add(j)
                    self.lost(j, "gone" if self.members.mesh.gone(j) else "silent")
            self.members.mesh.wait(0.1)

    def exchange(self, array: Any) -> dict[int, Any]:
        if array.size not in {one.size for one in self.received.values()}:
            self.received = {j: np.empty_like(array) for j in self.others}
        sends = [(j, array) for j in self.others]
        self.transport.finish(self.transport.start(list(self.received.items()), sends))
        return self.received


# ---------------------------------------------------------------- libraries


class Grpc(Engine):
    """A call for each pair with a stream in both directions; messages are raw bytes."""

    OPTIONS = (
        ("grpc.max_send_message_length", LARGEST),
        ("grpc.max_receive_message_length", LARGEST),
        ("grpc.http2.max_frame_size", 16_777_215),
        ("grpc.http2.lookahead_bytes", 64_000_000),
        ("grpc.http2.write_buffer_size", 64_000_000),
        ("grpc.keepalive_time_ms", int(1000 * BEAT)),
        ("grpc.keepalive_timeout_ms", int(1000 * (PATIENCE - BEAT))),
        ("grpc.http2.ping_timeout_ms", int(1000 * (PATIENCE - BEAT))),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE)),
    )

    def connect(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        import grpc

        self.outboxes: dict[int, queue.Queue[bytes]] = {j: queue.Queue() for j in self.others}
        self.arrived = queue.Queue[int]()
        server = grpc.server(ThreadPoolExecutor(len(self.others)), options=self.OPTIONS)
        method = grpc.stream_stream_rpc_method_handler(self.serve)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("sites", {"exchange": method})])
        key, certificate, authority = map(self.pem, ("site.key", "site.crt", "authority.crt"))
        identity = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        host, port = self.addresses[self.own]
        server.add_secure_port(f"{host}:{port}", identity)
        server.start()
        self.server, self.channels = server, []
        for j in range(self.own + 1, len(self.addresses)):
            host, port = self.addresses[j]
            options = (*self.OPTIONS, ("grpc.ssl_target_name_override", f"site{j}"))
            channel = grpc.secure_channel(
                f"{host}:{port}", grpc.ssl_channel_credentials(authority, key, certificate), options
            )
            grpc.channel_ready_future(channel).result(60)
            call = channel.stream_stream("/sites/exchange")(iter(self.outboxes[j].get, None))
            threading.Thread(target=self.receive, args=(j, call), daemon=True).start()
            self.channels.append(channel)
        for _ in range(self.own):
            self.arrived.get()

    def serve(self, requests: Any, context: Any) -> Iterator[bytes]:
        j = int(context.auth_context()["x509_common_name"][0].decode().removeprefix("site"))
        self.arrived.put(j)
        threading.Thread(target=self.receive, args=(j, requests), daemon=True).start()
        yield from iter(self.outboxes[j].get, None)

    def receive(self, j: int, messages: Any) -> None:
        try:
            for message in messages:
                self.inboxes[j].put(message)
            self.lost(j, "closed")
        except Exception as error:  # the one side gets a call's status, the other a bare Exception
            self.lost(j, error.details() if hasattr(error, "details") else repr(error))

    def send(self, array: Any) -> None:
        data = array.tobytes()
        for outbox in self.outboxes.values():
            outbox.put(data)


class Zenoh(Engine):
    """Peers with explicit addresses; each publishes under its own name, which the others hold it to by its certificate."""

    def connect(self) -> None:
        import zenoh

        zenoh.init_log_from_env_or("warn")
        self.zenoh = zenoh
        config = zenoh.Config.from_json5(json.dumps(self.settings()))
        self.session = session = zenoh.open(config)
        self.events = session.info.declare_transport_events_listener(self.changed)
        self.subscribers = [session.declare_subscriber(f"from/{j}", self.inbox(j)) for j in self.others]
        block = zenoh.CongestionControl.BLOCK
        self.publisher = session.declare_publisher(f"from/{self.own}", congestion_control=block, express=True)
        self.tokens = [session.liveliness().declare_token(f"ready/{self.own}")]
        while len(set(self.ready())) < len(self.others):
            time.sleep(0.1)
        time.sleep(1)  # for the subscriptions

    def ready(self) -> Iterator[str]:
        for reply in self.session.liveliness().get("ready/*", timeout=1):
            if reply.ok and str(reply.ok.key_expr) != f"ready/{self.own}":
                yield str(reply.ok.key_expr)

    def settings(self) -> dict[str, Any]:
        keys = {name: str(self.keys / name) for name in ("authority.crt", "site.crt", "site.key")}
        here, *later = [f"tls/{host}:{port}" for host, port in self.addresses[self.own :]]
        tls = {
            "root_ca_certificate": keys["authority.crt"],
            "enable_mtls": True,
            "listen_certificate": keys["site.crt"],
            "listen_private_key": keys["site.key"],
            "connect_certificate": keys["site.crt"],
            "connect_private_key": keys["site.key"],
        }
        link = {
            "tls": tls,
            "tx": {"lease": int(1000 * PATIENCE), "keep_alive": int(PATIENCE / BEAT)},
            "rx": {"buffer_size": 1 << 20, "max_message_size": LARGEST},
        }
        unicast = {"accept_timeout": int(1000 * HANDSHAKE)}
        return {
            "id": f"{self.own + 1:x}",
            "mode": "peer",
            "listen": {"endpoints": [here]},
            "connect": {"endpoints": later, "timeout_ms": 60_000, "exit_on_failure": True},
            "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
            "transport": {"shared_memory": {"enabled": False}, "link": link, "unicast": unicast},
            "access_control": self.permissions(),
        }

    def permissions(self) -> dict[str, Any]:
        def rule(name: str, flow: str, messages: list[str], keys: list[str]) -> dict[str, Any]:
            return {"id": name, "permission": "allow", "flows": [flow], "messages": messages, "key_exprs": keys}

        declare = ["declare_subscriber", "liveliness_token", "liveliness_query", "declare_liveliness_subscriber"]
        rules = [rule(f"put{j}", "ingress", ["put"], [f"from/{j}"]) for j in self.others]
        rules += [rule("out", "egress", ["put", *declare], ["**"]), rule("in", "ingress", declare, ["**"])]
        return {
            "enabled": True,
            "default_permission": "deny",
            "rules": rules,
            "subjects": [{"id": f"site{j}", "cert_common_names": [f"site{j}"]} for j in self.others],
            "policies": [{"rules": [f"put{j}", "out", "in"], "subjects": [f"site{j}"]} for j in self.others],
        }

    def inbox(self, j: int) -> Callable[[Any], None]:
        return lambda sample: self.inboxes[j].put(sample.payload.to_bytes())

    def changed(self, event: Any) -> None:
        if event.kind == self.zenoh.SampleKind.DELETE:
            self.lost(int(str(event.transport.zid), 16) - 1, "transport closed")

    def send(self, array: Any) -> None:
        self.publisher.put(array.tobytes())


# ---------------------------------------------------------------- jobs


def timed(engine: Engine, size: int, repeat: int) -> dict[str, Any]:
    array = np.full(size // 4, engine.own, np.float32)
    engine.exchange(array)
    seconds, cpu = [], cpu_seconds()
    for _ in range(repeat):
        start = time.perf_counter()
        received = engine.exchange(array)
        seconds.append(time.perf_counter() - start)
        assert all(len(one) == size // 4 and one[0] == one[-1] == j for j, one in received.items())
    return {"seconds": seconds, "cpu": cpu_seconds() - cpu}


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


ENGINES: dict[str, type[Engine]] = {"tcp": Bare, "tls": Sockets, "dnasa": Ours, "grpc": Grpc, "zenoh": Zenoh}


def main() -> None:
    name, own, folder, addresses = sys.argv[1:]
    try:
        engine = ENGINES[name](int(own), json.loads(addresses), Path(folder) / f"site{own}")
    except ImportError as error:
        raise SystemExit(f"{error}. Install the engines: pip install eclipse-zenoh grpcio") from None
    answer({})
    for line in sys.stdin:
        answer(timed(engine, *json.loads(line)))
    os._exit(0)  # without waiting for the threads of the libraries


if __name__ == "__main__":
    main()
