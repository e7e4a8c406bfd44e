"""From torch's process groups, device meshes and placements to muonrt's. Imported by muonrt.torch."""

import contextlib
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

import muonrt
from muonrt._errors import of_status

if dist.is_available():
    import torch.distributed.tensor  # noqa: F401 (torch itself imports it late)

# How long TCP may take to say why gloo has lost a peer.
REASON_S = 5.0
# No message has this tag. Gloo chooses a connection by the tag: 840 and 0 share one.
NO_TAG = 840


def is_dtensor(tensor) -> bool:
    return dist.is_available() and isinstance(tensor, dist.tensor.DTensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What lies on this rank, detached; the same memory."""
    with torch.no_grad():
        return (tensor.to_local() if is_dtensor(tensor) else tensor).detach()


def on_device(device: torch.device):
    """A context in which `device` is the current one, as exports by DLPack want it."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def stream_of(device: torch.device) -> int | None:
    """The current CUDA stream, as a number; None on the host."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


def settle(device: torch.device) -> None:
    """Returns when what the current stream holds has been done."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _gpu_of(device: torch.device) -> str | None:
    """What tells a machine's GPUs apart, also where each process sees one alone."""
    if device.type != "cuda":
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


def comm_of(device: torch.device, process_group=None) -> tuple[muonrt.Comm, list[int]]:
    """A communicator over the ranks of a process group, and their global ranks in its order.

    For parameters on `device`: of CUDA memory by NCCL where each rank has a GPU of its own, else
    through host memory: over TCP on one machine, over gloo on several. Rank 0 tells the others its
    address and a secret by one broadcast. Collective over the group.
    """
    group, ranks = None, [0]
    if dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD if process_group is None else process_group
        ranks = dist.get_process_group_ranks(group)
    places = [None] * len(ranks)
    if len(ranks) == 1:
        places = [(socket.gethostname(), _gpu_of(device))]
        host = muonrt.Comm.self()
    else:
        dist.all_gather_object(places, (socket.gethostname(), _gpu_of(device)), group=group)
        host = _meet(group, ranks, [name for name, _ in places])
    gpus = [place for place in places if place[1] is not None]
    if gpus and len(gpus) < len(places):
        raise muonrt.MismatchError(
            f"parameters are on {['CUDA' if gpu else 'the host' for _, gpu in places]} by rank; "
            "an optimizer takes arrays of one kind of device")
    if len(set(gpus)) == len(places) > 1:
        return muonrt.Comm.nccl(host, device.index), ranks
    if len({name for name, _ in places}) > 1:
        host = over_gloo(host, ranks)  # over TCP rank 0 carries every byte
    return (muonrt.Comm.staged(host, device.index) if gpus else host), ranks


def _meet(group, ranks: list[int], hosts: list[str]) -> muonrt.Comm:
    """A communicator of host memory over the ranks of a group."""
    rank = dist.get_rank(group)
    told = False

    def tell(address, secret):
        nonlocal told
        told = True
        meeting = [address, secret]
        dist.broadcast_object_list(meeting, src=ranks[0], group=group)
        return meeting

    if rank > 0:
        address, secret = tell(None, None)
        if address is None:
            raise muonrt.CommError(secret)
        return muonrt.Comm.tcp(rank, len(ranks), address, secret)
    if len(set(hosts)) == 1:
        host = "127.0.0.1"
    elif ranks[0] == 0 and "MASTER_ADDR" in os.environ:
        host = os.environ["MASTER_ADDR"]
    else:
        host = hosts[0]
    place = f"[{host}]:0" if ":" in host else f"{host}:0"
    secret = secrets.token_bytes(16)
    try:
        return muonrt.Comm.tcp(0, len(ranks), place, secret,
                               listening=lambda address: tell(address, secret))
    except Exception as error:
        if not told:  # the others wait for it
            tell(None, f"rank 0: {error}")
        raise


def over_gloo(tcp: muonrt.Comm, ranks: list[int]) -> muonrt.Comm:
    """A communicator whose data go by a gloo group of its own; `tcp` tells the ranks of errors.

    `ranks`: global ones, in the order of `tcp`. It needs no process group afterwards. Collective.
    """
    group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    gloo = group._get_backend(torch.device("cpu"))
    rank, size = tcp.rank, tcp.size
    number = [dist.get_group_rank(group, r) for r in ranks]  # gloo has an order of its own
    tcp.set_timeout(REASON_S)

    def exchange(sends, receives, timeout):
        end = time.monotonic() + timeout
        said = [(peer, bytearray(len(view).to_bytes(8, "little"))) for peer, view in sends]
        heard = [(peer, bytearray(8)) for peer, _ in receives]
        move(said, heard, end)  # gloo ends the process of a rank that is sent too much
        for (peer, length), (_, view) in zip(heard, receives):
            if (sent := int.from_bytes(length, "little")) != len(view):
                raise muonrt.MismatchError(
                    f"rank {peer} sends {sent} bytes where rank {rank} expects {len(view)}; both "
                    "must derive the sizes from the same plan")
        move(sends, receives, end)

    def move(sends, receives, end):
        works = []
        try:
            for call, messages in ((gloo.recv, receives), (gloo.send, sends)):
                for peer, view in messages:
                    tensor = torch.frombuffer(view, dtype=torch.uint8)
                    works.append((peer, call([tensor], number[peer], 0)))
            for peer, work in works:
                work.wait(timedelta(seconds=max(end - time.monotonic(), 0.001)))
        except RuntimeError as error:
            hang_up()  # nothing comes into these views any more
            if time.monotonic() >= end:
                raise TimeoutError(f"rank {peer} did not come before the deadline") from error
            raise_reason(peer, error)

    def allgather(mine, all, timeout):
        parts = [all[i * len(mine):(i + 1) * len(mine)] for i in range(size)]
        parts[rank][:] = mine
        others = [i for i in range(size) if i != rank]
        exchange([(i, mine) for i in others], [(i, parts[i]) for i in others], timeout)

    def raise_reason(peer, error):
        """What the ranks have been told, or else TCP's word on a peer that gloo has lost."""
        asked = time.monotonic()
        try:
            tcp.exchange([], [(peer, bytearray(1))])  # which nobody sends
        except muonrt.TimeoutError:
            if time.monotonic() - asked < REASON_S:  # a peer's, that it has told
                raise
            raise muonrt.CommError(f"rank {peer}: {error}") from error

    def hang_up():
        """Ends all waits of the group, here and on its peers."""
        nothing = torch.empty(1, dtype=torch.uint8)
        with contextlib.suppress(RuntimeError):  # a timeout: gloo then closes its connections
            gloo.recv([nothing], number[rank - 1], NO_TAG).wait(timedelta(milliseconds=1))

    def abort(message, status):
        tcp.abort(message, status)
        hang_up()

    def close():
        nonlocal gloo, group
        tcp.close()
        hang_up()
        if dist.is_initialized():
            with contextlib.suppress(ValueError):  # another world's, by now
                dist.destroy_process_group(group)
        gloo = group = None

    return muonrt.Comm.functions(rank, size, exchange, allgather, name="gloo",
                                 caller_thread_only=False, abort=abort, close=close)


def gather_objects(comm: muonrt.Comm, mine) -> list:
    """Every rank's JSON value, in rank order. Collective."""
    text = json.dumps(mine).encode()
    sizes = [int.from_bytes(b, "little") for b in comm.allgather(len(text).to_bytes(8, "little"))]
    padded = comm.allgather(text.ljust(max(sizes)))
    return [json.loads(b[:n]) for b, n in zip(padded, sizes)]


def together(comm: muonrt.Comm, work) -> list:
    """Every rank's `work()`, a JSON value; what one raises all raise. Collective."""
    try:
        mine = {"value": work()}
    except Exception as error:
        kind = error if isinstance(error, muonrt.Error) else muonrt.InvalidArgumentError
        mine = {"status": kind.status, "error": f"rank {comm.rank}: {error}"}
    everywhere = gather_objects(comm, mine)
    for told in everywhere:
        if "error" in told:
            raise of_status(told["status"], told["error"])
    return [told["value"] for told in everywhere]


@dataclass(frozen=True)
class Spread:
    """How a DTensor lies: as it says itself, with ranks of the communicator."""

    mesh_shape: tuple[int, ...]
    ranks: tuple[int, ...]
    placements: str


def spread_of(name: str, tensor: torch.Tensor, number: dict[int, int]) -> Spread | None:
    """None for a plain tensor, which all ranks hold. `number`: communicator rank by global rank."""
    if not is_dtensor(tensor):
        return None
    mesh = tensor.device_mesh.mesh
    try:
        ranks = tuple(number[r] for r in mesh.flatten().tolist())
    except KeyError as rank:
        raise muonrt.InvalidArgumentError(
            f"param '{name}': its device mesh has rank {rank}, which is not in the process group; "
            "pass the process_group of all ranks that hold the parameters") from None
    if any(p.is_partial() for p in tensor.placements):
        raise muonrt.NotSupportedError(
            f"param '{name}': placements {tensor.placements}; a parameter cannot be partial")
    return Spread(tuple(mesh.shape), ranks, ", ".join(repr(p) for p in tensor.placements))


def lift(name: str, everywhere: list[Spread | None], reading: str) -> "muonrt.Layout | None":
    """The layout over all ranks, each of which may have another submesh.

    `everywhere`: every rank's, in rank order.
    """
    first = everywhere[0]
    if all(s is None for s in everywhere):
        return None
    if any(s is None for s in everywhere):
        raise muonrt.MismatchError(f"param '{name}': a DTensor on some ranks, plain on others")
    if any(s.placements != first.placements or s.mesh_shape != first.mesh_shape
           for s in everywhere):
        raise muonrt.MismatchError(f"param '{name}': ranks have other placements or mesh shapes")
    mesh = muonrt.Mesh(first.mesh_shape, ranks=first.ranks)
    try:
        return muonrt.Layout(mesh, first.placements, reading=reading).lift(
            [s.ranks for s in everywhere])
    except muonrt.InvalidArgumentError as error:
        raise muonrt.NotSupportedError(f"param '{name}': {error}") from None


def layout_of(name: str, tensor: torch.Tensor, everywhere: list[Spread | None], rank: int):
    """The muonrt.Layout, compared with where torch says that the shard begins."""
    literal = lift(name, everywhere, "literal")
    if literal is None:
        return None
    world, placements = len(everywhere), everywhere[0].placements
    # FSDP2 cuts what TP has cut already, and says so by a strided shard.
    layout = lift(name, everywhere, "ordered") if "StridedShard" in placements else literal
    shape = tuple(tensor.shape)
    local = tuple(local_of(tensor).shape)
    said = tuple(layout.local_shape(shape, rank, world))
    if local != said:
        raise muonrt.NotSupportedError(
            f"param '{name}': shard of {shape} by {placements} on mesh "
            f"{everywhere[0].mesh_shape} has shape {local} on rank {rank}; muonrt expects {said}")
    if 0 not in local:
        _compare_offsets(name, tensor, literal, rank, world)
    return layout


def _compare_offsets(name, tensor, literal, rank, world) -> None:
    """torch reports placements literally, also those of FSDP2 over TP."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape = tuple(tensor.shape)
    reported, offset = compute_local_shape_and_global_offset(
        shape, tensor.device_mesh, tensor.placements)
    runs = [literal.runs(shape, rank, dim, world) for dim in range(len(shape))]
    held = tuple(sum(end - begin for begin, end in r) for r in runs)
    if held == tuple(reported) and 0 not in held:
        begins = tuple(r[0][0] for r in runs)
        if begins != tuple(offset):
            raise muonrt.NotSupportedError(
                f"param '{name}': by torch its shard begins at {tuple(offset)} of {shape}, by "
                f"muonrt at {begins} ({tensor.placements}, rank {rank})")
    elif held != tuple(reported):
        raise muonrt.NotSupportedError(
            f"param '{name}': by torch its shard has shape {tuple(reported)}, by muonrt {held} "
            f"({tensor.placements}, rank {rank})")
