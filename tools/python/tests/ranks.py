"""Ranks for the tests: threads of this process, or processes that meet over TCP."""

import multiprocessing
import secrets
import threading
import traceback

import muonrt


def on_threads(size, work):
    """[work(comm) of every rank]; the first exception of a rank is raised here."""
    group = muonrt.ThreadGroup(size)
    results, errors = [None] * size, []

    def run(rank):
        try:
            with group.comm(rank) as comm:
                comm.set_timeout(60)
                results[rank] = work(comm)
        except BaseException as error:  # the test must see it, whatever it is
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return results


def _process(work, rank, size, address, secret, queue, arguments):
    try:
        with muonrt.Comm.tcp(rank, size, address, secret) as comm:
            comm.set_timeout(60)
            queue.put((rank, work(comm, *arguments), None))
    except BaseException:
        queue.put((rank, None, traceback.format_exc()))


def on_processes(size, work, *arguments):
    """[work(comm, *arguments) of every rank], each a fresh process; `work` is a global function."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    address, secret = muonrt.free_address(), secrets.token_bytes(16)
    processes = [
        context.Process(target=_process,
                        args=(work, rank, size, address, secret, queue, arguments))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    results = [None] * size
    for _ in range(size):
        rank, result, error = queue.get(timeout=180)
        assert error is None, f"rank {rank}:\n{error}"
        results[rank] = result
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    return results
