"""What a round costs besides the network call: ``python -m specdiff.overhead``."""

import json

import torch

from specdiff.bench import Entry, measure
from specdiff.requests import Request
from specdiff.targets import load_target

LANES, DRAFT_LENGTH, STEPS = 16, 7, 250

if __name__ == "__main__":
    torch.set_num_threads(1)
    requests = [Request(str(i), i, label=i % 10) for i in range(LANES)]
    entry = Entry("block + free", STEPS, {"verification": "block", "drafter": "free", "draft_length": DRAFT_LENGTH})
    found = measure(lambda **settings: load_target("fashion-mnist", **settings), [entry], requests, lanes=LANES)
    record = {
        "target": "fashion-mnist",
        "steps": STEPS,
        "lanes": LANES,
        "draft_length": DRAFT_LENGTH,
        "overhead": found["rows"][0]["overhead"],  # of the network call's time
        "hardware": found["hardware"],
        "software": found["software"],
    }
    print(json.dumps(record, indent=2))
