from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Muonrt(CMakePackage, CudaPackage):
    """Runtime for the Muon optimizer in distributed training."""

    version("main")

    variant("mpi", default=True, description="MPI transport")
    variant("onednn", default=True, description="oneDNN for matrix products on the host")
    variant("tools", default=True, description="muonrt command")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.21:", type="build")
    depends_on("nlohmann-json", type="build")
    depends_on("cli11", type="build", when="+tools")
    depends_on("fmt", when="+tools")
    depends_on("mpi", when="+mpi")
    depends_on("onednn cpu_runtime=omp", when="+onednn")
    depends_on("cuda@12.5:", when="+cuda")

    conflicts("%gcc@:11", msg="muonrt needs C++20 of GCC 12 or later")
    conflicts("%clang@:15", msg="muonrt needs C++20 of Clang 16 or later")

    def cmake_args(self):
        args = [
            self.define_from_variant("MUONRT_MPI", "mpi"),
            self.define_from_variant("MUONRT_ONEDNN", "onednn"),
            self.define_from_variant("MUONRT_CUDA", "cuda"),
            self.define_from_variant("MUONRT_TOOLS", "tools"),
            self.define("MUONRT_TESTS", False),
        ]
        if self.spec.satisfies("+cuda") and "none" not in self.spec.variants["cuda_arch"].value:
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value))
        return args
