# The targets that need <mpi.h>, separate from the core:
#   muonrt_mpi         shared, exports muonrt_comm_create_mpi_address; links muonrt and MPI
#   muonrt_mpi_static  the same for programs that link muonrt as an archive; tests use its internals
file(GLOB mpi_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/comm/mpi/*.cpp)

add_library(muonrt_mpi_objects OBJECT ${mpi_sources})
target_include_directories(muonrt_mpi_objects PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(muonrt_mpi_objects PRIVATE muonrt_flags muonrt_headers MPI::MPI_C)
# Uses only the C bindings, because the MPI standard no longer has C++ bindings.
target_compile_definitions(muonrt_mpi_objects PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)

add_library(muonrt_mpi_static STATIC $<TARGET_OBJECTS:muonrt_mpi_objects>)
target_link_libraries(muonrt_mpi_static PUBLIC muonrt_core MPI::MPI_C)
set_target_properties(muonrt_mpi_static PROPERTIES LINKER_LANGUAGE CXX)

# The library muonrt exports only its ABI, so muonrt_mpi contains its own copy of error.cpp.
add_library(muonrt_mpi SHARED $<TARGET_OBJECTS:muonrt_mpi_objects>
  ${PROJECT_SOURCE_DIR}/src/base/error.cpp)
target_include_directories(muonrt_mpi PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(muonrt_mpi PUBLIC muonrt
  PRIVATE $<BUILD_INTERFACE:muonrt_flags> $<BUILD_INTERFACE:MPI::MPI_C>)
target_link_options(muonrt_mpi PRIVATE
  -Wl,--version-script=${PROJECT_SOURCE_DIR}/src/exports.map -Wl,--as-needed -Wl,--no-undefined -Wl,-z,nodelete)
set_target_properties(muonrt_mpi PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${MUONRT_ABI}
  LINKER_LANGUAGE CXX LINK_DEPENDS ${PROJECT_SOURCE_DIR}/src/exports.map)
add_library(muonrt::mpi ALIAS muonrt_mpi)
