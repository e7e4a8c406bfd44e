"""Tests the caller's assign, gather and redistribute functions (include/muonrt/distributed.h), and
meshes."""

import gc
import weakref

import numpy as np
import pytest

import muonrt
from ranks import on_threads

SHAPES = {"a": (7, 5), "e": (4, 3, 5), "b": (2, 6), "c": (5, 5)}  # "e" is a stack
RANKS = 3


def rows_of(comm):
    return muonrt.Layout(muonrt.Mesh((comm.size,)), "S(0)")


def mine(comm, array):
    runs = rows_of(comm).runs(array.shape, comm.rank, 0)
    begin, end = runs[0] if runs else (0, 0)
    return np.ascontiguousarray(array[begin:end])


class Exchange:
    """Moves matrices over a second communicator with an all-gather of whole shards."""

    def __init__(self, comm, owner_of=lambda info: info.index % info.world):
        self.comm, self.owner_of, self.calls, self.fail = comm, owner_of, [], None

    def assign(self, info):
        assert info.shape == list(SHAPES[info.name]) and info.world == self.comm.size
        assert info.holders == [r for r in range(self.comm.size)
                                if 0 not in rows_of(self.comm).local_shape(info.shape, r)]
        return self.owner_of(info)

    def all(self, array, shape):
        """Returns the arrays of all ranks. `shape` is the largest shape of any rank."""
        size = int(np.prod(shape)) * array.dtype.itemsize
        return [np.frombuffer(b, array.dtype) for b in
                self.comm.allgather(array.tobytes().ljust(size, b"\0"))]

    def gather(self, name, owner, local, full, stream):
        self.calls.append(("gather", name, owner))
        assert stream is None and not local.flags.writeable
        assert (full is None) == (owner != self.comm.rank)
        layout, shape = rows_of(self.comm), SHAPES[name]
        parts = self.all(local, layout.local_shape(shape, 0))
        if full is not None:
            locals = [layout.local_shape(shape, r) for r in range(self.comm.size)]
            whole = np.concatenate([p[:np.prod(s)].reshape(s) for p, s in zip(parts, locals)])
            full[...] = whole[self.matrices(name, owner)]
        if self.fail == ("gather", name):
            raise KeyError("planted")

    def redistribute(self, name, owner, full, local, stream):
        self.calls.append(("redistribute", name, owner))
        assert full is None or not full.flags.writeable
        chosen = self.matrices(name, owner)
        shape = np.empty(SHAPES[name], bool)[chosen].shape
        part = self.all(np.empty((0,), local.dtype) if full is None else full, shape)[owner]
        whole = np.zeros(SHAPES[name], local.dtype)
        whole[chosen] = part.reshape(shape)
        held = np.zeros(SHAPES[name], bool)
        held[chosen] = True
        np.copyto(local, mine(self.comm, whole), where=mine(self.comm, held))
        if self.fail == ("redistribute", name):
            raise KeyError("planted")

    def matrices(self, name, owner):
        given = self.owner_of(muonrt_info(name, self.comm.size))
        if isinstance(given, int):
            return slice(None)
        return [i for i, rank in enumerate(given) if rank == owner]


class muonrt_info:
    """Returns the fields of muonrt.AssignInfo that `owner_of` reads."""

    def __init__(self, name, world):
        self.name, self.world, self.index = name, world, list(SHAPES).index(name)


def drawn(seed, name):
    return np.random.default_rng([seed, *name.encode()]).standard_normal(SHAPES[name], np.float32)


def train(comm, exchange=None, options=None, steps=2):
    held = [mine(comm, drawn(0, n)) for n in SHAPES]
    params = [muonrt.Param(n, data, shape=s, layout=rows_of(comm),
                           view="stack" if len(s) == 3 else "none")
              for (n, s), data in zip(SHAPES.items(), held)]
    if exchange is not None:
        options = dict(assign=exchange.assign, gather=exchange.gather,
                       redistribute=exchange.redistribute) | options
    with muonrt.Optimizer(params, [muonrt.Group("muon")], comm, **options or {}) as optimizer:
        for step in range(steps):
            optimizer.set_grads([mine(comm, drawn(step + 1, n)) for n in SHAPES])
            optimizer.step(0.02)
        bytes_sent = optimizer.counters()["bytes_sent"]
    return [data.tobytes() for data in held], bytes_sent


def per_matrix(info):
    return [2, 0, 1, 0] if info.name == "e" else info.index % info.world


@pytest.mark.parametrize("owner_of", [lambda info: info.index % info.world, per_matrix])
@pytest.mark.parametrize("settings", [
    {}, dict(async_parallelism=False, prefetch_count=0), dict(prefetch_count=3),
    dict(transport_dtype="float32"), dict(window=1)])
