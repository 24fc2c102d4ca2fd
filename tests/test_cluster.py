"""What Ray says of a dead actor, in one line; and a cluster of two machines, one of which is of no use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults import MARKS
from test_job import finish, images, pictures

from pipeline.cluster import death
from pipeline.storage import Storage

KILLED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: Worker\n\tactor_id: 30\n\tpid: 9844\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was "
    "killed by the OOM killer due to high memory usage, (2) ray stop --force was called. If the process was killed by …"
)
RAISED = (
    "The actor died because of an error raised in its creation task, \x1b[36mray::W.__init__()\x1b[39m (pid=9845, "
    'ip=127.0.0.1)\n           ^^^^^^^\n  File "worker.py", line 11, in __init__\nValueError: bad luck\nin two lines'
)


GONE = "The actor is gone.\nThe actor is dead because it was killed by `ray.kill`."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (KILLED, "Worker unexpectedly exits with a connection error code 2. End of file."),
        (RAISED, "ValueError: bad luck in two lines"),
        (GONE, "The actor is dead because it was killed by `ray.kill`."),
        ("a\n" + "word " * 200, "word " * 59 + "…"),
    ],
)
def test_death_is_told_in_one_line(text: str, reason: str) -> None:
    assert death(Exception(text)) == reason


# A process of its own, since one process knows one cluster.
TWO_NODES = """
import os, sys
from pathlib import Path
import faults, ray
from ray.cluster_utils import Cluster
import pipeline.scheduler
from pipeline.cli import main
pipeline.scheduler._PIECE_WAITS = (1.0, 1.0, 1.0)
faults.register_targets()
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
for _ in range(2):
    cluster.add_node(num_cpus=2)
hook = {"worker_process_setup_hook": "faults.register_targets"}
ray.init(address=cluster.address, log_to_driver=False, runtime_env=hook)
bad = next(node["NodeID"] for node in ray.nodes() if node["Resources"].get("CPU"))
Path(os.environ[faults.MARKS], "bad-node").write_text(bad)
try:
    main(["run", sys.argv[1]])
finally:
    ray.shutdown()
    cluster.shutdown()  # and forgets its address, where others on this machine would look for it
"""


def test_a_node_that_keeps_failing_is_left_alone(tmp_path: Path) -> None:
    job = pictures(tmp_path, "pictures-bad-node", count=60, workers={"count": 2})
    environment = {
        **{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        MARKS: str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    command = [sys.executable, "-c", TWO_NODES, str(job)]
    output, status = finish(
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    )
    assert status == 0, output
    assert output.count("keeps failing and gets no work for 30 s") == 1, output
    assert "no space left on device" in output
    assert len(images(Storage(str(tmp_path / "set")))) == 60
