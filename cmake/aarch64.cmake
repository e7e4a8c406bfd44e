# Toolchain for arm64 by Debian's g++-aarch64-linux-gnu: -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake.
# Libraries built for arm64 are looked for in CMAKE_PREFIX_PATH; MPI's compiler would be this
# machine's, so MUONRT_MPI=OFF (tools/check/processors does all that).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
