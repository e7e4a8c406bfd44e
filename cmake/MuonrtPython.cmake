# The target muonrt_python, the library inside the Python package. Its file is not named libmuonrt,
# because the process may also load libmuonrt. If muonrt is the top-level project, muonrt_python does
# not contain the CUDA backend, so tools/wheels can make the host's wheel from the objects of any
# build. If pip builds muonrt_python, MUONRT_CUDA decides whether it contains the CUDA backend.
if(MUONRT_WITH_CUDA AND PROJECT_IS_TOP_LEVEL)
  muonrt_add_shared(muonrt_python $<FILTER:$<TARGET_OBJECTS:muonrt_objects>,EXCLUDE,/__/cuda/>
    ${no_cuda_sources})
  target_include_directories(muonrt_python PRIVATE ${inside})
else()
  muonrt_add_shared(muonrt_python $<TARGET_OBJECTS:muonrt_objects> ${of_one_kind})
endif()
set_target_properties(muonrt_python PROPERTIES EXCLUDE_FROM_ALL ON UNITY_BUILD OFF)
include(${CMAKE_CURRENT_LIST_DIR}/MuonrtLibstdcxx.cmake)
muonrt_link_wait(muonrt_python)
