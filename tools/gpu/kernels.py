"""What is known of the sources of products: which hung, which were wrong and in what."""
import json
import re

# What can be wrong with one, each apart from the others: its product, whole Newton-Schulz, its replay.
KINDS = ("product", "ns", "graph")
NAMED = re.compile(r"(cublaslt-best|cublaslt|sm80|sm90)( graph)?: (.*)", re.DOTALL)
DID_NOT_END = re.compile(r"did not end (with)?in [\d.]")  # words of the command's own deadline, and of ours


def culprit(data, kind):
    """(kernel, kind, why) that a benchmark's `failed` names; (None, kind, why) where it names none."""
    found = NAMED.match(data.get("failed") or "")
    if not found:
        return None, kind, data.get("failed")
    # Replay comes behind the rows of what it replays: a device that stopped there has printed these last.
    replay = found[2] or kind == "ns" and did_not_end(found[3]) and ended_in_replay(data)
    return found[1], "graph" if replay else kind, found[3]


def ended_in_replay(data):
    return bool(data.get("rows")) and data["rows"][-1].get("mode") == "eager"


def did_not_end(why):
    return bool(DID_NOT_END.search(why or ""))


class Kernels:
    """Only what hung is left out of what follows: what was wrong is measured, tested and sanitized."""

    def __init__(self):
        self.hung = {}  # by name: why; `sm90 graph`: only its replay
        self.wrong = {}  # by name and kind: why
        self.absent = set()  # those that are not for this GPU

    def note(self, name, kind, why, hung=None):
        """@param hung  None: by the words of `why`."""
        if did_not_end(why) if hung is None else hung:
            self.hung.setdefault(f"{name} graph" if kind == "graph" else name, why[:300])
        else:
            self.wrong.setdefault(name, {}).setdefault(kind, why[:300])

    def forget(self, name):
        """What an earlier run has said of one that is tried again."""
        self.wrong.pop(name, None)
        for hung in (name, f"{name} graph"):
            self.hung.pop(hung, None)

    def note_rows(self, kind, rows):
        """Rows with a result that is wrong, of `bench gemm` (product) or `bench ns` (ns)."""
        for row in rows:
            if row.get("wrong") and row.get("provider"):
                shape = "x".join(str(row.get(key)) for key in ("rows", "cols", "count"))
                self.note(row["provider"], "graph" if row.get("mode") == "graph" else kind,
                          f"{row['wrong']} wrong at {shape}", hung=False)

    def left_out(self):
        """Of benchmarks. The vendor's library is one, whichever algorithm is asked for."""
        return set(self.hung) | ({"cublaslt-best"} if "cublaslt" in self.hung else set())

    def own_left_out(self):
        return set(self.hung) & {"sm80", "sm90"}

    def without(self):
        names = ", ".join(sorted(self.own_left_out()))
        return f", without {names}" if names else ""

    def told(self):
        return {"hung": self.hung, "wrong": self.wrong}

    def learn(self, file):
        """From the JSON file of an earlier run. @returns  what to say of it."""
        try:
            known = json.loads(file.read_text(encoding="utf-8"))["kernels"]
            for name, why in known["hung"].items():
                self.hung.setdefault(name, why)
            for name, kinds in known["wrong"].items():
                self.wrong[name] = dict(kinds, **self.wrong.get(name, {}))
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return f"nothing is known from {file}"
        said = [f"{name} hung" for name in known["hung"]] + \
            [f"{name} {kind} wrong" for name, kinds in known["wrong"].items() for kind in kinds]
        return f"{file} says: {', '.join(said) or 'all kernels right'}"