def test_same_bits(settings, owner_of):
    second = muonrt.ThreadGroup(RANKS)

    def work(comm):
        exchange = Exchange(second.comm(comm.rank), owner_of)
        own, bytes_sent = train(comm, exchange, settings)
        assert bytes_sent == 0
        built_in, _ = train(comm, None, {k: v for k, v in settings.items() if k != "async_parallelism"
                                         and k != "prefetch_count"})
        assert own == built_in
        return exchange.calls

    calls = on_threads(RANKS, work)
    assert calls[0] == calls[1] == calls[2]
    owners = 6 if owner_of is per_matrix else 4  # with per_matrix, "e" has three owners
    assert len(calls[0]) == 2 * 2 * owners


def test_only_assign_selects_owners():
    def work(comm):
        def assign(info):
            assert info.matrix_holders[0] == (info.holders if info.name != "e" else [0])
            return [ranks[0] for ranks in info.matrix_holders]

        assert train(comm, None, dict(assign=assign))[0] == train(comm)[0]

    on_threads(2, work)


@pytest.mark.parametrize("fail", [("gather", "b"), ("redistribute", "e")])
def test_exceptions_end_the_step_everywhere(fail):
    second = muonrt.ThreadGroup(RANKS)

    def work(comm):
        exchange = Exchange(second.comm(comm.rank))
        data = {n: mine(comm, drawn(0, n)) for n in SHAPES}
        params = [muonrt.Param(n, data[n], mine(comm, drawn(1, n)), shape=s, layout=rows_of(comm),
                               view="stack" if len(s) == 3 else "none") for n, s in SHAPES.items()]
        optimizer = muonrt.Optimizer(params, [muonrt.Group("muon")], comm, assign=exchange.assign,
                                     gather=exchange.gather, redistribute=exchange.redistribute)
        before = {n: a.copy() for n, a in data.items()}
        exchange.fail = fail if comm.rank == 1 else None
        with pytest.raises(muonrt.CallbackError, match=f"'{fail[1]}': {fail[0]} returned") as raised:
            optimizer.step(0.02)
        cause = raised.value.__cause__
        assert (repr(cause) if comm.rank == 1 else cause) == (
            "KeyError('planted')" if comm.rank == 1 else None)
        assert all((data[n] == before[n]).all() for n in SHAPES)
        exchange.fail = None
        assert optimizer.step(0.02).step == 1  # the error does not affect later steps
        optimizer.close()

    on_threads(RANKS, work)


def one(**options):
    return muonrt.Optimizer([muonrt.Param("a", np.ones((2, 3), np.float32),
                                          np.ones((2, 3), np.float32))],
                            [muonrt.Group("muon")], **options)


def fill(name, owner, source, target, stream):
    target[...] = source


@pytest.mark.parametrize("options, error, says", [
    (dict(assign=3), muonrt.InvalidArgumentError, "assign is 3; pass a function"),
    (dict(prefetch_count=64), muonrt.InvalidArgumentError, "prefetch_count is 64"),
    (dict(prefetch_count="x"), muonrt.InvalidArgumentError, "prefetch_count is 'x'"),
    (dict(prefetch_count=1, window=4), muonrt.InvalidArgumentError, "window is 4 and prefetch_count is 1"),
    (dict(gather=fill), muonrt.InvalidArgumentError, "only gather"),
    (dict(gather=fill, redistribute=fill), muonrt.InvalidArgumentError, "without assign"),
    (dict(assign=lambda i: 5), muonrt.InvalidArgumentError, "owner 5"),
    (dict(assign=lambda i: 0, gather=fill, redistribute=fill, commit="eager"),
     muonrt.NotSupportedError, "commit is eager"),
    (dict(assign=lambda i: "x"), muonrt.CallbackError, "'a': assign returned 1")])
def test_bad_options(options, error, says):
    with pytest.raises(error, match=says) as raised:
        one(**options)
    if error is muonrt.CallbackError:
        assert "assign returned 'x'; return a rank" in str(raised.value.__cause__)


def test_a_returned_array_is_an_error():
    """A gather function that returns a tensor instead of writing to `full` causes an error."""
    optimizer = one(assign=lambda info: 0, gather=lambda name, owner, local, full, stream: local,
                    redistribute=fill)
    for step in optimizer.step, lambda lr: (optimizer.step_async(lr), optimizer.wait()):
        with pytest.raises(muonrt.CallbackError) as raised:
            step(0.1)
        assert "returned a" in str(raised.value.__cause__) and "write to" in str(raised.value.__cause__)


