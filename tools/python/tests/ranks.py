"""Runs the ranks of a test as threads in this process."""

import threading

import muonrt


def on_threads(size, work, comm_of=None):
    """Runs work(comm) on every rank. Returns the list of results, or raises the first exception."""
    comm_of = comm_of or muonrt.ThreadGroup(size).comm
    results, errors = [None] * size, []

    def run(rank):
        try:
            with comm_of(rank) as comm:
                comm.set_timeout(60)
                results[rank] = work(comm)
        except BaseException as error:  # raised again in the test's thread
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
