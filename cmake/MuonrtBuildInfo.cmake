# Writes build_info.hpp, which describes this build for `muonrt_get_version`, for `muonrt info` and
# for the hash that ranks compare. The file does not depend on the checkout, the machine or the time.
set(muonrt_build_type ${CMAKE_BUILD_TYPE})
if(NOT muonrt_build_type)
  set(muonrt_build_type None)
endif()
foreach(name MPI ONEDNN)
  if(MUONRT_WITH_${name})
    set(muonrt_has_${name} true)
  else()
    set(muonrt_has_${name} false)
  endif()
endforeach()
configure_file(${CMAKE_CURRENT_LIST_DIR}/build_info.hpp.in
  ${PROJECT_BINARY_DIR}/generated/build_info.hpp @ONLY)
