"""Code that the scripts share: temporary folders, which are removed however a script ends, and a list of
problems."""
import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

problems = []


def folder(name):
    """Returns a new empty folder whose name contains `name`."""
    path = Path(tempfile.mkdtemp(prefix=f"muonrt-{name}-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def processes(program, mark):
    """Returns {process: environment} for the processes that run `program` with `mark` (NAME=VALUE) in their
    environment."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "environ").read_bytes().split(b"\0")
            if mark.encode() in words and os.readlink(process / "exe") == str(program):
                found[int(process.name)] = words
        except OSError:
            continue
    return found


def check(condition, *what):
    if not condition:
        problems.append(" ".join(map(str, what)))


def end(what=""):
    """Prints the problems, or `what` if there are none, and exits."""
    print("\n".join(problems) or what)
    sys.exit(bool(problems))
