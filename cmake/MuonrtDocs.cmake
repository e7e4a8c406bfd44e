# The target `docs`: writes the reference to docs/html of the build folder (cmake/docs/README.md).
# Missing tools do not stop the configuration; building the target then fails and names them.
find_program(MUONRT_DOXYGEN doxygen)
find_program(MUONRT_SPHINX_BUILD sphinx-build)
mark_as_advanced(MUONRT_DOXYGEN MUONRT_SPHINX_BUILD)

set(muonrt_docs_missing "")
if(NOT MUONRT_DOXYGEN)
  list(APPEND muonrt_docs_missing doxygen)
endif()
if(NOT MUONRT_SPHINX_BUILD)
  list(APPEND muonrt_docs_missing python3-sphinx python3-breathe furo python3-myst-parser)
endif()
if(muonrt_docs_missing)
  list(JOIN muonrt_docs_missing " " muonrt_docs_missing)
  add_custom_target(docs
    COMMAND ${CMAKE_COMMAND} -E echo "The target docs needs the Debian packages \
${muonrt_docs_missing}. Install them, for example with tools/deps --docs, and configure again."
    COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
  return()
endif()

set(muonrt_docs ${PROJECT_BINARY_DIR}/docs)
configure_file(${CMAKE_CURRENT_LIST_DIR}/docs/Doxyfile.in ${muonrt_docs}/Doxyfile @ONLY)
configure_file(${CMAKE_CURRENT_LIST_DIR}/docs/Doxyfile.check.in ${muonrt_docs}/Doxyfile.check COPYONLY)
configure_file(${CMAKE_CURRENT_LIST_DIR}/docs/conf.py.in ${muonrt_docs}/source/conf.py @ONLY)
# Doxygen and Sphinx report warnings only about files that they process again, so the target always
# rebuilds everything.
add_custom_target(docs
  COMMAND ${CMAKE_COMMAND} -E rm -rf xml checked html
  COMMAND ${MUONRT_DOXYGEN} Doxyfile.check
  COMMAND ${MUONRT_DOXYGEN} Doxyfile
  COMMAND ${MUONRT_SPHINX_BUILD} -q -E -W --keep-going -b html -d doctrees source html
  COMMAND ${CMAKE_COMMAND} -E echo "Reference: ${muonrt_docs}/html/index.html"
  WORKING_DIRECTORY ${muonrt_docs} VERBATIM)
