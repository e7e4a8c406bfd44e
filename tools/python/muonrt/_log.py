"""Forwards the library's messages to the logger "muonrt"."""

from __future__ import annotations

import atexit
import logging
import threading

from . import _core

_LEVELS = {1: logging.ERROR, 2: logging.WARNING, 3: logging.INFO, 4: logging.DEBUG}
_lock = threading.Lock()
_thread: threading.Thread | None = None


def _pass_on() -> None:
    logger = logging.getLogger("muonrt")
    while (entry := _core._next_log())[0]:
        logger.log(_LEVELS[entry[0]], "%s", entry[1])


def set_log_level(level: int | str | None) -> None:
    """Forwards the library's messages to the logger "muonrt" of Python's ``logging``.

    Until the first call, the library logs nothing. A separate Python thread forwards the messages,
    so a message may be logged shortly after its event.

    :param level: the lowest level to forward, such as ``logging.INFO`` or "info". None forwards the
        remaining messages and then stops.
    """
    global _thread
    if isinstance(level, str):
        number = logging.getLevelName(level.upper())
        if not isinstance(number, int):
            raise ValueError(f"level is {level!r}, but must be a level of logging, such as 'info'")
        level = number
    native = 0 if level is None else sum(of >= level for of in _LEVELS.values())
    with _lock:
        _core._set_log(native)
        if native and _thread is None:
            _thread = threading.Thread(target=_pass_on, name="muonrt log", daemon=True)
            _thread.start()
        elif not native and _thread is not None:
            _thread.join()
            _thread = None


@atexit.register
def _end() -> None:
    # After a fork, this thread does not exist in the child process, and the queue may stay locked.
    if _thread is not None and _thread.is_alive():
        set_log_level(None)
