"""Tests rejected arguments and their messages, lifetimes, getters, and Ctrl-C."""

import gc
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from ranks import on_threads

import muonrt


def ones(*shape):
    return np.ones(shape or (4, 3), np.float32)


def optimizer(w=None, grad=None, **settings):
    w, grad = (ones() if array is None else array for array in (w, grad))
    return muonrt.Optimizer([muonrt.Param("w1", w, grad)], [muonrt.Group("muon")], **settings)


def read_only():
    array = ones()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("make, words", [
    (read_only, ["'w1'", "data", "read-only"]),
    (lambda: ones(3, 4).T, ["'w1'", "strides (1, 4)", "shape (4, 3)"]),
    (lambda: ones(8, 3)[::2], ["'w1'", "strides (6, 1)"]),
    (lambda: np.ones((4, 3)), ["'w1'", "float64"]),
    (lambda: np.ones((4, 3), np.float16), ["'w1'", "float16"]),
    (lambda: np.ones((4, 3), np.uint16), ["'w1'", "uint16"]),
    (lambda: [1.0, 2.0], ["'w1'", "list"])])
def test_a_rejected_array_is_named_with_its_values(make, words):
    with pytest.raises(muonrt.InvalidArgumentError) as caught:
        muonrt.Param("w1", make())
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_rejected_gradient_leaves_the_bound_one():
    one = optimizer()
    for bad in (ones(3, 4), np.ones((4, 3)), ones(3, 4).T):
        with pytest.raises(muonrt.InvalidArgumentError, match="'w1'"):
            one.set_grad("w1", bad)
    assert one.step(0.1).step == 1
    one.set_grad("w1", None)
    with pytest.raises(muonrt.InvalidArgumentError, match="w1"):
        one.step(0.1)
    assert one.step(0.1, inactive_params=[0]).step == 2


MESH = muonrt.Mesh((3, 2), ["dp", "tp"])
BAD = muonrt.InvalidArgumentError


@pytest.mark.parametrize("call, error, words", [
    (lambda: muonrt.Group("muon", learning_rate=1), TypeError, "no setting 'learning_rate'"),
    (lambda: muonrt.Group("muon", coefficients="fast"), BAD, "polar_express"),
    (lambda: muonrt.Group("muon", steps="five"), BAD, "steps is 'five'"),
    (lambda: optimizer(fast=True), TypeError, "no setting 'fast'"),
    (lambda: optimizer().set_group(0, momentum=2.0), BAD, "momentum"),
    (lambda: optimizer().set_data("w1", read_only()), BAD, "param 'w1': data is read-only"),
    (lambda: optimizer().set_data("w1", ones(3, 4)), BAD, "'w1': data.*.3, 4., not .4, 3."),
    (lambda: optimizer().step([0.25, 0.25]), BAD, r"len\(lr\) is 2"),
    (lambda: optimizer().step(0.1, qk_logits=np.zeros(3, np.float32)), BAD, "qk_logits"),
    (lambda: optimizer().step(0.1, qk_logits=np.zeros(2)), BAD, "qk_logits has dtype float64"),
    (lambda: muonrt.QkClip("qk", 0, 1), BAD, "kind is 'qk'; use one of q, k"),
    (lambda: muonrt.Layout(MESH, "S(0)"), BAD, "there are 1 placements for mesh .3, 2."),
    (lambda: muonrt.Layout(MESH, cuts=[("ep", 0)]), BAD, "no dimension 'ep'"),
    (lambda: muonrt.Layout(muonrt.Mesh((2,), ranks=[0, 2]), "S(0)").lift([(0, 2)] * 3 + [(1, 3)]),
     BAD, "rank 1 is not in its own submesh"),
    (lambda: optimizer(device="disk"), BAD, "device is 'disk'; use one of host, cuda"),
    *[(lambda rows=rows: muonrt.Part("q", rows=rows), BAD, "part 'q': rows is .*pass .begin, end.")
      for rows in (slice(0, 4), [], [4], "x")]])
def test_a_rejected_argument_is_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


