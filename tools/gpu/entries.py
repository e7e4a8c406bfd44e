"""The programs of a part of tools/gpu-check, one after the other, each with seconds of its own."""
import time

HUNG = 125  # the status of a program that had its own time and did not end


class Entries:
    """One that hangs is told from one that the part had no time for, and leaves the next ones theirs.

    @param seconds  of the part. @param count  how many programs it has.
    """

    def __init__(self, run, seconds, count):
        self.runner, self.end = run, time.monotonic() + seconds
        # A part that is named has more than all of its programs together need: each its even share, but
        # one alone no more than half, behind which a hang shows.
        self.share = seconds / max(2, count)

    def left(self):
        return min(self.end - time.monotonic(), self.runner.left())

    def run(self, own, *words):
        """(status, output). @param own  seconds that are plenty for this program. Status 124 where
        the part's time was over before, HUNG where these were."""
        left, most = self.left(), max(own, self.share)
        if left < 2:
            return 124, "no time was left"
        status, text = self.runner.run(*words, most=min(most, left))
        if status == 124 and most <= left:
            return HUNG, f"{text.rstrip()}\ndid not end in {most:.0f} s"
        return status, text
