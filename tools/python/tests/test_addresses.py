"""Tests how ranks on multiple machines find an address that they can connect to: with a table of
cases, and with connections between network namespaces that act as machines."""

import contextlib
import os
import shutil
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import muonrt  # noqa: E402
from muonrt import _addresses  # noqa: E402

OWN = {"lo": ["127.0.0.1", "::1"], "docker0": ["172.17.0.1"], "eth0": ["10.0.0.1", "fd00::1"],
       "ib0": ["10.1.0.1"], "v6": ["fd01::1"]}


@pytest.mark.parametrize("names, likely, expected", [
    (None, [], ["172.17.0.1", "10.0.0.1", "10.1.0.1", "127.0.0.1"]),
    (None, ["10.0.0.1"], ["10.0.0.1", "172.17.0.1", "10.1.0.1", "127.0.0.1"]),
    # In Debian's /etc/hosts, the host name resolves to 127.0.1.1. Names are not replaced by
    # addresses, because other machines may resolve them differently.
    (None, ["127.0.1.1", "10.1.0.1"], ["10.1.0.1", "172.17.0.1", "10.0.0.1", "127.0.1.1", "127.0.0.1"]),
    (None, ["node0", "10.1.0.1"], ["node0", "10.1.0.1", "172.17.0.1", "10.0.0.1", "127.0.0.1"]),
    (None, ["fd00::1"], ["fd00::1", "fd01::1", "::1"]),  # only one version of IP
    ("eth0", ["10.1.0.1"], ["10.0.0.1"]),
    ("ib0, eth0", [], ["10.1.0.1", "10.0.0.1"]),
    ("v6", [], ["fd01::1"]),
    ("fd00::1", [], ["fd00::1"]),
    ("10.1.0.1", [], ["10.1.0.1"]),
    ("absent,ib0", [], ["10.1.0.1"]),
    ("lo", [], ["127.0.0.1"]),
    ("absent", ["10.0.0.1"], []),
    ("10.9.9.9", [], []),
])
def test_the_choice(names, likely, expected):
    assert _addresses.select(OWN, names, likely) == expected


def test_machines_with_one_name_differ(monkeypatch):
    assert _addresses.machine("node") == _addresses.machine("node") != _addresses.machine("other")
    here = _addresses.machine("node")
    monkeypatch.setattr(os, "readlink", lambda path: "net:[0]")
    assert _addresses.machine("node") != here


def test_an_unknown_interface_is_named():
    with pytest.raises(muonrt.InvalidArgumentError, match="'none0' is not one of this machine's.*lo 127.0.0.1"):
        _addresses.listening_addresses("none0", None, has_store=True)


def test_no_rank_answers():
    with pytest.raises(muonrt.CommError, match=r"port 1 of 127\.0\.0\.1 \(.*refused\); pass the interface"):
        _addresses.reachable(["127.0.0.1"], 1, 0.2)


# Ranks 0 and 2 run on the machine with torch's store, and rank 1 runs on another machine. Both
# machines have the same host name, and each of them resolves it to 127.0.1.1. Both also have a
# bridge, with the same address on each machine. The first machine also resolves the store's name to
# 127.0.1.1.
RANK = """
import os, sys, torch, torch.distributed as dist
from muonrt import _torch_ranks as ranks
dist.init_process_group("gloo")
world, rank = [0, 1, 2], dist.get_rank()
stage = dist.new_group([1, 2])
def gathered(comm):
    with comm:
        return [b[0] for b in comm.allgather(bytes([rank]))]
of = lambda group, *more: ranks.comm_of(torch.device("cpu"), group, *more)[0]
assert gathered(of(None)) == world
del os.environ["GLOO_SOCKET_IFNAME"]
tcp = lambda group, members, interface: ranks._connect(group, members, ["a", "b", "a"], interface)
assert gathered(tcp(dist.group.WORLD, world, None)) == world
assert gathered(tcp(dist.group.WORLD, world, "10.77.0.1")) == world
if rank > 0:
    assert gathered(tcp(stage, [1, 2], None)) == [1, 2]
    assert gathered(tcp(stage, [1, 2], "wire")) == [1, 2]
try:
    tcp(dist.group.WORLD, world, "none0")
    sys.exit("none0 is accepted")
except ranks.muonrt.Error as error:
    assert "interface 'none0' is not one of this machine's" in str(error), error
os.environ["GLOO_SOCKET_IFNAME"] = "wire"
if rank > 0:
    assert gathered(of(stage)) == [1, 2]
dist.barrier()
"""


@contextlib.contextmanager
def two_machines():
    names = [f"muonrt{os.getpid()}{c}" for c in "ab"]

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True)

    try:
        done = [ip("netns", "add", name) for name in names]
        done += [ip("-n", name, "link", "add", "bridge0", "type", "veth", "peer", "name", "bridge1")
                 for name in names]
        done.append(ip("link", "add", "wire", "netns", names[0], "type", "veth", "peer", "name", "wire",
                       "netns", names[1]))
        for i, name in enumerate(names):
            for link, address in (("lo", None), ("bridge0", "172.17.0.1/16"), ("wire", f"10.77.0.{i + 1}/24")):
                done += [ip("-n", name, "addr", "add", address, "dev", link)] if address else []
                done.append(ip("-n", name, "link", "set", link, "up"))
        if any(d.returncode for d in done):
            pytest.skip(f"network namespaces: {[d.stderr for d in done if d.returncode]}")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"),
                    reason="needs root, ip and unshare")
def test_ranks_on_two_machines(tmp_path):
    with two_machines() as names:
        processes = []
        for rank, at in enumerate((0, 1, 0)):
            file = tmp_path / f"hosts{rank}"
            file.write_text(f"127.0.0.1 localhost\n127.0.1.1 node\n{('127.0.1.1', '10.77.0.1')[at]} store\n")
            home = f"hostname node && mount --bind {file} /etc/hosts && exec \"$@\""
            processes.append(subprocess.Popen(
                ["ip", "netns", "exec", names[at], "unshare", "-u", "-m", "sh", "-c", home, "sh",
                 sys.executable, "-c", RANK],
                env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "store",
                                  "MASTER_PORT": "29511", "GLOO_SOCKET_IFNAME": "wire"},
                stderr=subprocess.PIPE, text=True))
        try:
            ends = [(p.communicate(timeout=120)[1], p.returncode) for p in processes]
        finally:
            for p in processes:
                p.kill()
        assert [code for _, code in ends] == [0, 0, 0], "\n".join(text for text, _ in ends)
