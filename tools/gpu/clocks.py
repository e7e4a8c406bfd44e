"""The GPU's clock and power while tools/gpu-check runs, as nvidia-smi tells them; nothing is set."""
import statistics
import subprocess
import tempfile

import children

# The second name is that of drivers before 535.
REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")


class Clocks:
    """Watches from start() to stop(); keeps the driver loaded meanwhile."""

    def __init__(self, run):
        self.run, self.child, self.said, self.read_to = run, None, None, 0

    def start(self):
        program = self.run.find("nvidia-smi")
        first = self.run.environment.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
        for reasons in REASONS if program else ():
            query = [program, f"--id={first}", f"--query-gpu=clocks.sm,power.draw,{reasons}",
                     "--format=csv,noheader"]
            if self.run.run(*query, most=20)[0] == 0:
                self.said = tempfile.NamedTemporaryFile(mode="ab")
                # Line by line, so that each part finds its own.
                by_line = ["stdbuf", "-oL"] if self.run.find("stdbuf") else []
                self.child = children.start([*by_line, *query, "-lms", "500"], stdin=subprocess.DEVNULL,
                                            stdout=self.said, stderr=subprocess.DEVNULL,
                                            env=self.run.environment)
                return

    def stop(self):
        if self.child:
            children.end(self.child)
            try:
                self.child.wait(5)
            except subprocess.TimeoutExpired:  # stuck in the driver
                pass
            self.child = None

    def since_last(self):
        """{"samples", "sm_mhz", "watts": [least, median, most], "reasons": all bits seen}; None for none."""
        if not self.said:
            return None
        with open(self.said.name, "rb") as said:
            said.seek(self.read_to)
            new = said.read()
        whole = new[:new.rfind(b"\n") + 1]
        self.read_to += len(whole)
        return summary(whole.decode(errors="replace"))


def summary(text):
    columns, reasons = ([], []), 0
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        try:
            values = [float(cells[i].split()[0]) for i in range(2)]
            bits = int(cells[2], 16)
        except (IndexError, ValueError):  # [N/A], or a warning
            continue
        for column, value in zip(columns, values):
            column.append(value)
        reasons |= bits
    if not columns[0]:
        return None
    ranges = [[min(c), statistics.median(c), max(c)] for c in columns]
    return {"samples": len(columns[0]), "sm_mhz": ranges[0], "watts": ranges[1], "reasons": hex(reasons)}
