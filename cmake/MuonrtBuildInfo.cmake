# Writes build_info.hpp: what this build is, for `muonrt_get_version`, `muonrt info` and the hash that
# ranks compare. Nothing of the checkout, the machine or the clock goes in.
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
