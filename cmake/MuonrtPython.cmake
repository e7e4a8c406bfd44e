# The target muonrt_python, the library inside the Python package. Its file has a different name
# than libmuonrt, because the process may also load libmuonrt. At top level it does not contain the
# CUDA backend: tools/wheels makes the wheel for the host from the objects of any build. A build by
# pip contains the CUDA backend if MUONRT_CUDA enables it.
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
