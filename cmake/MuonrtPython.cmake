# The target muonrt_python, the library inside the Python package. Its file has another name, because the
# process may load libmuonrt, too. At top level it has no CUDA backend: tools/wheels makes the wheel
# for the host from the objects of any build. The build by pip has CUDA if MUONRT_CUDA says so.
if(MUONRT_WITH_CUDA AND PROJECT_IS_TOP_LEVEL)
  muonrt_add_shared(muonrt_python $<FILTER:$<TARGET_OBJECTS:muonrt_objects>,EXCLUDE,/__/cuda/>
    ${no_cuda_sources})
  target_include_directories(muonrt_python PRIVATE ${inside})
else()
  muonrt_add_shared(muonrt_python $<TARGET_OBJECTS:muonrt_objects> ${of_one_kind})
endif()
set_target_properties(muonrt_python PROPERTIES EXCLUDE_FROM_ALL ON UNITY_BUILD OFF)

# condition_variable::wait of GCC 12 and later is the only function that libstdc++ of GCC 11 lacks, which
# RHEL 9 has (manylinux_2_34). It is linked from the archive, and the version script hides it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.a
    OUTPUT_VARIABLE muonrt_libstdcxx OUTPUT_STRIP_TRAILING_WHITESPACE)
  execute_process(COMMAND ${CMAKE_AR} x ${muonrt_libstdcxx} condition_variable.o
    WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR} RESULT_VARIABLE muonrt_no_archive ERROR_QUIET)
  if(NOT muonrt_no_archive)
    target_link_libraries(muonrt_python PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/condition_variable.o)
  endif()
endif()
