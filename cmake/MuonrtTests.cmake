# How tests are registered with CTest.

# Trees of the same checkout built with a sanitizer (tools/test makes them); their unit tests run
# from here, so that one CTest summary counts everything. Empty: left out.
set(MUONRT_ASAN_TREE "" CACHE PATH "Build folder with MUONRT_SANITIZE=address, or empty")
set(MUONRT_TSAN_TREE "" CACHE PATH "Build folder with MUONRT_SANITIZE=thread, or empty")
mark_as_advanced(MUONRT_ASAN_TREE MUONRT_TSAN_TREE)

file(STRINGS ${PROJECT_SOURCE_DIR}/tools/mpienv muonrt_mpi_env REGEX "^export ")
list(TRANSFORM muonrt_mpi_env REPLACE "^export " "")
# A hang under mpirun ends by mpirun's own clock, shortly before CTest's.
list(APPEND muonrt_mpi_env MPIEXEC_TIMEOUT=170)
set(MUONRT_MPI_ENV ${muonrt_mpi_env} CACHE INTERNAL "Environment of every test under mpirun")

# One entry for each source file: unit.<file> here, asan.<file> and tsan.<file> in the other trees.
# Catch2 makes a tag of each file name with -#. Tags that decide where a case runs:
#   [tsan]  under TSan too (threads meet there)      [nosan]  under no sanitizer (too long there)
#   [.full] the full products, only with `ctest -C Full -L full`
function(muonrt_add_unit_tests)
  foreach(source ${ARGN})
    get_filename_component(file ${source} NAME_WE)
    if(file STREQUAL "main")
      continue()
    endif()
    file(STRINGS ${source} tags REGEX "\\[[a-z.]+\\]")
    muonrt_add_unit_test(unit ${file} $<TARGET_FILE:muonrt_unit> "[#${file}]")
    if(tags MATCHES "\\[\\.full\\]")
      muonrt_add_unit_test(full ${file} $<TARGET_FILE:muonrt_unit> "[#${file}][.full]"
        CONFIGURATIONS Full)
      set_tests_properties(full.${file} PROPERTIES TIMEOUT 7200)
    endif()
    if(MUONRT_ASAN_TREE)
      muonrt_add_unit_test(asan ${file} ${MUONRT_ASAN_TREE}/bin/muonrt_unit "[#${file}]~[nosan]")
    endif()
    if(MUONRT_TSAN_TREE AND tags MATCHES "\\[tsan\\]")
      muonrt_add_unit_test(tsan ${file} ${MUONRT_TSAN_TREE}/bin/muonrt_unit
        "[#${file}][tsan]~[nosan]")
    endif()
  endforeach()
endfunction()

function(muonrt_add_unit_test kind file binary filter)
  add_test(NAME ${kind}.${file} COMMAND ${binary} -\# -w NoTests ${filter} ${ARGN})
  set_tests_properties(${kind}.${file} PROPERTIES LABELS ${kind} TIMEOUT 300)
endfunction()

# muonrt_add_mpi_test(name ranks command...): `command` under mpirun. Nothing without MPI.
function(muonrt_add_mpi_test name ranks)
  if(NOT MUONRT_WITH_MPI)
    return()
  endif()
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks}
    ${MPIEXEC_PREFLAGS} ${ARGN} ${MPIEXEC_POSTFLAGS})
  set_tests_properties(${name} PROPERTIES LABELS mpi PROCESSORS ${ranks} TIMEOUT 180
    ENVIRONMENT "${MUONRT_MPI_ENV}")
endfunction()
