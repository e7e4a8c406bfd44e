"""Stand-ins for what tools/gpu-check starts on a machine with a GPU: texts of programs, and of the
modules that tools/gpu/compare.py imports."""


# What is wrong with sm90 (STAND_IN_KERNEL: another one), by STAND_IN_WRONG; its figure there is 777.
WRONG = r"""
  row() {
    echo "{\"provider\":\"$1\",\"mode\":\"$2\",\"product\":\"X X^T\",\"rows\":4096,\"cols\":4096,\"count\":1," \
         "\"form\":\"standard\",\"median_ms\":$3,\"tflops\":$3,\"wrong\":$4}"
  }
  say() { echo "{\"left_out\":{},${3:+\"failed\":\"$3\",}\"wrong\":$1,\"rows\":[$2]}"; exit 1; }
  case "$1 $2 $STAND_IN_WRONG" in
    "bench gemm product") say 3 "$(row cublaslt eager 2 0),$(row sm90 eager 777 3)" ;;
    "bench gemm throws") say 0 "$(row cublaslt eager 2 0)" "sm90: it broke" ;;
    "bench gemm silent") kill -SEGV $$ ;;
    "bench gemm crash") echo "{\"row\":$(row cublaslt eager 2 0)}"; kill -SEGV $$ ;;
    "bench ns ns") say 3 "$(row cublaslt eager 2 0),$(row sm90 eager 777 3)" ;;
    "bench ns bits") say 1 "$(row sm90 eager 5 0),$(row sm90 graph 777 1)" ;;
    "bench ns capture") say 0 "$(row sm90 eager 5 0),$(row cublaslt graph 2 0)" "sm90 graph: a capture broke" ;;
    "bench ns replay")
      if [[ "$*" == *"--eager sm90"* ]]; then echo "{\"left_out\":{},\"wrong\":0,\"rows\":[$(row sm90 eager 5 0)]}"; exit 0; fi
      say 0 "$(row cublaslt eager 2 0),$(row sm90 eager 5 0)" "sm90 graph: work on it did not end within 10 s" ;;
    "bench ns replay-crash") of_list() { row "$1" "$2" "$3" 0 | sed "s/\"rows\":4096,\"cols\":4096/$LAST/"; }
      if [[ "$*" == *"17x40"* ]]; then LAST='"rows":17,"cols":40'; else LAST='"rows":24,"cols":30'; fi
      echo "{\"row\":$(of_list sm90 eager 5)}"
      if [[ "$*" == *"17x40"* ]]; then echo "{\"row\":$(of_list sm90 eager 4 | sed s/standard/gram/)}"; fi
      kill -SEGV $$ ;;
  esac
"""


def muonrt(real):
    """--device cuda becomes the host, without settings of GPUs; the catalogue is cut short."""
    return f"""#!/usr/bin/env bash
echo "$*" >> "${{0%/*}}/calls"
if [[ ${{STAND_IN_HANGS:-}} && "$*" == *"--providers ${{STAND_IN_HANGS:-}} "* ]]; then
  echo '{{"left_out":{{}},"failed":"sm90: work on it did not end within 10 s","wrong":0,"rows":[]}}'; exit 1
fi
if [[ ${{STAND_IN_WRONG:-}} && ( "$*" != *"--providers "* || "$*" == *"--providers "*${{STAND_IN_KERNEL:-sm90}}* ) ]]; then
{WRONG}
fi
if [[ ${{STAND_IN_QUICK:-}} && ( $1 == verify || "$*" == *,1401x1403x12,* || "$*" == *,128x300x3,* ) ]]; then
  echo '{{"ranks":1,"rows":[{{}}],"wrong":0,"wrong_bits":0}}'; exit 0
fi
if [[ "$*" == *"--link nccl"* ]]; then echo "NCCL cannot be loaded"; exit 1; fi
if [[ $1 == "${{STAND_IN_FAILS:-}}" ]]; then echo "it broke"; exit 1; fi
if [[ ${{STAND_IN_FAILS_STEP:-}} && "$*" == *"$STAND_IN_FAILS_STEP"* ]]; then echo "it broke"; exit 1; fi
if [[ ${{STAND_IN_LOSES_GPU:-}} && "$*" == *"--providers sm80 "* ]]; then echo "it fell off"; exit 1; fi
if [[ ${{STAND_IN_LOSES_GPU:-}} && "$*" == *"--providers sm90 "* ]]; then exit 77; fi
if [[ ${{STAND_IN_NO_ANSWER:-}} && "$*" == *"64x64 "*"--providers naive"* ]]; then echo "no answer"; exit 1; fi
if [[ ${{STAND_IN_NO_DEVICE:-}} && "$*" == *"--device cuda"* ]]; then
  echo '{{"skipped":"no CUDA device"}}'; echo "no CUDA device" >&2; exit 77
fi
words=()
while (($# > 0)); do
  case $1 in
    --device|--symmetric|--reserved-sms|--providers|--eager) shift ;;
    --graphs) ;;
    --ranks) shift ;;
    *,1401x1403x12,*) words+=(33x70) ;;  # of smoke
    *,128x300x3,*) words+=(17x40) ;;
    *) words+=("$1") ;;
  esac
  shift
done
if [[ ${{words[0]}} == verify ]]; then words+=(--ranks 2 --steps 1); fi
exec '{real}' "${{words[@]}}"
"""


