"""Converts torch's process groups to communicators, and DTensors to layouts, for muonrt.torch."""

import contextlib
import json
import os
import secrets
import socket
import sys
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

import muonrt
from muonrt import _addresses, _torch_flat
from muonrt._errors import of_status

# If gloo loses a peer, a rank waits this number of seconds for the peer's error to arrive over TCP.
REASON_S = 5.0
# Timeout in seconds for finding an address where rank 0 can be reached.
CONNECT_S = 60.0
# A tag that no message uses. Gloo selects a connection by the tag, and this tag selects the same
# connection as tag 0, the tag of all messages.
NO_TAG = 840


def is_dtensor(tensor) -> bool:
    """Returns whether a tensor is a DTensor. Does not import the DTensor module, because the import
    takes half a second, and no DTensor can exist before the import."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, getattr(module, "DTensor", ()))


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's shard as a detached tensor that shares its memory."""
    if not is_dtensor(tensor):
        return tensor.detach()
    with torch.no_grad():
        return tensor.to_local().detach()


def on_device(device: torch.device):
    """Returns a context manager that makes `device` the current device, as exports through DLPack
    require."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def stream_of(device: torch.device) -> int | None:
    """Returns the current CUDA stream as a number, or None on the host."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


def settle(device: torch.device) -> None:
    """Waits until the work on the current stream has ended."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _gpu_of(device: torch.device) -> str | None:
    """Returns a value that identifies the GPU among all GPUs of the machine. The device index would
    not be enough, because each process may see only one GPU. Returns None on the host."""
    if device.type != "cuda":
        return None
    return str(torch.cuda.get_device_properties(device).uuid)


def comm_of(device: torch.device, process_group=None,
            interface: str | None = None) -> tuple[muonrt.Comm, list[int]]:
    """Creates a communicator for parameters on `device` over the ranks of a process group.

    The communicator uses NCCL if each rank has its own GPU. Otherwise data pass through host
    memory: over TCP on one machine, and over gloo on multiple machines. Rank 0 broadcasts its TCP
    addresses and a secret. On multiple machines, each rank connects to the first address that it
    can reach. If `interface` (a name or an address) is set, rank 0 listens only on this interface.
    The second result is the list of global ranks in the order of the communicator. Collective over
    the group.
    """
    group, ranks = None, [0]
    if dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD if process_group is None else process_group
        ranks = dist.get_process_group_ranks(group)
    places = [None] * len(ranks)
    if len(ranks) == 1:
        places = [(None, _gpu_of(device))]
        host = muonrt.Comm.self()
    else:
        mine = _addresses.machine(socket.gethostname()), _gpu_of(device)
        dist.all_gather_object(places, mine, group=group)
        host = _connect(group, ranks, [machine for machine, _ in places], interface)
    gpus = [place for place in places if place[1] is not None]
    if gpus and len(gpus) < len(places):
        raise muonrt.MismatchError(
            f"the devices of the ranks' parameters differ: {['CUDA' if gpu else 'the host' for _, gpu in places]}; "
            "put all parameters on CUDA, or all on the host")
    if len(set(gpus)) == len(places) > 1:
        return muonrt.Comm.nccl(host, device.index), ranks
    if len({machine for machine, _ in places}) > 1:
        # The TCP connections stay open, because gloo does not transmit errors.
        host = over_gloo(host, ranks)
    return (muonrt.Comm.staged(host, device.index) if gpus else host), ranks


def _connect(group, ranks: list[int], machines: list, interface: str | None) -> muonrt.Comm:
    """Creates a communicator over TCP for the ranks of a group."""
    rank = dist.get_rank(group)
    is_broadcast = False

    def broadcast(addresses, secret):
        """Sends rank 0's addresses and secret, or None and an error text, to the other ranks."""
        nonlocal is_broadcast
        is_broadcast = True
        message = [addresses, secret]
        dist.broadcast_object_list(message, src=ranks[0], group=group)
        return message

    if rank > 0:
        addresses, secret = broadcast(None, None)
        if addresses is None:
            raise muonrt.CommError(secret)
        hosts, port = addresses
        host = hosts[0] if len(hosts) == 1 else _addresses.reachable(hosts, port, CONNECT_S)
        return muonrt.Comm.tcp(rank, len(ranks), _place(host, port), secret)
    secret = secrets.token_bytes(16)
    try:
        hosts, everywhere = ["127.0.0.1"], "127.0.0.1"
        if len(set(machines)) > 1:
            hosts = _addresses.listening_addresses(
                interface, os.environ.get("MASTER_ADDR"), has_store=ranks[0] == 0)
            everywhere = "::" if any(":" in host for host in hosts) else "0.0.0.0"
        return muonrt.Comm.tcp(
            0, len(ranks), _place(everywhere, 0), secret,
            listening=lambda address: broadcast((hosts, int(address.rsplit(":", 1)[1])), secret))
    except Exception as error:
        if not is_broadcast:  # the other ranks wait for the broadcast
            broadcast(None, f"rank 0: {error}")
        raise


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def over_gloo(tcp: muonrt.Comm, ranks: list[int]) -> muonrt.Comm:
    """Creates a communicator that sends data over a new gloo group, and errors over `tcp`.

    `ranks`: the global ranks, in the order of `tcp`. After this call, the communicator no longer
    needs the caller's process group. Collective.
    """
    group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    gloo = group._get_backend(torch.device("cpu"))
    rank, size = tcp.rank, tcp.size
    number = [dist.get_group_rank(group, r) for r in ranks]  # gloo may order ranks differently
    tcp.set_timeout(REASON_S)

    def exchange(sends, receives, timeout):
        end = time.monotonic() + timeout
        own_sizes = [(peer, bytearray(len(view).to_bytes(8, "little"))) for peer, view in sends]
        peer_sizes = [(peer, bytearray(8)) for peer, _ in receives]
        # The ranks first compare sizes, because gloo terminates a process that receives too many
        # bytes.
        move(own_sizes, peer_sizes, end)
        for (peer, length), (_, view) in zip(peer_sizes, receives):
            if (sent := int.from_bytes(length, "little")) != len(view):
                raise muonrt.MismatchError(
                    f"rank {peer} sends {sent} bytes, but rank {rank} expects {len(view)}; pass the "
                    "same size on both ranks")
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
            disconnect()  # so that gloo no longer writes to these views
            if time.monotonic() >= end:
                raise TimeoutError(
                    f"the exchange with rank {peer} did not complete before the timeout; check whether "
                    f"rank {peer} is still running, or raise timeout_ms") from error
            raise_reason(peer, error)

    def allgather(mine, all, timeout):
        parts = [all[i * len(mine):(i + 1) * len(mine)] for i in range(size)]
        parts[rank][:] = mine
        others = [i for i in range(size) if i != rank]
        exchange([(i, mine) for i in others], [(i, parts[i]) for i in others], timeout)

    def raise_reason(peer, error):
        """Raises the error that a rank has sent over TCP. If no error arrives, raises gloo's
        error."""
        start = time.monotonic()
        try:
            # No rank sends this message, so only an error can arrive.
            tcp.exchange([], [(peer, bytearray(1))])
        except muonrt.TimeoutError:
            if time.monotonic() - start < REASON_S:  # a peer has reported a timeout of its operation
                raise
            raise muonrt.CommError(f"rank {peer}: {error}") from error

    def disconnect():
        """Closes gloo's connections, so that no operation in the group keeps waiting on this rank
        or its peers."""
        nothing = torch.empty(1, dtype=torch.uint8)
        with contextlib.suppress(RuntimeError):  # after a timeout gloo closes its connections
            gloo.recv([nothing], number[rank - 1], NO_TAG).wait(timedelta(milliseconds=1))

    def abort(message, status):
        tcp.abort(message, status)
        disconnect()

    def close():
        nonlocal gloo, group
        tcp.close()
        disconnect()
        if dist.is_initialized():
            with contextlib.suppress(ValueError):  # the group may belong to an earlier initialization
                dist.destroy_process_group(group)
        gloo = group = None

    return muonrt.Comm.functions(rank, size, exchange, allgather, name="gloo",
                                 caller_thread_only=False, abort=abort, close=close)


