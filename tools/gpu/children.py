"""Processes that tools/gpu-check starts, each in a session of its own: none outlives the script."""
import ctypes
import os
import signal
import subprocess
import threading

try:
    LIBC = ctypes.CDLL(None)
except OSError:
    LIBC = None
PR_SET_PDEATHSIG = 1
running = set()  # ids of sessions
lock = threading.Lock()  # of what may run


def end_with_parent():
    """In a child, before it becomes its program: what ends its parent ends it, SIGKILL too."""
    if LIBC and hasattr(LIBC, "prctl"):
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def start(command, **options):
    # The library that a function in the child needs is loaded by now.
    with lock:
        child = subprocess.Popen(command, start_new_session=True, preexec_fn=end_with_parent, **options)
        running.add(child.pid)
    return child


def end(child):
    """All of its session; harmless where it has ended."""
    end_session(child.pid)


def end_session(session):
    running.discard(session)
    try:
        os.killpg(session, signal.SIGKILL)
    except OSError:
        pass


def end_all():
    for session in list(running):
        end_session(session)


class Ended(BaseException):
    """Somebody wants the script to end: no part is to take it for its own failure."""


def end_on_signals():
    def handler(number, _):
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise Ended(signal.Signals(number).name)
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(each) != signal.SIG_IGN:  # as under nohup
            signal.signal(each, handler)
