"""Folders of a test's own, removed when it ends, however it does."""
import atexit
import shutil
import tempfile
from pathlib import Path


def folder(name):
    """An empty folder with `name` in its own."""
    path = Path(tempfile.mkdtemp(prefix=f"muonrt-{name}-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