NUMBERS = {
    "param": lambda v: muonrt.Param("w1", ones(), group=v), "lr_factor": lambda v: muonrt.Param("w1", ones(), lr_factor=v),
    "owner": lambda v: muonrt.Param("w1", ones(), owner=v), "shape": lambda v: muonrt.Param("w1", ones(), shape=(4, v)),
    "part": lambda v: muonrt.Part("q", lr_factor=v), "rows": lambda v: muonrt.Part("q", rows=(0, v)),
    "heads": lambda v: muonrt.QkClip("q", 0, v), "threshold": lambda v: muonrt.QkClip("q", 0, 1, threshold=v),
    "momentum": lambda v: muonrt.Group(momentum=v), "steps": lambda v: muonrt.Group(steps=v),
    "custom": lambda v: muonrt.Group(coefficients="custom", steps=1, custom=[1.0, v, 1.0]),
    "set_group": lambda v: optimizer().set_group(0, weight_decay=v), "window": lambda v: optimizer(window=v),
    "clip_norm": lambda v: optimizer(clip_norm=v), "lr": lambda v: optimizer().step(v),
    "rates": lambda v: optimizer().step([v]), "scale": lambda v: optimizer().step(0.1, grad_scale_inv=v),
    "inactive": lambda v: optimizer().step(0.1, inactive_params=[v]),
    "set_steps": lambda v: setattr(optimizer(), "steps", v), "mesh": lambda v: muonrt.Mesh((v,)),
    "route": lambda v: muonrt.route("w", v), "timeout": lambda v: muonrt.Comm.self().set_timeout(v),
    "ranks": lambda v: muonrt.ThreadGroup(v), "orthogonalize": lambda v: muonrt.orthogonalize(ones(), steps=v),
    "product": lambda v: muonrt.symmetric_product(ones(), alpha=v)}


@pytest.mark.parametrize("value", [True, np.True_, "1", b"1"], ids=repr)
@pytest.mark.parametrize("call", NUMBERS.values(), ids=NUMBERS)
def test_bools_and_texts_are_no_numbers(call, value):
    with pytest.raises((TypeError, BAD)):
        call(value)


@pytest.mark.parametrize("value", ["no", 2, 0.5, None], ids=repr)
def test_flags_are_bools(value):
    with pytest.raises(BAD, match="nesterov is .*; pass a bool"):
        muonrt.Group(nesterov=value)
    for flag in (True, np.False_, 1, 0):
        muonrt.Group(nesterov=flag)


def test_route_takes_keys_of_the_caller():
    assert muonrt.route("layers.0.bank.w", 3, ["bank"]) == ("muon", "stack")
    assert muonrt.route("layers.0.side_net.w", 2, adamw_keys=["side_net"]) == ("adamw", "none")
    assert muonrt.route("v_head.summary.weight", 2) == ("adamw", "none")


def test_messages_have_the_names_of_python():
    source = Path(__file__).parents[3] / "src"
    texts = [text for file in source.rglob("*.?pp") for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', file.read_text())
             if " " in text and "#include" not in text]
    of_c = re.compile(r"muonrt_[a-z]|MUONRT_(?!CUDA|ONEDNN|MPI)[A-Z]|\bNULL\b|\bn_[a-z]+ is\b")
    found = [text for text in texts if of_c.search(text)]
    assert len(found) > 60
    for text in found:
        here = muonrt._errors.in_python(text)
        assert not of_c.search(here.replace("muonrt_transport_t", "")), here
        for name, method in re.findall(r"\b(optimizer|comm|plan|layout|Comm)\.(\w+)", here):
            assert hasattr(getattr(muonrt, name.title()), method), here
    with pytest.raises(muonrt.InvalidArgumentError, match="^group 0: steps is -1"):
        muonrt.Optimizer([muonrt.Param("w1", ones())], [muonrt.Group(steps=-1)])
    with pytest.raises(muonrt.InvalidArgumentError, match="gram_restarts is set, but form is 'standard'"):
        muonrt.Optimizer([muonrt.Param("w1", ones())], [muonrt.Group(form="standard", gram_restarts=[2])])
    with pytest.raises(muonrt.InvalidArgumentError, match=r"^len\(groups\) is 0 with groups None"):
        muonrt.Optimizer([muonrt.Param("w1", ones())], [])


