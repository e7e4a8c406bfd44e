"""The parts of tools/gpu-check, and how they share the time."""

# In the order of a run: whether results are right, then the numbers that are looked at first, then
# what repeats either at length. Each with the seconds that are kept for it in a run of all, and the
# most that it may take there.
PARTS = {"env": (20, 60), "build": (174, 240), "smoke": (25, 90), "tests": (50, 150), "gemm": (43, 80),
         "ns": (45, 120), "torch": (46, 75), "memcheck": (30, 90), "verify": (25, 90),
         "elementwise": (8, 30), "step": (12, 40), "nccl": (8, 30), "processes": (20, 60),
         "synccheck": (12, 60), "racecheck": (12, 60), "exchange": (5, 20), "meshes": (10, 100),
         "mpi": (8, 60), "commands": (15, 240), "profile": (0, 90)}
MEASURED = ("elementwise", "gemm", "ns", "step", "exchange", "torch", "profile")
ONLY_NAMED = ("profile",)
NO_GPU_NEEDED = ("env", "build")

# The half hour with a GPU: three calls of ten minutes at most, each begun within 30 s of the last; the
# parts of each in its order of worth, and seconds that leave room for a start and for what is carried.
CALLS = [(("smoke", "gemm", "tests"), 345),
         (("torch", "ns", "elementwise", "step"), 405),
         (("verify", "nccl", "processes", "exchange", "memcheck", "profile"), 285)]


def command(number, build, out):
    """The command line of one of the calls, the first one 1; what it finds lies under the folder `out`."""
    parts, seconds = CALLS[number - 1]
    return f"tools/gpu-check {' '.join(parts)} --build {build} --seconds {seconds} " \
        f"--json {out}/{number}.json --markdown {out}/{number}.md --logs {out}/{number}"


def chosen(named):
    """The parts of a run, in their order; env tells all others what there is."""
    return [p for p in PARTS if p == "env" or (p in named if named else p not in ONLY_NAMED)]


# Without a build nothing runs: in a run of all it may take what else there is, but for this, which is
# enough for a look at the products and a part of the tests.
RESERVE = 60


def seconds_for(part, parts, left, named):
    """What a part may take. Parts that are named share all there is, by what they may take in a run of
    all; there each has what those before it have not used, but for what is kept for the others."""
    to_come = parts[parts.index(part) + 1:]
    most = PARTS[part][1]
    share = left * most / (most + sum(PARTS[p][1] for p in to_come))
    if named:
        return min(most, left) if part == "env" else share
    if part == "build":
        return max(left - RESERVE, min(PARTS[part][0], left))
    return min(most, left, max(share, left - sum(PARTS[p][0] for p in to_come)))
