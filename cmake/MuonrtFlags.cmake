# Flags that all of the project's own targets share; never handed on to a consumer.
add_library(muonrt_flags INTERFACE)
target_compile_features(muonrt_flags INTERFACE cxx_std_20)
set(muonrt_warnings -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlapping copies in `"literal" + string` (its bug 105651).
  list(APPEND muonrt_warnings -Wno-restrict)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 18)
  # Clang 18 and later see what std::stable_sort of libstdc++ 12 calls (its issue 76515).
  list(APPEND muonrt_warnings -Wno-deprecated-declarations)
endif()
if(MUONRT_WERROR)
  list(APPEND muonrt_warnings -Werror)
endif()
# Contraction off: a fused multiply-add in a vector body beside a plain one in its remainder would
# make an element's bits depend on its place in a shard. Comparisons are said to trap nowhere: without
# that and without AVX-512, GCC vectorizes no loop with two comparisons in a row. No bit depends on it.
target_compile_options(muonrt_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:${muonrt_warnings} -ffp-contract=off -fno-math-errno -fno-trapping-math>)

# Device code: no contraction either, so that elementwise passes give the host's bits; constexpr
# functions of base/ are called from kernels; nvcc warns of kernels that spill registers, and with
# MUONRT_WERROR they do not build. nvcc's own line marks are not pedantic.
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
  # GCC's flow analysis does not see through the instrumentation.
  list(APPEND muonrt_sanitize -Wno-maybe-uninitialized)
  # To compile a third faster, without some checks where a target's MUONRT_CHECKS is FEWER (programs
  # that check), without all where it is NONE (the command around the library).
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

# muonrt_compile_fast(targets...): programs that check, and the command around the library, do little
# themselves, and half of the time that all tests take is compiling them. The library is as it ships.
function(muonrt_compile_fast)
  foreach(target ${ARGN})
    target_compile_options(${target} PRIVATE
      $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>
      $<$<AND:$<CONFIG:Debug>,$<COMPILE_LANGUAGE:CXX>>:-O0>)
    set_target_properties(${target} PROPERTIES MUONRT_CHECKS FEWER UNITY_BUILD OFF)
  endforeach()
endfunction()

# muonrt_precompile(target headers...): big headers once for a target. Not under a launcher such as
# ccache, which would keep nothing of them.
function(muonrt_precompile target)
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    list(TRANSFORM ARGN REPLACE "(.+)" "<\\1>")
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()