# Two processes compare bits, the first of MUONRT_TEST_RANK's; STAND_IN_BITS: what they say there.
TESTS = """#!/usr/bin/env bash
if [[ "$*" == *--list-tags* ]]; then
  for number in ${STAND_IN_LOUD:+1 2 3 4 5 6 7 8 9 10 11 12 13 14}; do echo "[#loud_${number}_test]"; done
  echo "All available tags:"; echo "  8  [#symmetric_test]"; echo "  9  [#staged_comm_test]"; exit 0
fi
echo "tests $*"
echo "tests without ${MUONRT_TEST_LEAVE_OUT:-none}: $*" >> "${0%/*}/calls"
if [[ ${STAND_IN_LOUD:-} ]]; then
  bytes=1500000; if [[ "$*" == *loud_1_* ]]; then bytes=30000000; fi
  head -c $bytes /dev/zero | tr '\\0' '\\377'; echo "one case failed"; exit 1
fi
if [[ $1 == "[.nccl-process]" ]]; then
  echo "${STAND_IN_BITS:-compared: 90 elements, 0 bytes differ}"
  if [[ ${STAND_IN_BITS:-} ]]; then exit 1; fi
fi
if [[ ${STAND_IN_HANGS:-} && "${MUONRT_TEST_LEAVE_OUT:-}" != *"${STAND_IN_HANGS:-}"* ]]; then
  echo "it hangs"; exit 1
fi
if [[ ${STAND_IN_FAILS:-} == tests ]]; then echo "one case failed"; exit 1; fi
if [[ ${STAND_IN_SLEEPS:-} ]]; then echo $$ > "${0%/*}/sleeper"; exec sleep 60; fi
if [[ ${STAND_IN_NO_DEVICE:-} ]]; then exit 77; fi
if [[ ${STAND_IN_EMPTY:-} && "$*" == *"${STAND_IN_EMPTY:-}"* ]]; then
  echo "  left out: no kernel"; echo "assertions: - none -"; exit 0
fi
echo "All tests passed (1 assertion in 1 test case)"
"""

# STAND_IN_RACES names the kernel that has one, STAND_IN_WARNS anything.
SANITIZER = """#!/usr/bin/env bash
tool=$2
if [[ ${STAND_IN_NO_TOOLS:-} ]]; then echo "========= Error: Device not supported"; exit 1; fi
while [[ $1 != */bin/muonrt* ]]; do shift; done
"$@"; status=$?
errors=0 warnings=0
others=${MUONRT_TEST_LEAVE_OUT:-}
if [[ ${STAND_IN_RACES:-} && $others && $others != *"$STAND_IN_RACES"* ]]; then errors=2; fi
if [[ ${STAND_IN_WARNS:-} ]]; then warnings=1; fi
if ((errors + warnings)); then status=9; fi
if [[ $tool == racecheck ]]; then
  if ((errors)); then echo "========= Error: Race reported between Write access at ring"; fi
  echo "========= RACECHECK SUMMARY: 3 hazards displayed ($errors errors, $warnings warnings)"
else
  echo "========= ERROR SUMMARY: $errors errors"
fi
exit $status
"""

NCU = """#!/usr/bin/env bash
if [[ ${STAND_IN_NO_TOOLS:-} ]]; then
  echo "==PROF== Connected"; echo "==ERROR== ERR_NVGPUCTRPERM - no permission for counters"; exit 1
fi
printf '"gpu__time_duration.sum"\\n"us"\\n"12"\\n'
"""

