"""Jobs on this machine that can be killed and restarted: a Lighthouse, and groups."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from urllib.error import URLError
from urllib.request import urlopen

from typing_extensions import Self

from examples.loopback import ADDRESS, free_port, loopback_interface


class Job:
    """A command in a separate process. Leaving the context kills it.

    Args:
        command: program, and its arguments.
        output: file to which its output is appended.

    Attributes:
        output: file of the output.

    """

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self.output = output
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": loopback_interface(),
            "PYTHONWARNINGS": "ignore",
        }
        with output.open("a") as file:
            self._process = subprocess.Popen(
                list(command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Exit code, negative after a signal. None while the process runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


class LighthouseJob(Job):
    """torchft's Lighthouse on a free port of the loopback.

    Args:
        output: file to which its output is appended.
        heartbeat_timeout_s: seconds without a heartbeat after which a group is lost.
        join_timeout_s: seconds that a quorum waits for live groups that have not joined.

    Attributes:
        address: URL of the Lighthouse.

    """

    def __init__(
        self, output: Path, *, heartbeat_timeout_s: float = 2.0, join_timeout_s: float = 20.0
    ) -> None:
        port = free_port()
        self.address = f"http://{ADDRESS}:{port}"
        # Beside the interpreter, because the environment may not be activated.
        command = [str(Path(sys.executable).with_name("torchft_lighthouse"))]
        command += ["--min_replicas", "1", "--bind", f"{ADDRESS}:{port}"]
        command += ["--heartbeat_timeout_ms", str(round(1000 * heartbeat_timeout_s))]
        command += ["--join_timeout_ms", str(round(1000 * join_timeout_s))]
        super().__init__(command, output)

    def wait_until_ready(self, limit_s: float = 60.0) -> None:
        """Wait until the Lighthouse answers requests.

        Raises:
            RuntimeError: the process has ended, or the limit was exceeded.

        """
        deadline_s = time.monotonic() + limit_s
        while self.code is None and time.monotonic() < deadline_s:
            with suppress(URLError, OSError), urlopen(self.address, timeout=5):
                return
            time.sleep(0.1)
        raise RuntimeError(f"the Lighthouse does not answer:\n{end_of(self.output)}")


def end_of(output: Path, characters: int = 4000) -> str:
    """Return the last characters of the output of a job."""
    return output.read_text()[-characters:] if output.exists() else ""