def test_fewer_than_half_of_the_ranks_recover_if_the_caller_says_so():
    def on_rank(comm):
        one = muonrt.Optimizer([muonrt.Param("w1", ones(), ones())], [muonrt.Group()], comm)
        one.step(0.1)
        if comm.rank == 1:
            alone = muonrt.Comm.self()
            with pytest.raises(muonrt.UndecidedError, match="survivor_policy to 'any'"):
                one.recover(alone)
            with pytest.raises(BAD, match="survivor_policy is 'all'; use one of majority, any"):
                one.recover(alone, "all")
            return one.recover(alone, survivor_policy="any")

    assert on_threads(2, on_rank)[1] == ("none", 1)


def test_statuses_are_exceptions():
    assert issubclass(muonrt.InvalidArgumentError, ValueError)
    assert issubclass(muonrt.TimeoutError, TimeoutError)
    names = {muonrt._core.status_name(c.status) for c in muonrt.Error.__subclasses__()}
    assert len(names) == 16 and "MUONRT_ERROR_UNKNOWN" not in names
    one = optimizer()
    one.close()
    with pytest.raises(muonrt.InvalidStateError, match="closed"):
        one.step(0.1)


def test_the_report_of_a_skipped_step():
    report = optimizer(grad=np.full((4, 3), np.nan, np.float32)).step(0.1)
    assert (report.skipped, report.nonfinite_rank, report.nonfinite_param) == (True, 0, 0)
    report = optimizer().step(0.1, found_inf=True)
    assert report.skipped and report.step == 0


def test_arrays_live_as_long_as_the_optimizer():
    w, grad = ones(), ones()
    w_there, grad_there = weakref.ref(w), weakref.ref(grad)
    one = optimizer(w, grad)
    del w, grad
    gc.collect()
    assert w_there() is not None and grad_there() is not None
    one.set_grad(0, ones())
    gc.collect()
    assert grad_there() is None
    state = one.state("w1", "momentum")
    one.step(0.1)
    one.close()
    assert w_there() is not None  # the array over the state keeps all other arrays alive
    assert state[0, 0] == pytest.approx(0.05)
    del state
    gc.collect()
    assert w_there() is None


