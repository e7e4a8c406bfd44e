# Finds the optional dependencies and sets MUONRT_WITH_{CUDA,MPI,ONEDNN}. The summary prints
# MUONRT_WHY_{CUDA,MPI,ONEDNN}: what was found, or why the dependency is not used.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# tools/deps unpacks packages into this folder.
if(EXISTS ${PROJECT_SOURCE_DIR}/.deps/usr AND NOT CMAKE_CROSSCOMPILING)
  list(APPEND CMAKE_PREFIX_PATH ${PROJECT_SOURCE_DIR}/.deps/usr)
endif()

# Compiling the library needs only the headers. Users of an installed library do not need them.
find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
  message(FATAL_ERROR "nlohmann-json was not found. Its headers are needed to build muonrt, but not to use "
    "it; install nlohmann-json3-dev, or run tools/deps")
endif()

# Disables a dependency because of `reason`. If its option is ON, the configuration fails.
macro(muonrt_leave_out name reason remedy)
  set(MUONRT_WITH_${name} OFF)
  set(MUONRT_WHY_${name} "${reason}")
  if(MUONRT_${name} STREQUAL "ON")
    message(FATAL_ERROR "MUONRT_${name} is ON, but it cannot be built (${reason}); "
      "${remedy} or set MUONRT_${name}=OFF")
  endif()
endmacro()

set(MUONRT_WITH_MPI OFF)
set(MUONRT_WHY_MPI "turned off")
if(NOT MUONRT_MPI STREQUAL "OFF")
  if(NOT CMAKE_CROSSCOMPILING)
    set(MPI_DETERMINE_LIBRARY_VERSION ON)
  endif()
  find_package(MPI QUIET COMPONENTS C CXX)
  if(MPI_C_FOUND AND MPI_CXX_FOUND)
    set(MUONRT_WITH_MPI ON)
    string(REGEX MATCH "^(Open MPI v[^, ]+|MPICH Version:[ \t]*[^ \t\n]+|[^,\n]+)" muonrt_mpi
      "${MPI_C_LIBRARY_VERSION_STRING}")
    set(muonrt_mpirun ${MPIEXEC_EXECUTABLE})
    if(NOT MPIEXEC_EXECUTABLE)
      set(muonrt_mpirun "no mpirun found: no tests under it")
    endif()
    string(JOIN ", " MUONRT_WHY_MPI "MPI ${MPI_CXX_VERSION}" ${muonrt_mpi} ${muonrt_mpirun})
  else()
    muonrt_leave_out(MPI "no MPI compiler found" "install libopenmpi-dev and openmpi-bin")
  endif()
endif()

set(MUONRT_WITH_ONEDNN OFF)
set(MUONRT_WHY_ONEDNN "turned off, portable products instead")
if(NOT MUONRT_ONEDNN STREQUAL "OFF")
  find_path(MUONRT_DNNL_INCLUDE dnnl.h PATH_SUFFIXES oneapi/dnnl)
  find_library(MUONRT_DNNL_LIBRARY dnnl)
  mark_as_advanced(MUONRT_DNNL_INCLUDE MUONRT_DNNL_LIBRARY)
  if(MUONRT_DNNL_INCLUDE AND MUONRT_DNNL_LIBRARY)
    set(MUONRT_WITH_ONEDNN ON)
    set(MUONRT_WHY_ONEDNN "${MUONRT_DNNL_LIBRARY}")
  else()
    muonrt_leave_out(ONEDNN "dnnl.h or libdnnl not found, portable products instead"
      "install libdnnl-dev")
  endif()
endif()

# Without nvcc, or without the sources in cuda/, the library is built without CUDA.
set(MUONRT_WITH_CUDA OFF)
set(MUONRT_WHY_CUDA "turned off")
if(NOT MUONRT_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  file(GLOB muonrt_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*/*.cu)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(MUONRT_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
      PATH_SUFFIXES bin)
    mark_as_advanced(MUONRT_NVCC)
    if(MUONRT_NVCC)
      set(CMAKE_CUDA_COMPILER ${MUONRT_NVCC})
    endif()
  endif()
  if(NOT muonrt_cuda_sources)
    muonrt_leave_out(CUDA "no sources in cuda/" "use a checkout that contains them")
  else()
    # Code for compute capability 8.0 is also included as PTX, which newer devices compile when they
    # load it. Code for 10.0 is included if nvcc supports it; this code also runs on 10.3.
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
      if(CMAKE_CUDA_COMPILER)
        execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code
          OUTPUT_VARIABLE muonrt_gpu_code ERROR_QUIET)
      endif()
      if(muonrt_gpu_code MATCHES "sm_100\n")
        list(APPEND CMAKE_CUDA_ARCHITECTURES 100-real)
      endif()
    endif()
    if(CMAKE_CXX_COMPILER_LAUNCHER AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
    endif()
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      enable_language(CUDA)
      find_package(CUDAToolkit REQUIRED)
      # Only the header is needed, because cuBLASLt is loaded at run time.
      find_path(MUONRT_CUBLAS_INCLUDE cublasLt.h PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
      find_path(MUONRT_CUBLAS_INCLUDE cublasLt.h)
      mark_as_advanced(MUONRT_CUBLAS_INCLUDE)
      # CUDA 12.5 is the first version with cudaGetDriverEntryPointByVersion.
      set(muonrt_oldest_cuda 12.5)
      if(CUDAToolkit_VERSION VERSION_LESS muonrt_oldest_cuda)
        muonrt_leave_out(CUDA "CUDA ${CUDAToolkit_VERSION} is older than ${muonrt_oldest_cuda}"
          "install CUDA ${muonrt_oldest_cuda} or later")
      elseif(MUONRT_CUBLAS_INCLUDE)
        set(MUONRT_WITH_CUDA ON)
        set(MUONRT_WHY_CUDA "nvcc ${CMAKE_CUDA_COMPILER_VERSION}, sm ${CMAKE_CUDA_ARCHITECTURES}")
      else()
        muonrt_leave_out(CUDA "no cublasLt.h found" "install the headers of cuBLAS")
      endif()
    else()
      muonrt_leave_out(CUDA "no working nvcc found" "install the CUDA toolkit")
    endif()
  endif()
endif()
