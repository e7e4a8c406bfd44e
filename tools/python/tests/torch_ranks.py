"""Runs the ranks of a test of muonrt.torch as gloo processes."""

import multiprocessing
import os
import tempfile
import traceback

import torch
import torch.distributed as dist


def _process(work, rank, size, store, queue, lost, arguments):
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        result = work(rank, size, *arguments)
        # Send bytes, because tensors would be in the shared memory of a process that exits.
        queue.put((rank, result, None))
        if dist.is_initialized() and lost is None:
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:
        if rank == lost:
            raise
        queue.put((rank, None, traceback.format_exc()))


def on_gloo(size, work, *arguments, lost=None):
    """Runs work(rank, size, *arguments) in one process for each rank, and returns the list of
    results.

    work: a global function.
    lost: a rank that does not return a result, because of an exception or a signal.
    """
    try:
        return _on_gloo(size, work, *arguments, lost=lost)
    except AssertionError as error:
        # Sometimes gloo fails to connect two ranks at the start. If this happens, start the ranks
        # again.
        if "Gloo connectFullMesh failed" not in str(error) or "in init_process_group" not in str(error):
            raise
    return _on_gloo(size, work, *arguments, lost=lost)


def _on_gloo(size, work, *arguments, lost):
    # Ranks are forked from a process that has imported torch but has not used it. The preloaded
    # modules include torch._dynamo, because the first use of FSDP2 would import it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.fsdp", "torch.distributed.checkpoint",
                                    "torch.distributed.tensor.parallel", "torch._dynamo", "pytest",
                                    "muonrt.torch", "transformers.trainer", "lightning.pytorch",
                                    "transformers.models.llama.modeling_llama"])
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        processes = [context.Process(target=_process,
                                     args=(work, rank, size, store, queue, lost, arguments))
                     for rank in range(size)]
        for process in processes:
            process.start()
        results = [None] * size
        try:
            for _ in range(size - (lost is not None)):
                rank, result, error = queue.get(timeout=240)
                assert error is None, f"rank {rank}:\n{error}"
                results[rank] = result
            for rank, process in enumerate(processes):
                process.join(60)
                assert (process.exitcode == 0) == (rank != lost)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
    return results
