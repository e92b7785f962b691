"""Script of test_ray: starts a local Ray cluster of two emulated hosts, trains in it, stops it.

Ray distinguishes hosts by address, and every address in 127.0.0.0/8 is this machine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Set before the import of Ray. It must not report usage, and must not kill workers when other
# programs use the memory.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_memory_monitor_refresh_ms="0")

import ray
from ray.cluster_utils import Cluster
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from tests.trainer import ray_loops

_HOST = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False}


@contextmanager
def two_hosts(session_folder: str) -> Iterator[None]:
    """Context of a Ray cluster of two hosts with two CPUs each. Ray writes into the folder."""
    head = {**_HOST, "temp_dir": session_folder}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**_HOST, node_ip_address="127.0.0.2")
        ray.init(address=cluster.address)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> None:
    """Run a loop of `ray_loops`. Arguments: its name, folder, number of workers, Ray's folder."""
    name, folder, workers, session_folder = sys.argv[1:]
    loop: Any = getattr(ray_loops, name)
    with two_hosts(session_folder):
        result = TorchTrainer(
            loop,
            train_loop_config={"folder": folder},
            torch_config=TorchConfig(timeout_s=120),
            scaling_config=ScalingConfig(num_workers=int(workers)),
            run_config=RunConfig(
                name=name, storage_path=folder, failure_config=FailureConfig(max_failures=1)
            ),
        ).fit()
    reported = [
        {"path": checkpoint.path, **metrics} for checkpoint, metrics in result.best_checkpoints
    ]
    Path(folder, "reported.json").write_text(json.dumps(reported))


if __name__ == "__main__":
    main()
