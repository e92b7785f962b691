"""Network namespaces as hosts: each with its own link to a bridge, and its own counters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[1]
_LINK = "eth0"


@dataclass(frozen=True)
class Host:
    """One namespace with an address on the common bridge."""

    namespace: str
    address: str

    def start(self, command: Sequence[str], log: Path, **environment: str) -> subprocess.Popen:
        """Start a command inside, from the repository root, with its output in `log`."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *command],
            cwd=_REPOSITORY,
            env={**os.environ, "GLOO_SOCKET_IFNAME": _LINK, "OMP_NUM_THREADS": "1", **environment},
            stdout=log.open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill_all(self) -> None:
        """Kill whatever still runs inside; torchrun's workers do not die with it."""
        for pid in _ip("netns", "pids", self.namespace).split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@contextmanager
def hosts(number: int) -> Iterator[list[Host]]:
    """So many hosts; all that was made is removed at the end, after an error too."""
    prefix = f"lh{os.getpid()}"
    bridge = f"{prefix}b"
    with ExitStack() as undo:
        _ip("link", "add", bridge, "type", "bridge")
        undo.callback(_ip, "link", "delete", bridge)
        _ip("link", "set", bridge, "up")
        found = []
        for index in range(number):
            host = Host(f"{prefix}-{index}", f"10.88.0.{10 + index}")
            _ip("netns", "add", host.namespace)
            undo.callback(_ip, "netns", "delete", host.namespace)
            outside = f"{prefix}v{index}"
            inside = ("-n", host.namespace)
            _ip("link", "add", outside, "type", "veth", "peer", "name", _LINK, "netns",
                host.namespace)  # fmt: skip
            # Before the namespace, whose own end of the link goes some time after it is deleted.
            undo.callback(_ip, "link", "delete", outside)
            _ip("link", "set", outside, "master", bridge, "up")
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "address", "add", f"{host.address}/24", "dev", _LINK)
            _ip(*inside, "link", "set", _LINK, "up")
            found.append(host)
        yield found


@contextmanager
def launched(
    found: Sequence[Host], ranks_per_host: int, module: str, *arguments: str, folder: Path
) -> Iterator[list[subprocess.Popen]]:
    """The agents of torchrun that run a module, one on each host; killed at the end.

    Their output goes to `host<index>.log` in `folder`.
    """
    agents = []
    try:
        for index, host in enumerate(found):
            command = [
                *(sys.executable, "-m", "torch.distributed.run"),
                *("--nnodes", str(len(found)), "--nproc-per-node", str(ranks_per_host)),
                *("--node-rank", str(index), "--local-addr", host.address),
                *("--master-addr", found[0].address, "--master-port", "29611"),
                *("-m", module, *arguments),
            ]
            agents.append(host.start(command, folder / f"host{index}.log"))
        yield agents
    finally:
        for agent, host in zip(agents, found, strict=False):
            host.kill_all()
            agent.wait()


def run_module(
    found: Sequence[Host], ranks_per_host: int, module: str, *arguments: str, folder: Path
) -> None:
    """Run a module under torchrun on all hosts; raise with their output if one of them fails."""
    with launched(found, ranks_per_host, module, *arguments, folder=folder) as agents:
        codes = [agent.wait(timeout=280) for agent in agents]
    if any(codes):
        raise RuntimeError(said(folder, len(found)))


def said(folder: Path, number: int) -> str:
    """The end of what so many hosts have put out."""
    logs = [folder / f"host{index}.log" for index in range(number)]
    return "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs)


def link_bytes() -> tuple[int, int]:
    """Bytes sent and received over the link of the host that this process runs on."""
    folder = Path("/sys/class/net") / _LINK / "statistics"
    sent, received = (int((folder / f"{way}_bytes").read_text()) for way in ("tx", "rx"))
    return sent, received


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