def gather_objects(comm: muonrt.Comm, mine) -> list:
    """Gathers a JSON value from every rank, in rank order. Collective."""
    text = json.dumps(mine).encode()
    sizes = [int.from_bytes(b, "little") for b in comm.allgather(len(text).to_bytes(8, "little"))]
    padded = comm.allgather(text.ljust(max(sizes)))
    return [json.loads(b[:n]) for b, n in zip(padded, sizes)]


def run_collectively(comm: muonrt.Comm, function) -> list:
    """Runs `function()` on every rank and returns the results of all ranks, which must be JSON
    values. If `function` raises an error on any rank, all ranks raise this error. Collective."""
    try:
        mine = {"value": function()}
    except Exception as error:
        # Do not bind the error to another name: its traceback would keep the optimizer alive until the next
        # garbage collection.
        status = error.status if isinstance(error, muonrt.Error) else muonrt.InvalidArgumentError.status
        mine = {"status": status, "error": f"rank {comm.rank}: {error}"}
    everywhere = gather_objects(comm, mine)
    for result in everywhere:
        if "error" in result:
            raise of_status(result["status"], result["error"])
    return [result["value"] for result in everywhere]


@dataclass(frozen=True)
class TensorPlacement:
    """The mesh and the placements of a DTensor. For a shard of FSDP1, `placements` is "flat BEGIN
    END". `ranks` are ranks in the communicator."""

    mesh_shape: tuple[int, ...]
    ranks: tuple[int, ...]
    placements: str


