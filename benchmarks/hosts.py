"""Network namespaces as hosts: each with its own link to a bridge, shaped if wanted, and counters.

They need root and iproute2. Where those are missing, :func:`missing_means` says so, and
:func:`loopback_hosts` stands in: the same ranks, on the loopback of this machine.
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
# A packet of a veth pair may hold 64 KiB, and the bucket must take it whole.
_BUCKET = "256kb"
_LONGEST_QUEUE = "50ms"


@dataclass(frozen=True)
class Host:
    """One namespace with an address on the common bridge; or, without one, this machine.

    Attributes:
        namespace: its name, or None for the loopback of this machine.
        address: by which the others reach it.

    """

    namespace: str | None
    address: str

    @property
    def interface(self) -> str:
        """The network interface that ranks of this host use."""
        return loopback_interface() if self.namespace is None else _LINK

    def start(self, command: Sequence[str], log: Path, **environment: str) -> subprocess.Popen:
        """Start a command inside, in the current folder, with its output in `log`."""
        inside = [] if self.namespace is None else ["ip", "netns", "exec", self.namespace]
        # This repository's modules are found from any folder.
        path = os.pathsep.join([str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {
            "GLOO_SOCKET_IFNAME": self.interface,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": path,
        }
        with log.open("w") as file:
            return subprocess.Popen(
                [*inside, *command],
                env={**os.environ, **own, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_all(self) -> None:
        """Kill whatever still runs inside; torchrun's workers do not die with it."""
        if self.namespace is None:
            return
        for pid in _ip("netns", "pids", self.namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def needs_loopback() -> bool:
    """Whether this machine can make no hosts, with a message that says why."""
    missing = missing_means()
    if missing is not None:
        print(f"{missing}: all ranks run on the loopback, whose rate is not shaped", flush=True)
    return missing is not None


def missing_means() -> str | None:
    """What this machine lacks to make hosts, or None. Makes a namespace and removes it."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"network namespaces need iproute2, and there is no command {tool!r}"
    name = f"lh{os.getpid()}probe"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespace can be made here: {made.stderr.strip()}"
    _ip("netns", "delete", name)
    return None


def loopback_hosts(number: int) -> list[Host]:
    """So many hosts in name only: they share the loopback of this machine, and nothing is made."""
    return [Host(None, "127.0.0.1") for _ in range(number)]


@contextmanager
def hosts(number: int, rate: str | None = None) -> Iterator[list[Host]]:
    """So many hosts; all that was made is removed at the end, after an error or a signal too.

    Args:
        number: of hosts, at most 200.
        rate: as ``tc`` reads it, such as ``"1gbit"``; None leaves the links as fast as they are.
            Both ends of every link are shaped, since a token bucket acts on what leaves a device:
            the host's end on what it sends, the bridge's end on what arrives from all the others.

    Raises:
        subprocess.CalledProcessError: no right to make namespaces, or a rate that can't be read.

    """
    prefix = f"lh{os.getpid()}"
    undo = ExitStack()
    with _unwound_by_sigterm():
        try:
            bridge = f"{prefix}b"
            with _undisturbed():
                _make(undo, bridge, "type", "bridge")
                _ip("link", "set", bridge, "up")
            found = []
            for index in range(number):
                host = Host(f"{prefix}-{index}", f"10.88.0.{10 + index}")
                with _undisturbed():
                    _connect(undo, host, bridge, f"{prefix}v{index}", rate)
                found.append(host)
            yield found
        finally:
            with _undisturbed():
                undo.close()


def _connect(undo: ExitStack, host: Host, bridge: str, outside: str, rate: str | None) -> None:
    namespace = str(host.namespace)
    inside = ("-n", namespace)
    _ip("netns", "add", namespace)
    undo.callback(_ip, "netns", "delete", namespace)
    # Removed before the namespace, whose own end of the link goes some time after it is deleted.
    _make(undo, outside, "type", "veth", "peer", "name", _LINK, "netns", namespace)
    undo.callback(host.kill_all)
    _ip("link", "set", outside, "master", bridge, "up")
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "address", "add", f"{host.address}/24", "dev", _LINK)
    _ip(*inside, "link", "set", _LINK, "up")
    if rate is not None:
        bucket = ("root", "tbf", "rate", rate, "burst", _BUCKET, "latency", _LONGEST_QUEUE)
        _run("tc", *inside, "qdisc", "add", "dev", _LINK, *bucket)
        _run("tc", "qdisc", "add", "dev", outside, *bucket)


def _make(undo: ExitStack, device: str, *kind: str) -> None:
    _ip("link", "add", device, *kind)
    undo.callback(_ip, "link", "delete", device)


def link_bytes(interface: str = _LINK) -> tuple[int, int]:
    """Bytes sent and received over the link of the host that this process runs on."""
    folder = Path("/sys/class/net") / interface / "statistics"
    sent, received = (int((folder / f"{way}_bytes").read_text()) for way in ("tx", "rx"))
    return sent, received


def loopback_interface() -> str:
    """Its name on this machine."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def made_by(process: int) -> list[str]:
    """Namespaces and devices that a process has made and not removed, as iproute2 lists them."""
    lines = _ip("netns", "list") + _ip("-brief", "link")
    return [line for line in lines.splitlines() if line.startswith(f"lh{process}")]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let signals wait, so that whatever is made is also noted to be removed, and is removed."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _unwound_by_sigterm() -> Iterator[None]:
    """Have SIGTERM end the program as SIGINT does, through what is to be removed."""
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
