# Installs headers, libraries, the command, the files for find_package(muonrt), muonrt.pc and
# muonrt_mpi.pc. There are four components: library, development, mpi and tools. `cpack` makes a
# Debian package of each component.
include(CMakePackageConfigHelpers)
set(muonrt_package ${CMAKE_INSTALL_LIBDIR}/cmake/muonrt)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/muonrt DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(TARGETS muonrt muonrt_core muonrt_headers EXPORT muonrt
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
set_target_properties(muonrt_headers PROPERTIES EXPORT_NAME headers)
if(TARGET muonrt_mpi)
  install(TARGETS muonrt_mpi EXPORT muonrt-mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    COMPONENT mpi)
  # The MPI targets are in a separate file, because the MPI library may not be installed.
  install(EXPORT muonrt-mpi NAMESPACE muonrt:: FILE muonrt-mpi-targets.cmake
    DESTINATION ${muonrt_package} COMPONENT mpi)
  # muonrt_mpi finds the muonrt library in its own folder, wherever the two libraries are installed.
  set_target_properties(muonrt_mpi PROPERTIES EXPORT_NAME mpi INSTALL_RPATH "$ORIGIN")
endif()
if(TARGET muonrt_cli)
  install(TARGETS muonrt_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
endif()

install(EXPORT muonrt NAMESPACE muonrt:: FILE muonrt-targets.cmake DESTINATION ${muonrt_package}
  COMPONENT development)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/muonrt-config.cmake.in
  ${PROJECT_BINARY_DIR}/package/muonrt-config.cmake INSTALL_DESTINATION ${muonrt_package})
# Before version 1.0, a new minor version may change the ABI.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/muonrt-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/muonrt-config.cmake
  ${PROJECT_BINARY_DIR}/package/muonrt-config-version.cmake DESTINATION ${muonrt_package}
  COMPONENT development)

# muonrt.pc lists the libraries that a program needs if it links the shared library. With
# `pkg-config --static` it also lists the libraries that the archive needs.
set(muonrt_private_libs -pthread -ldl -lstdc++ -lm)
if(MUONRT_WITH_ONEDNN)
  list(PREPEND muonrt_private_libs -ldnnl -lgomp)
endif()
if(MUONRT_WITH_CUDA)
  list(PREPEND muonrt_private_libs -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt)
endif()
list(JOIN muonrt_private_libs " " muonrt_private_libs)
file(RELATIVE_PATH muonrt_pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/muonrt.pc.in ${PROJECT_BINARY_DIR}/package/muonrt.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/muonrt.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
if(TARGET muonrt_mpi)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/muonrt_mpi.pc.in
    ${PROJECT_BINARY_DIR}/package/muonrt_mpi.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/muonrt_mpi.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT mpi)
endif()
if(PROJECT_IS_TOP_LEVEL)
  include(MuonrtPackages)
endif()