def placement_of(name: str, tensor: torch.Tensor, number: dict[int, int]) -> TensorPlacement | None:
    """Returns the placement of a DTensor, or None for a plain tensor, which every rank holds as a
    whole.

    `number` maps a global rank to its rank in the communicator.
    """
    if not is_dtensor(tensor):
        return None
    mesh = tensor.device_mesh.mesh
    try:
        ranks = tuple(number[r] for r in mesh.flatten().tolist())
    except KeyError as rank:
        raise muonrt.InvalidArgumentError(
            f"param '{name}': the device mesh has rank {rank}, which is not in the process group; "
            "pass the process_group of all ranks that hold the parameters") from None
    if any(p.is_partial() for p in tensor.placements):
        raise muonrt.NotSupportedError(
            f"param '{name}': the placements are {tensor.placements}, but a parameter cannot be "
            "partial; redistribute it")
    return TensorPlacement(tuple(mesh.shape), ranks, ", ".join(repr(p) for p in tensor.placements))


def lift(name: str, everywhere: list[TensorPlacement | None],
         reading: str) -> "muonrt.Layout | None":
    """Returns the layout over all ranks, even if ranks have different submeshes.

    `everywhere`: the placements of all ranks, in rank order.
    """
    first = everywhere[0]
    if all(s is None for s in everywhere):
        return None
    if any(s is None for s in everywhere):
        raise muonrt.MismatchError(f"param '{name}' is a DTensor on some ranks and a plain tensor on "
                                   "others; use the same type on all ranks")
    if any(s.placements != first.placements or s.mesh_shape != first.mesh_shape
           for s in everywhere):
        raise muonrt.MismatchError(f"param '{name}': placements or mesh shapes differ between ranks; "
                                   "use the same on all ranks")
    mesh = muonrt.Mesh(first.mesh_shape, ranks=first.ranks)
    try:
        return muonrt.Layout(mesh, first.placements, reading=reading).lift(
            [s.ranks for s in everywhere])
    except muonrt.InvalidArgumentError as error:
        raise muonrt.NotSupportedError(f"param '{name}': {error}") from None


def layout_of(name: str, tensor: torch.Tensor, everywhere: list[TensorPlacement | None], rank: int):
    """Returns the muonrt.Layout of a parameter. Raises an error if torch reports a different offset
    for this rank's shard."""
    if any(shard is not None and shard.placements.startswith("flat") for shard in everywhere):
        return _torch_flat.layout_of(name, everywhere)
    literal = lift(name, everywhere, "literal")
    if literal is None:
        return None
    world, placements = len(everywhere), everywhere[0].placements
    # If TP has sharded a parameter before FSDP2, FSDP2 shards the local tensors and records this as
    # a strided shard.
    layout = lift(name, everywhere, "ordered") if "StridedShard" in placements else literal
    shape = tuple(tensor.shape)
    local = tuple(local_of(tensor).shape)
    expected = tuple(layout.local_shape(shape, rank, world))
    if local != expected:
        raise muonrt.NotSupportedError(
            f"param '{name}': the shard of {shape} with placements {placements} on mesh "
            f"{everywhere[0].mesh_shape} has shape {local} on rank {rank}, but muonrt expects {expected}")
    if 0 not in local:
        _compare_offsets(name, tensor, literal, rank, world)
    return layout


def _compare_offsets(name, tensor, literal, rank, world) -> None:
    """Compares the layout with the offset that torch reports. `literal`: the layout in the literal
    reading of placements. Even with FSDP2 over TP, torch computes the offset with this reading."""
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
                f"param '{name}': according to torch the shard of rank {rank} begins at {tuple(offset)} "
                f"of {shape}, but according to muonrt at {begins} (placements {tensor.placements})")
    elif held != tuple(reported):
        raise muonrt.NotSupportedError(
            f"param '{name}': according to torch the shard of rank {rank} has shape {tuple(reported)}, "
            f"but according to muonrt {held} (placements {tensor.placements})")
