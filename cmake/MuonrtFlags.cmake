# Flags that all of the project's targets share. They are not passed to projects that use muonrt.
add_library(muonrt_flags INTERFACE)
target_compile_features(muonrt_flags INTERFACE cxx_std_20)
set(muonrt_warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 wrongly reports overlapping copies in `"literal" + string` (GCC bug 105651).
  list(APPEND muonrt_warnings -Wno-restrict)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 18)
  # Clang 18 and later report a deprecated function in libstdc++ 12's std::stable_sort (Clang issue
  # 76515).
  list(APPEND muonrt_warnings -Wno-deprecated-declarations)
endif()
if(MUONRT_WERROR)
  list(APPEND muonrt_warnings -Werror)
endif()
# Contraction to fused multiply-add is disabled. Otherwise a compiler could contract vector loops
# but not their remainder loops, and the bits of an element would depend on its position in a shard.
# With -fno-trapping-math, GCC vectorizes loops with two consecutive comparisons even without
# AVX-512. This flag changes no result.
target_compile_options(muonrt_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:${muonrt_warnings} -ffp-contract=off -fno-math-errno -fno-trapping-math>)

# Device code is also compiled without contraction, so that the results of elementwise passes are
# bitwise identical to those of the host. With --expt-relaxed-constexpr, kernels can call constexpr
# functions of base/. A kernel that spills registers causes a warning, or with MUONRT_WERROR an
# error. -Wpedantic is removed because it reports line directives that nvcc generates.
list(REMOVE_ITEM muonrt_warnings -Wpedantic -Werror)
list(JOIN muonrt_warnings "," muonrt_cuda_warnings)
target_compile_options(muonrt_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;--expt-relaxed-constexpr;-Xcompiler=${muonrt_cuda_warnings};-Xptxas=--warn-on-spills>")
if(MUONRT_WERROR)
  target_compile_options(muonrt_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings;-Xptxas=--warning-as-error>")
endif()

set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_EXTENSIONS OFF)

if(MUONRT_SANITIZE STREQUAL "address")
  set(muonrt_sanitize -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(MUONRT_SANITIZE STREQUAL "thread")
  set(muonrt_sanitize -fsanitize=thread)
elseif(MUONRT_SANITIZE)
  message(FATAL_ERROR "MUONRT_SANITIZE is '${MUONRT_SANITIZE}'; use address or thread")
endif()
if(muonrt_sanitize)
  # With the sanitizers' instrumentation, this warning can be false.
  list(APPEND muonrt_sanitize -Wno-maybe-uninitialized)
  # With fewer checks, compiling takes a third less time. Test programs set MUONRT_CHECKS to FEWER,
  # which disables some checks, and the muonrt command sets it to NONE, which disables all checks.
  set(muonrt_fewer -fno-sanitize=null,alignment,vptr)
  if(MUONRT_SANITIZE STREQUAL "address")
    list(APPEND muonrt_fewer -fno-sanitize-address-use-after-scope)
  endif()
  target_compile_options(muonrt_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:${muonrt_sanitize} -fno-omit-frame-pointer -g1>
    "$<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<STREQUAL:$<TARGET_PROPERTY:MUONRT_CHECKS>,FEWER>>:${muonrt_fewer}>"
    "$<$<AND:$<COMPILE_LANGUAGE:C,CXX>,$<STREQUAL:$<TARGET_PROPERTY:MUONRT_CHECKS>,NONE>>:-fno-sanitize=all>")
  target_link_options(muonrt_flags INTERFACE ${muonrt_sanitize})
endif()

# muonrt_compile_fast(targets...): compiles the targets with less optimization. Use it for test
# programs and the command, which do little work themselves: compiling them takes half of the time
# of all tests. The library stays fully optimized.
function(muonrt_compile_fast)
  foreach(target ${ARGN})
    target_compile_options(${target} PRIVATE
      $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>
      $<$<AND:$<CONFIG:Debug>,$<COMPILE_LANGUAGE:CXX>>:-O0>)
    set_target_properties(${target} PROPERTIES MUONRT_CHECKS FEWER UNITY_BUILD OFF)
  endforeach()
endfunction()

# muonrt_precompile(target headers...): precompiles large headers for a target. Does nothing if a
# compiler launcher such as ccache is used, because ccache could not cache the results.
function(muonrt_precompile target)
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    list(TRANSFORM ARGN REPLACE "(.+)" "<\\1>")
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()
