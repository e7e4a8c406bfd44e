"""How tools/gpu-check runs programs, keeps the time and writes down what came of it."""
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import children
from clocks import Clocks
from libraries import add_libraries, wheel_folders
from outputs import ends, last, write_whole
from reading import Reading

ROOT = Path(__file__).resolve().parent.parent.parent


# Bytes, whatever programs print: of the log, of it one command's (a file of tests can say the same of
# every element) and what that may take of what is left; of the parts' data in the JSON file, and of one
# part's; of what is said of a part, beside its data.
MOST_LOG, MOST_LOGGED, SHARE = 10 << 20, 1 << 20, 8
MOST_JSON, MOST_OF_PART = 3 << 19, 3 << 18
MOST_TEXT = 16000


class Missing(Exception):
    """What a part needs is not on this machine."""


class Runner:
    """@param json_file  is written after every part, so that nothing is lost with the rest.
    @param logs  a folder for gpu-check.log, the whole output of every command; or None."""

    def __init__(self, deps, seconds, json_file, logs):
        self.end = time.monotonic() + seconds
        self.json_file = Path(json_file)
        self.log_file, self.log_left = None, MOST_LOG
        if logs:
            Path(logs).mkdir(parents=True, exist_ok=True)
            self.log_file = open(Path(logs) / "gpu-check.log", "wb")
        self.rows, self.now, self.json_left = [], "start", MOST_JSON
        self.kernels = None  # what Checks knows of them, for the JSON file
        self.environment = dict(os.environ)
        if deps:
            deps = Path(deps).resolve()
            self.prepend("CMAKE_PREFIX_PATH", deps, deps / "usr")
            places = [deps / "lib", deps / "lib64", deps / "usr/lib", *deps.glob("usr/lib/*-linux-gnu")]
            self.prepend("LD_LIBRARY_PATH", *[at for at in places if at.is_dir()])
            self.prepend("PATH", deps / "bin", deps / "usr/bin")
        toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
        if (toolkit / "bin").is_dir():
            self.prepend("PATH", toolkit / "bin")
        self.wheels = wheel_folders(self.environment)
        self.taken = add_libraries(self, toolkit)
        self.clocks = Clocks(self)

    def prepend(self, name, *folders):
        old = self.environment.get(name)
        if folders:
            self.environment[name] = ":".join([str(f) for f in folders] + ([old] if old else []))

    def left(self):
        return self.end - time.monotonic()

    def find(self, program):
        return shutil.which(program, path=self.environment["PATH"])

    def run(self, *command, most=None):
        """(status, output, its head and tail where that is long); status 124 where the time was over: then
        all it started is ended."""
        begin = time.monotonic()
        try:
            child = children.start([str(word) for word in command], cwd=ROOT, env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except OSError as error:
            return 127, str(error)
        limit = begin + max(1.0, min(self.left(), most or self.left()))
        status, reading = 124, Reading(child.stdout)
        try:
            reading.join(limit - time.monotonic())
            if not reading.is_alive():
                status = child.wait(max(0.1, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            children.end(child)
            reading.join(5)  # longer where it is stuck in the driver, or somebody has its pipe
            self.log(command, status, time.monotonic() - begin, reading.text())
        return status, reading.text()

    def log(self, command, status, seconds, output):
        if not self.log_file:
            return
        output = output.encode("utf-8")
        most = max(0, min(MOST_LOGGED, self.log_left // SHARE))
        if len(output) > most:
            output = output[:most // 2] + f"\n[... {len(output) - most} bytes ...]\n".encode() + \
                output[len(output) - most // 2:]
        entry = f"==== {self.now}: {' '.join(str(word) for word in command)[:1000]}\n".encode() + output + \
            f"\n==== status {status} after {seconds:.1f} s\n\n".encode()
        self.log_left -= len(entry)
        self.log_file.write(entry)
        self.log_file.flush()

    def part(self, name, work, seconds):
        """Runs work(seconds) -> (status, text, data), whatever becomes of it."""
        start, self.now = time.monotonic(), name
        try:
            status, text, data = ("late", "no time was left; run it alone", None) \
                if min(self.left(), seconds) < 2 else work(seconds)
        except Missing as missing:
            status, text, data = "missing", str(missing), None
        except children.Ended as ended:
            self.note(name, "late", time.monotonic() - start, f"ended by {ended}")
            raise
        except Exception as error:  # the other parts go on
            status, text, data = "failed", f"{type(error).__name__}: {error}", None
        self.note(name, status, time.monotonic() - start, text, data)
        return status

    def note(self, part, status, seconds, text="", data=None):
        text = shortened(text, MOST_TEXT)
        data = bounded(data, min(MOST_OF_PART, self.json_left // 2))
        self.json_left -= size_of(data)
        self.rows.append({"part": part, "status": status, "seconds": round(seconds, 1),
                          "text": text, "data": data, "gpu": self.clocks.since_last()})
        self.say(f"{part:<12} {status:<8} {seconds:7.1f} s  {text}")
        self.write()

    @staticmethod
    def say(line):
        print(line, flush=True)

    def write(self):
        write_whole(self.json_file, as_json({"date": time.strftime("%Y-%m-%d"), "rows": self.rows,
                                             "kernels": self.kernels.told() if self.kernels else {}}))

    def amend(self, status, text):
        """Of the last part."""
        self.rows[-1].update(status=status, text=shortened(f"{self.rows[-1]['text']}; {text}", MOST_TEXT))
        self.write()

    def statuses(self):
        return {row["status"] for row in self.rows}


def as_json(value):
    return json.dumps(value, indent=1) + "\n"


def size_of(data):
    return len(as_json([[[data]]]))  # lines are set in, as those of the file


def shortened(text, most):
    """Without its middle, so that JSON has it in so many bytes."""
    text = ends(text, most)
    while len(json.dumps(text)) > most:
        text = ends(text, len(text) // 2)
    return text


def bounded(data, most):
    """A part's data in so many bytes: without the middle of long texts, else without the last of long
    lists."""
    def cut(value, length, count):
        if isinstance(value, str):
            return ends(value, length)
        if isinstance(value, dict):
            return {str(key)[:200]: cut(one, length, count) for key, one in list(value.items())[:max(count, 64)]}
        if isinstance(value, (list, tuple)):
            return [cut(one, length, count) for one in value[:count]]
        return value
    length, count = 1 << 15, 1 << 12
    while size_of(data) > most and length > 100:
        data, length, count = dict(cut(data, length, count), cut=True), length // 2, count // 2
    return data if size_of(data) <= most else {"cut": True}


def verdict(status, text):
    """(name, text, data) of a program that has ended."""
    name = {0: "ok", 77: "skipped", 124: "late"}.get(status, "failed")
    return name, ("late: " if name == "late" else "") + last(text), None if name == "ok" else {"output": ends(text)}
