"""What tests share: threads, one Ray cluster, one S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from faults import MARKS, register_targets
from seaweed import Server, seaweed

from pipeline.storage import Storage

torch.set_num_threads(1)
register_targets()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with seaweed(tmp_path_factory.mktemp("seaweed")) as running:
        running.create_bucket("test-bucket")
        yield running


@pytest.fixture(params=["local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """An empty storage of each kind."""
    if request.param == "local":
        return Storage(str(tmp_path / "storage"))
    server: Server = request.getfixturevalue("server")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return Storage(f"s3://test-bucket/{tmp_path.name}-{os.urandom(4).hex()}")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Ray cluster for the whole session, by which jobs of this process and of others share workers' hosts.

    Its workers know the targets of `faults`, whose marks lie in one folder.
    """
    import ray

    os.environ[MARKS] = str(tmp_path_factory.mktemp("marks"))
    # Workers inherit it, and need it before Ray tells them of the driver's path.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    )
    context = ray.init(
        address="local",  # not one that others have started on this machine
        num_cpus=4,
        object_store_memory=100 << 20,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"worker_process_setup_hook": "faults.register_targets"},
    )
    address = str(context.address_info["gcs_address"])
    os.environ["RAY_ADDRESS"] = address
    yield address
    del os.environ["RAY_ADDRESS"]
    ray.shutdown()