def test_functions_may_refer_to_the_optimizer():
    class Trainer:
        def gather(self, name, owner, local, full, stream):
            self.kept = full
            full[...] = local

    trainer = Trainer()
    trainer.optimizer = one(assign=lambda info: 0, gather=trainer.gather, redistribute=fill)
    trainer.optimizer.step(0.1)
    kept, ended = trainer.kept, weakref.ref(trainer)
    del trainer
    gc.collect()
    assert ended() is None
    assert kept.shape == (2, 3)  # the memory exists, but its values are undefined
    kept.sum()


GRID = {"dp": [[0, 4], [1, 5], [2, 6], [3, 7]], "fsdp": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "tp": [[0, 1], [2, 3], [4, 5], [6, 7]]}


def test_meshes_from_groups():
    mesh = muonrt.Mesh.from_groups(GRID)
    assert (mesh.shape, mesh.names, mesh.ranks) == ([2, 2, 2], ["dp", "fsdp", "tp"], list(range(8)))
    # One group for each rank. The order of ranks differs between the groups.
    turned = {n: [[7 - r for r in g] for g in GRID[n] for _ in g] for n in ("tp", "dp", "fsdp")}
    mesh = muonrt.Mesh.from_groups(turned)
    assert (mesh.names, mesh.ranks) == (["tp", "dp", "fsdp"], [7, 5, 3, 1, 6, 4, 2, 0])
    stage = mesh.select("dp", 1)
    assert (stage.shape, stage.names, stage.ranks) == ([2, 2], ["tp", "fsdp"], [3, 1, 2, 0])
    assert stage.select(1, 0).select("tp", 1).ranks == [2]
    assert muonrt.Mesh((3, 2)).select(1, 1).ranks == [1, 3, 5]
    for mesh, dim, index, says in ((stage, "pp", 0, "has no dimension 'pp'"), (stage, 1, 2, "0 to 1"),
                                   (stage, 1, -1, "index is -1")):
        with pytest.raises(muonrt.InvalidArgumentError, match=says):
            mesh.select(dim, index)


@pytest.mark.parametrize("groups, says", [
    ({}, "no groups"),
    ({"tp": []}, "tp: there are no ranks"),
    ({"tp": [0, 1]}, "tp: the groups are"),
    ({"tp": [[0, 1], [2]]}, r"tp: the group \(2,\) has 1 ranks"),
    ({"tp": [[0, 1], [1, 2]]}, r"tp: rank 1 is in the group \(1, 2\) and in \(0, 1\)"),
    ({"tp": [[0, 0]]}, "rank 0 is in the group .* twice"),
    ({"tp": [[0, 1], [2, 3]]}, "2 ranks, but have 4"),
    ({"dp": [[0, 1]], "tp": [[0], [2]]}, "tp: no group has rank 1"),
    ({"dp": [[0], [1]], "tp": [[0, 1, 2]]}, "tp: the groups have 3 ranks"),
    ({"dp": [[0, 1], [2, 3]], "tp": [[0, 1], [2, 3]]}, "have the same place"),
    ({"dp": [[0, 1], [2, 3]], "tp": [[0, 3], [1, 2]]}, "tp: ranks 0 and 3 of the group .* have different")])
def test_groups_that_form_no_mesh(groups, says):
    with pytest.raises(muonrt.InvalidArgumentError, match=says):
        muonrt.Mesh.from_groups(groups)


def test_layouts_from_names():
    mesh = muonrt.Mesh.from_groups(GRID)
    assert muonrt.Layout.from_names(mesh, tp_dim=0).placements == ["R", "SS(0,2)", "S(0)"]
    assert muonrt.Layout.from_names(mesh, 1).placements == ["R", "S(0)", "S(1)"]
    experts = muonrt.Mesh((2, 3), ["efsdp", "ep"])
    assert muonrt.Layout.from_names(experts, expert=True).placements == ["SS(0,3)", "S(0)"]
    assert muonrt.Layout.from_names(experts).placements == ["S(0)", "R"]
    # The cases are the rows of include/muonrt/strategies.h.
    layout = muonrt.Layout.from_names(muonrt.Mesh((2, 2), ["fsdp", "tp"]), 0)
    assert [layout.runs((8,), r, 0) for r in range(4)] == [[(0, 2)], [(4, 6)], [(2, 4)], [(6, 8)]]
    with pytest.raises(muonrt.InvalidArgumentError, match="'pipe' has an unknown name"):
        muonrt.Layout.from_names(muonrt.Mesh((2,), ["pipe"]))


def test_layers_of_names():
    names = {"layers.3.attention.wq.weight": ("q", 3), "model.layers.11.self_attn.k_proj.weight": ("k", 11),
             "layers.0.wq_b.weight": ("mla_q", 0), "layers.2.wkv_b.weight": ("mla_kv", 2),
             "layers.3.w1.weight": (None, -1)}
    assert {name: muonrt.parse_qk_layer(name) for name in names} == names
