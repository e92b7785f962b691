"""Emulated hosts: network namespaces, each with a link to a common bridge.

The rate of the links can be limited. Their counters give the bytes that a host sends. Emulated
hosts need root and iproute2. If these are missing (:func:`missing_requirement`), ranks can use the
loopback of this machine instead (:func:`loopback_hosts`).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_REPOSITORY = Path(__file__).resolve().parents[1]
_LINK = "eth0"
# A packet of a veth pair has up to 64 KiB, and the token bucket must be larger than a packet.
_BUCKET = "256kb"
_LONGEST_QUEUE = "50ms"


@dataclass(frozen=True)
class Host:
    """A network namespace, or this machine itself.

    Attributes:
        namespace: name of the namespace, or None for the loopback of this machine.
        address: IP address of the host.

    """

    namespace: str | None
    address: str

    @property
    def interface(self) -> str:
        """Network interface of the ranks on this host."""
        return loopback_interface() if self.namespace is None else _LINK

    def start(self, command: Sequence[str], log: Path, **environment: str) -> subprocess.Popen:
        """Start a command on this host, in the current folder, with its output in `log`."""
        prefix = [] if self.namespace is None else ["ip", "netns", "exec", self.namespace]
        # The modules of this repository can be imported in any folder.
        path = os.pathsep.join([str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        defaults = {
            "GLOO_SOCKET_IFNAME": self.interface,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": path,
        }
        with log.open("w") as file:
            return subprocess.Popen(
                [*prefix, *command],
                env={**os.environ, **defaults, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_all(self) -> None:
        """Kill all processes of the namespace, because workers outlive a killed torchrun."""
        if self.namespace is None:
            return
        for pid in _ip("netns", "pids", self.namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def needs_loopback() -> bool:
    """Return whether this machine cannot emulate hosts, and print the reason."""
    missing = missing_requirement()
    if missing is not None:
        print(f"{missing}: all ranks use the loopback, whose rate is not limited", flush=True)
    return missing is not None


def missing_requirement() -> str | None:
    """Return why this machine cannot emulate hosts, or None.

    It creates a namespace and removes it.
    """
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"network namespaces need iproute2, but the command {tool!r} is missing"
    name = f"lh{os.getpid()}probe"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"network namespaces cannot be created: {done.stderr.strip()}"
    _ip("netns", "delete", name)
    return None


def loopback_hosts(number: int) -> list[Host]:
    """Return hosts that share the loopback of this machine. Nothing is created."""
    return [Host(None, "127.0.0.1") for _ in range(number)]


@contextmanager
def hosts_or_loopback(
    number: int, rate: str | None = None, *, loopback: bool
) -> Iterator[list[Host]]:
    """Create emulated hosts as :func:`hosts`, or use the loopback."""
    if loopback:
        yield loopback_hosts(number)
        return
    with hosts(number, rate) as emulated:
        yield emulated


@contextmanager
def hosts(number: int, rate: str | None = None) -> Iterator[list[Host]]:
    """Create emulated hosts, and remove them at the end, also after an error or a signal.

    Args:
        number: number of hosts, at most 200.
        rate: rate of the links in the notation of ``tc``, such as ``"1gbit"``. None for no limit. A
            token bucket limits outgoing packets, so there is one at both ends of a link: that of
            the host limits what it sends, that of the bridge what it receives.

    Raises:
        subprocess.CalledProcessError: the user may not create namespaces, or the rate is invalid.

    """
    prefix = f"lh{os.getpid()}"
    undo = ExitStack()
    with _exit_on_sigterm():
        try:
            bridge = f"{prefix}b"
            with _signals_blocked():
                _add_device(undo, bridge, "type", "bridge")
                _ip("link", "set", bridge, "up")
            created = []
            for index in range(number):
                host = Host(f"{prefix}-{index}", f"10.88.0.{10 + index}")
                with _signals_blocked():
                    _connect(undo, host, bridge, f"{prefix}v{index}", rate)
                created.append(host)
            yield created
        finally:
            with _signals_blocked():
                undo.close()


def _connect(undo: ExitStack, host: Host, bridge: str, bridge_end: str, rate: str | None) -> None:
    namespace = str(host.namespace)
    inside = ("-n", namespace)
    _ip("netns", "add", namespace)
    undo.callback(_ip, "netns", "delete", namespace)
    # Removed before the namespace, which removes its end of the link only after a delay.
    _add_device(undo, bridge_end, "type", "veth", "peer", "name", _LINK, "netns", namespace)
    undo.callback(host.kill_all)
    _ip("link", "set", bridge_end, "master", bridge, "up")
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "address", "add", f"{host.address}/24", "dev", _LINK)
    _ip(*inside, "link", "set", _LINK, "up")
    if rate is not None:
        bucket = ("root", "tbf", "rate", rate, "burst", _BUCKET, "latency", _LONGEST_QUEUE)
        _run("tc", *inside, "qdisc", "add", "dev", _LINK, *bucket)
        _run("tc", "qdisc", "add", "dev", bridge_end, *bucket)


def _add_device(undo: ExitStack, device: str, *kind: str) -> None:
    _ip("link", "add", device, *kind)
    undo.callback(_ip, "link", "delete", device)


def link_bytes(interface: str = _LINK) -> tuple[int, int]:
    """Return the bytes sent and received over the link of the host of this process."""
    lines = (line.split(":") for line in Path("/proc/self/net/dev").read_text().splitlines())
    counts = next(line[1].split() for line in lines if line[0].strip() == interface)
    return int(counts[8]), int(counts[0])


def loopback_interface() -> str:
    """Return the name of the loopback interface of this machine."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def existing_resources(process: int) -> list[str]:
    """Return the namespaces and devices of emulated hosts of a process, as iproute2 lists them."""
    lines = _ip("netns", "list") + _ip("-brief", "link")
    return [line for line in lines.splitlines() if line.startswith(f"lh{process}")]


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals, so that every created resource is registered for removal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, so that resources are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
