"""The examples run, alone and over ranks."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, *arguments, **options):
    return subprocess.run([sys.executable, str(EXAMPLES / name), *arguments], text=True,
                          capture_output=True, timeout=300, **options)


@pytest.mark.parametrize("ranks", ["1", "3"])
def test_numpy_ranks(ranks):
    done = run("numpy_ranks.py", ranks)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{ranks} ranks: loss"), done.stdout


def test_each_is_under_80_lines():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 80, path.name
