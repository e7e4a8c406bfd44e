"""The parts of tools/gpu-check, and how they share the time."""

# In the order of worth: whether products are right and how fast they are, then what repeats either at
# length. Each with the seconds that are kept for it in a run of all, and the most that it may take there.
PARTS = {"env": (20, 60), "build": (168, 240), "smoke": (25, 90), "gemm": (50, 110), "tests": (50, 150),
         "ns": (50, 130), "torch": (46, 75), "elementwise": (8, 30), "step": (12, 40), "verify": (25, 90),
         "nccl": (8, 40), "processes": (20, 70), "python": (0, 120), "exchange": (5, 20), "memcheck": (28, 90),
         "synccheck": (10, 60), "profile": (0, 60), "racecheck": (10, 60), "meshes": (8, 100),
         "mpi": (6, 60), "commands": (15, 240)}
MEASURED = ("elementwise", "gemm", "ns", "step", "exchange", "torch", "profile")
NO_GPU_NEEDED = ("env", "build")

# A quarter of an hour with a GPU: three calls, each begun within 30 s of the last; what
# each is for, and seconds that leave room for a start and for what is carried.
CALLS = [(("smoke", "gemm", "tests"), 240),
         (("torch", "ns", "elementwise", "step"), 210),
         (("verify", "nccl", "processes", "python", "exchange", "memcheck", "profile"), 270)]


def command(number, build, out):
    """The command line of one of the calls, the first one 1; what it finds lies under the folder `out`.
    The later ones know what those before them have said of each kernel, where that is still there."""
    parts, seconds = CALLS[number - 1]
    return f"tools/gpu-check {' '.join(parts)} --build {build} --seconds {seconds} " \
        f"--json {out}/{number}.json --markdown {out}/{number}.md --logs {out}/{number}" + \
        "".join(f" --after {out}/{earlier}.json" for earlier in range(1, number))


def chosen(named):
    """The parts of a run, in their order; env tells all others what there is."""
    return [p for p in PARTS if p == "env" or not named or p in named]


# Without a build nothing runs: in a run of all it may take what else there is, but for this, which is
# enough for a look at the products and a part of the tests.
RESERVE = 60


def seconds_for(part, parts, left, named):
    """What a part may take. Parts that are named share all there is, by what they may take in a run of
    all; there each has what those before it have not used, but for what is kept for the others, and a
    share of little where something is kept for it."""
    to_come = parts[parts.index(part) + 1:]
    most = PARTS[part][1]
    share = left * most / (most + sum(PARTS[p][1] for p in to_come))
    if named:
        return min(most, left) if part == "env" else share
    if part == "build":
        return max(left - RESERVE, min(PARTS[part][0], left))
    spare = left - sum(PARTS[p][0] for p in to_come)
    return min(most, left, max(share, spare) if PARTS[part][0] else max(0, spare))
