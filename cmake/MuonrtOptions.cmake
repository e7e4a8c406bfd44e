# The options of the build. AUTO uses a dependency if CMake finds it. ON makes the configuration
# fail if CMake does not find it.
include(GNUInstallDirs)

function(muonrt_tristate name text)
  set(${name} AUTO CACHE STRING "${text} (AUTO, ON or OFF)")
  set_property(CACHE ${name} PROPERTY STRINGS AUTO ON OFF)
  if(NOT ${name} MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "${name} is '${${name}}'; use AUTO, ON or OFF")
  endif()
endfunction()

muonrt_tristate(MUONRT_CUDA "CUDA backend")
muonrt_tristate(MUONRT_MPI "MPI transport")
muonrt_tristate(MUONRT_ONEDNN "oneDNN for the host's matrix products")

option(MUONRT_TOOLS "Build the muonrt command" ${PROJECT_IS_TOP_LEVEL})
option(MUONRT_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(MUONRT_INSTALL "Install headers, libraries and package files" ${PROJECT_IS_TOP_LEVEL})
option(MUONRT_WERROR "Turn warnings into errors" OFF)
set(MUONRT_SANITIZE "" CACHE STRING "Sanitizer: empty, address (with undefined) or thread")
set_property(CACHE MUONRT_SANITIZE PROPERTY STRINGS "" address thread)

# If muonrt is part of another project, that project chooses the build type and the output folders.
if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  # Unity builds halve the time for compiling the library. `tools/test --full` compiles each file
  # by itself.
  option(CMAKE_UNITY_BUILD "Compile several sources at once" ON)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
endif()
