"""Which cuBLASLt and NCCL the programs of tools/gpu-check load, and which PyTorch does."""
import re
import subprocess
import sys
from pathlib import Path

# What PyTorch has loaded: the lines of its memory map.
TORCH_MAPS = """
import torch
print("torch", torch.__version__, "for CUDA", torch.version.cuda)
print("\\n".join(sorted({line.split()[-1] for line in open("/proc/self/maps")
                        if "libcublasLt" in line or "libnccl" in line})))
"""


def wheel_folders(environment):
    """Folders of python packages that carry NVIDIA's libraries, such as PyTorch's."""
    done = subprocess.run(
        [sys.executable, "-c", "import nvidia; print('\\n'.join(nvidia.__path__))"], text=True,
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    found = [sub for folder in done.stdout.split() for sub in sorted(Path(folder).glob("*"))]
    return [folder for folder in found if (folder / "lib").is_dir()]


def add_libraries(run, toolkit):
    """Puts folders on LD_LIBRARY_PATH where a library is not found without them: those that came with
    PyTorch; else the toolkit's, behind all others, since it holds more than the one that is looked for.

    @returns by name, as muonrt asks for them: the file that is taken, or None.
    """
    cached = run.run(run.find("ldconfig") or "/sbin/ldconfig", "-p", most=30)[1]
    known = {words[0]: words[-1] for words in map(str.split, cached.splitlines()) if "=>" in words}
    # cuda/products/cublas_api.cpp asks for the major version that it was built for.
    release = re.search(r"release (\d+)", run.run("nvcc", "--version", most=30)[1])
    found = {}
    for name in (f"libcublasLt.so.{release[1] if release else 13}", "libnccl.so.2"):
        if not taken(run, known, name):
            wheels = [wheel / "lib" for wheel in run.wheels if (wheel / "lib" / name).exists()]
            run.prepend("LD_LIBRARY_PATH", *wheels)
            if not wheels and (toolkit / "lib64" / name).exists():
                paths = run.environment.get("LD_LIBRARY_PATH", "").split(":")
                run.environment["LD_LIBRARY_PATH"] = ":".join(
                    [path for path in paths if path] + [str(toolkit / "lib64")])
        found[name] = taken(run, known, name)
    return found


def taken(run, known, name):
    """The file that the loader finds. @param known  what ldconfig lists: {name: file}."""
    folders = run.environment.get("LD_LIBRARY_PATH", "").split(":")
    here = [Path(folder) / name for folder in folders if folder]
    return next((str(path.resolve()) for path in here if path.exists()), known.get(name))


def of_torch(run):
    """(PyTorch is there, its version and the libraries that it loads)"""
    status, text = run.run(sys.executable, "-c", TORCH_MAPS, most=40)
    if status == 124:  # read for the first time, from a slow disk
        return True, ["late, not imported in 40 s"]
    return status == 0, [line for line in text.splitlines() if line.strip()] if status == 0 else []
