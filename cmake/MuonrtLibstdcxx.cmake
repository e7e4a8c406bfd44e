# muonrt_link_wait(target): links condition_variable::wait from libstdc++.a, with hidden symbols.
# A library that GCC 12 compiles then also runs with GCC 11's libstdc++, for example on RHEL 9
# (manylinux_2_34). muonrt uses no other function that GCC 11's libstdc++ lacks.
function(muonrt_link_wait target)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
    return()
  endif()
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libstdc++.a
    OUTPUT_VARIABLE archive OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT EXISTS ${archive})
    return()
  endif()
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/libstdcxx)
  file(MAKE_DIRECTORY ${folder})
  execute_process(COMMAND ${CMAKE_AR} x ${archive} condition_variable.o
    COMMAND_ERROR_IS_FATAL ANY WORKING_DIRECTORY ${folder})
  execute_process(COMMAND ${CMAKE_AR} rcs libwait.a condition_variable.o
    COMMAND_ERROR_IS_FATAL ANY WORKING_DIRECTORY ${folder})
  target_link_libraries(${target} PRIVATE ${folder}/libwait.a)
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,libwait.a)
endfunction()
