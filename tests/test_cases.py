"""What users of comparable systems ran into is numbered, and each number has a test that bears it."""

import re
from pathlib import Path

CASES = 22


def test_every_case_has_a_test_of_its_number() -> None:
    tests = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert {int(number) for number in re.findall(r"def test_case_(\d+)_", tests)} == set(range(1, CASES + 1))
