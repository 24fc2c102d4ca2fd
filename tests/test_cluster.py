"""What Ray says of a dead actor, in one line."""

from __future__ import annotations

import pytest

from pipeline.cluster import death

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
