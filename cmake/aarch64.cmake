# The toolchain for arm64 with Debian's g++-aarch64-linux-gnu:
# -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake. CMake searches CMAKE_PREFIX_PATH for arm64 libraries.
# Set MUONRT_MPI=OFF; otherwise CMake would use the build machine's compiler wrapper for MPI.
# tools/check/processors sets all these options.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