def test_log():
    code = """if True:
        import logging, numpy, muonrt
        logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s")
        one = muonrt.Comm.self()
        muonrt.set_log_level("info")
        two = muonrt.Comm.self()
        muonrt.set_log_level(None)
        three = muonrt.Comm.self()
        muonrt.set_log_level(logging.ERROR)
        four = muonrt.Comm.self()
        muonrt.set_log_level(logging.DEBUG)
        five = muonrt.Comm.self()
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    lines = [line for line in run.stderr.splitlines() if line.startswith("muonrt ")]
    assert lines == ["muonrt INFO rank 0: communicator created (self, 1 rank)"] * 2, run.stderr
    with pytest.raises(ValueError, match="level is 'loud'"):
        muonrt.set_log_level("loud")


def test_copy_state_from():
    old_data, new_data = ones() * 2, ones()
    old, new = optimizer(old_data), optimizer(new_data)
    old.step(0.1)
    new.copy_state_from(old)
    assert new.steps == 1 and (new_data == old_data).all()
    for one in (old, new):
        one.step(0.1)
    assert (new_data == old_data).all()
    with pytest.raises(muonrt.InvalidArgumentError, match="old is None on all ranks"):
        new.copy_state_from(None)
    with pytest.raises(muonrt.InvalidArgumentError, match="from is this optimizer"):
        new.copy_state_from(new)


def test_getters():
    assert muonrt.route("layers.0.wq.weight", 2) == ("muon", "none")
    assert muonrt.route("layers.0.experts.w1", 3, ["experts"]) == ("muon", "stack")
    one = optimizer(trace=True, health_every=1)
    report = one.step(0.1)
    assert report.has_health and report.seconds > 0
    health = one.health()
    assert health["step"] == 1 and health["matrices"][0]["param"] == "w1"
    assert health["matrices"][0]["shape"] == (4, 3)
    json.loads(one.describe(json=True))
    json.loads(one.trace(json=True))
    assert "plan" in one.describe() and one.names == ["w1"] and one.find_param("w1") == 0
    assert one.counters()["orthogonalized"] == 1
    memory = one.memory()
    assert memory["allocated_bytes"] == one.counters()["allocated_bytes"]
    assert f'"state_bytes":{memory["state_bytes"]}' in one.describe(json=True)
    assert muonrt.version().count(".") == 2 and isinstance(muonrt.build_info(), dict)


WAITS = {
    "a step": """
        import threading, numpy as np
        group = muonrt.ThreadGroup(2)
        made = {}
        def make(rank):
            w = np.ones((4, 3), np.float32)
            made[rank] = muonrt.Optimizer([muonrt.Param("w", w, w.copy())], [muonrt.Group("muon")],
                                          group.comm(rank))
        peer = threading.Thread(target=make, args=(1,))
        peer.start()
        make(0)
        peer.join()
        def wait():
            made[0].step(0.1)  # rank 1 runs no step
    """,
    "rank 0": """
        def wait():
            muonrt.Comm.tcp(0, 2, "127.0.0.1:0", bytes(16), listening=str)
    """,
    "rank 1": """
        import socket
        silent = socket.create_server(("127.0.0.1", 0))
        def wait():
            muonrt.Comm.tcp(1, 2, "127.0.0.1:%d" % silent.getsockname()[1], bytes(16))
    """,
    "a folder": """
        import tempfile
        def wait():
            muonrt.Comm.folder(1, 2, tempfile.mkdtemp(), "run")
    """,
}


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_a_wait_for_a_peer(name):
    program = "import signal, muonrt\n" + textwrap.dedent(WAITS[name]) + textwrap.dedent("""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in background
        print("ready", flush=True)
        try:
            wait()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.5)
    begin = time.monotonic()
    os.kill(child.pid, signal.SIGINT)
    output, _ = child.communicate(timeout=60)
    assert output == "interrupted\n" and child.returncode == 0
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("call", ["one.step(0.1)", "one.counters()", "comm.barrier()", "wait_in_callback()",
                                  "wait_in_gather()"])
def test_a_daemon_thread_inside_a_call_does_not_fail_the_end_of_the_process(call):
    program = textwrap.dedent("""
        import threading, time, numpy as np, muonrt
        group = muonrt.ThreadGroup(2)
        comms = [group.comm(rank) for rank in range(2)]
        made = [None, None]
        def make(rank):
            w = np.ones((300, 300), np.float32)
            made[rank] = muonrt.Optimizer([muonrt.Param("w", w, w.copy())], [muonrt.Group("muon")],
                                          comms[rank])
        threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        one, comm = made[0], muonrt.ThreadGroup(2).comm(0)
        def sleeps(*_):
            time.sleep(0.05)
        def wait_in_callback():
            own = muonrt.Comm.functions(0, 2, sleeps, sleeps)
            while True:
                own.barrier()
        def endless(*_):
            while True:
                time.sleep(0.01)
        def wait_in_gather():
            w = np.ones((3, 3), np.float32)
            muonrt.Optimizer([muonrt.Param("w", w, w.copy())], [muonrt.Group("muon")], gather=endless,
                             redistribute=endless, assign=lambda info: 0).step(0.1)
        def work():
            while True:
                try:
                    CALL  # rank 1 never takes part
                except muonrt.Error:
                    pass
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
    """).replace("CALL", call)
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert child.returncode == 0 and child.stderr == "", (child.returncode, child.stderr)


def test_a_communicator_may_be_closed_while_another_thread_aborts_it():
    for _ in range(200):
        comm = muonrt.ThreadGroup(2).comm(0)
        start = threading.Barrier(2)

        def abort():
            start.wait()
            try:
                comm.abort("stop")
            except muonrt.InvalidStateError as error:
                assert "closed" in str(error)

        thread = threading.Thread(target=abort)
        thread.start()
        start.wait()
        comm.close()
        thread.join()