SMI = """#!/usr/bin/env bash
[[ -z ${STAND_IN_NO_GPU:-} ]] || exit 9
if [[ "$*" == *compute_cap* ]]; then echo "${STAND_IN_CAPABILITY:-9.0}"; exit 0; fi
if [[ "$*" != *clocks.sm,power.draw,clocks* ]]; then echo "Stand-in GPU, 1.0, 1 MiB"; exit 0; fi
if [[ ${STAND_IN_OLD_DRIVER:-} && "$*" == *clocks_event_reasons* ]]; then exit 2; fi
echo "1000 MHz, 100.50 W, 0x0000000000000001"
if [[ "$*" != *-lms* ]]; then exit 0; fi
echo $$ > "${0%/*}/watcher"
while true; do echo "1980 MHz, 700.00 W, 0x0000000000000004"; sleep 0.1; done
"""

# Without what STAND_IN_WITHOUT says, which no wheel is there for.
PYTHON = """#!/bin/sh
echo "$*" >> "${0%/*}/python_calls"
case "$*" in
  *"import sys"*) echo cp399 ;;
  *"${STAND_IN_WITHOUT:-nothing}"*|*find-links*) exit 1 ;;
  *pytest*-v*) [ "$STAND_IN_FAILS" != pytest ] || { echo "1 failed in 1s"; exit 1; }; echo "3 passed in 1s" ;;
esac
"""

PROGRAMS = {
    "nvidia-smi": SMI,
    "nvcc": "#!/bin/sh\necho 'Cuda compilation tools, release 99.0, V99.0.1'\n",
    "cmake": '#!/bin/sh\necho "$*" >> "${0%/*}/cmake_calls"\ncase "$*" in *MUONRT_TESTS=ON*) [ -z "$STAND_IN_NO_CATCH2" ] ||'
             ' { echo "The tests need Catch2"; exit 1; };; esac\nexit 0\n',
    "ninja": "#!/bin/sh\nexit 0\n",
    "ldconfig": "#!/bin/sh\n[ -z \"$STAND_IN_NO_LIBRARIES\" ] || exit 0\nexec /sbin/ldconfig \"$@\"\n",
    "c++": "#!/bin/sh\nexit 0\n",
    "mpiexec": '#!/bin/sh\nshift 2\nexec "$@"\n',
    "compute-sanitizer": SANITIZER, "ncu": NCU, "python-stand-in": PYTHON}

# Tensors without values: everything about one is a tensor, every number 0 and every time 0.1 ms.
TORCH = """
import os
class Tensor:
    dtype, shape, grad = "torch.float32", (4, 4), None
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *a, **k: self
    def __getitem__(self, at): return self
    def __matmul__(self, other): return self
    __mul__ = __add__ = __sub__ = __le__ = __matmul__
    def __invert__(self): return self
    def __int__(self): return 0
    def stride(self, at): return 4
    def numel(self): return 16
    T = property(lambda self: self)
class Event:
    def __init__(self, enable_timing): pass
    def record(self): pass
    def query(self): return False
    def synchronize(self): pass
    def elapsed_time(self, end): return 0.1
class Optimizer:
    def __init__(self, params, lr):
        self.param_groups = [{"params": list(params)}]
        self.state = {p: {"momentum_buffer": p.grad} for p in self.param_groups[0]["params"]}
    def step(self):
        if os.environ.get("STAND_IN_FAILS") == "torch":
            raise RuntimeError("no such step")
class Muon(Optimizer):
    def __init__(self, params, lr, use_addmm=False): super().__init__(params, lr)
class Names:
    def __init__(self, **names): self.__dict__.update(names)
made = lambda *a, **k: Tensor()
zeros = empty = rand = tensor = made
mm = bmm = lambda a, b, out: None
is_tensor = lambda value: isinstance(value, Tensor)
manual_seed = lambda seed: None
nan, int32, uint8, bfloat16 = float("nan"), "int32", "uint8", "bfloat16"
nn = Names(Parameter=lambda tensor: Tensor())
optim = Names(AdamW=Optimizer, **({} if os.environ.get("STAND_IN_NO_MUON") else {"Muon": Muon}))
matmul = Names(allow_tf32=True, allow_bf16_reduced_precision_reduction=True)
backends = Names(cuda=Names(matmul=matmul))
cuda = Names(is_available=lambda: True, synchronize=lambda: None, Event=Event)
version, __version__ = Names(cuda="99.0"), "2.99"
"""

# The first of its configurations does not compile.
TRITON = """
import os
__version__ = "3.99"
cdiv = lambda a, b: -(-a // b)
class Kernel:
    def __getitem__(self, grid):
        def launch(*arguments, num_warps, num_stages):
            if num_stages == 3 or os.environ.get("STAND_IN_FAILS") == "triton":
                raise RuntimeError("out of resource: shared memory")
        return launch
jit = lambda function: Kernel()
"""
MODULES = {"torch.py": TORCH, "triton/__init__.py": TRITON, "triton/language.py": "constexpr = int\n"}
