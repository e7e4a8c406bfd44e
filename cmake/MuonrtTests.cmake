# Functions that register tests with CTest.

# The build folders that tools/test creates with a sanitizer. CTest runs their unit tests together
# with the tests of this build, so that one summary contains all tests. If a path is empty, its
# tests are omitted.
set(MUONRT_ASAN_TREE "" CACHE PATH "Build folder with MUONRT_SANITIZE=address, or empty")
set(MUONRT_TSAN_TREE "" CACHE PATH "Build folder with MUONRT_SANITIZE=thread, or empty")
set(MUONRT_TSAN_LAUNCHER "" CACHE STRING "Command that starts programs built with TSan, or empty")
mark_as_advanced(MUONRT_ASAN_TREE MUONRT_TSAN_TREE MUONRT_TSAN_LAUNCHER)

file(STRINGS ${PROJECT_SOURCE_DIR}/tools/mpienv muonrt_mpi_env REGEX "^export ")
list(TRANSFORM muonrt_mpi_env REPLACE "^export " "")
# If a program hangs, mpirun ends it shortly before the timeout of CTest.
list(APPEND muonrt_mpi_env MPIEXEC_TIMEOUT=170)
set(MUONRT_MPI_ENV ${muonrt_mpi_env} CACHE INTERNAL "Environment of every test under mpirun")

# The files of unit tests that do not run under ASan and UBSan. These sanitizers find faults in
# threads, in raw memory and in code that reads external data. The files in this list test integers,
# sizes, coefficients and numerical results, or they replace operator new, as the sanitizers do.
set(muonrt_not_asan "/(checkpoint_bits|coefficients|finite|grad_layout|\
layout_(blocks|examples|forms|forms_bits|mesh|placement|properties|runs)|lockstep|method|\
momentum_ops|newton_schulz.*|normalize.*|out_of_memory|partial_bits|plan_.*|rejected|restarts|routing|same_bits|schedule|stated_memory|\
step_(clipping|rules|reference)|strategies|param_tables|reference|\
update_scale|step_outcome|weight_bits)_test[.]cpp$")

# muonrt_keep_tagged(list tag): removes test files that contain no case with this tag from a list.
function(muonrt_keep_tagged list tag)
  set(kept)
  foreach(source ${${list}})
    file(STRINGS ${source} tags REGEX "\\[${tag}\\]")
    if(tags)
      list(APPEND kept ${source})
    endif()
  endforeach()
  set(${list} ${kept} PARENT_SCOPE)
endfunction()

# muonrt_add_catch_tests(target prefix sources...): adds one test for each source file of a Catch2
# program. The tests are <prefix>.<file>, tsan.<prefix>.<file> from the build with TSan, and for
# unit tests asan.<prefix>.<file> from the build with ASan. The names omit `_test`. Catch2's option
# -# gives each case a tag with the name of its file. Three other tags decide where a case runs:
#   [tsan]   also under TSan (for cases with several threads)
#   [nosan]  under no sanitizer (for cases that would take too long)
#   [.full]  only with `ctest -C Full -L full` (for every combination of parameters)
function(muonrt_add_catch_tests target prefix)
  foreach(source ${ARGN})
    get_filename_component(file ${source} NAME_WE)
    string(REGEX REPLACE "_test$" "" name ${prefix}.${file})
    file(STRINGS ${source} tags REGEX "\\[[a-z.]+\\]")
    muonrt_add_catch_test(${name} ${prefix} $<TARGET_FILE:${target}> "[#${file}]~[.]")
    if(tags MATCHES "\\[\\.full\\]")
      muonrt_add_catch_test(full.${name} full $<TARGET_FILE:${target}> "[#${file}][.full]"
        CONFIGURATIONS Full)
      set_tests_properties(full.${name} PROPERTIES TIMEOUT 14400)
    endif()
    if(MUONRT_ASAN_TREE AND prefix STREQUAL "unit" AND NOT source MATCHES "${muonrt_not_asan}")
      muonrt_add_catch_test(asan.${name} asan ${MUONRT_ASAN_TREE}/bin/${target}
        "[#${file}]~[.]~[nosan]")
    endif()
    if(MUONRT_TSAN_TREE AND tags MATCHES "\\[tsan\\]")
      muonrt_add_catch_test(tsan.${name} tsan
        "${MUONRT_TSAN_LAUNCHER};${MUONRT_TSAN_TREE}/bin/${target}" "[#${file}][tsan]~[.]~[nosan]")
    endif()
  endforeach()
endfunction()

function(muonrt_add_catch_test name label binary filter)
  add_test(NAME ${name} COMMAND ${binary} -\# ${filter} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 300 ENVIRONMENT
    "ASAN_OPTIONS=detect_stack_use_after_return=1;UBSAN_OPTIONS=print_stacktrace=1;TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")
endfunction()

# ON if tests can run under mpirun.
set(MUONRT_MPIRUN ${MUONRT_WITH_MPI})
if(NOT MPIEXEC_EXECUTABLE)
  set(MUONRT_MPIRUN OFF)
endif()

# muonrt_add_mpi_test(name ranks command...): adds a test that runs `command` under mpirun. Tests
# with the name full.* belong to CTest's configuration Full. Adds nothing if mpirun is missing.
function(muonrt_add_mpi_test name ranks)
  if(NOT MUONRT_MPIRUN)
    return()
  endif()
  set(label mpi)
  set(when)
  if(name MATCHES "^full[.]")
    set(label full)
    set(when CONFIGURATIONS Full)
  endif()
  add_test(NAME ${name} ${when} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks}
    ${MPIEXEC_PREFLAGS} ${ARGN} ${MPIEXEC_POSTFLAGS})
  # Only one mpirun runs at a time, because Open MPI sometimes fails if one mpirun creates its
  # session folder while another removes its own.
  set_tests_properties(${name} PROPERTIES LABELS ${label} PROCESSORS ${ranks} TIMEOUT 180
    RESOURCE_LOCK mpirun ENVIRONMENT "${MUONRT_MPI_ENV};MUONRT_TEST_RANKS=${ranks}")
endfunction()
