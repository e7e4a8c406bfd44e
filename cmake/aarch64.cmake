# The toolchain for arm64 with Debian's g++-aarch64-linux-gnu:
# -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake. Libraries for arm64 are searched in CMAKE_PREFIX_PATH.
# Set MUONRT_MPI=OFF, because MPI's compiler wrapper would belong to the build machine.
# tools/check/processors sets all these options.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
