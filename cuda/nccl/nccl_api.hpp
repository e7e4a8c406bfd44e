#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/nccl/nccl_types.hpp"

namespace muonrt::cuda {

/// The functions of NCCL, resolved at run time. A copy that the process has already loaded, for
/// example a framework's copy, is preferred. The search begins with copies whose symbols are
/// visible to the whole program, regardless of their file names. Then it checks whether a library
/// named libnccl.so.2 is loaded.
struct NcclApi {
  NcclResult (*get_version)(int*);
  NcclResult (*get_unique_id)(NcclUniqueId*);
  NcclResult (*init)(NcclHandle*, int size, NcclUniqueId, int rank, NcclConfig*);
  NcclResult (*split)(NcclHandle, int color, int key, NcclHandle*, NcclConfig*);
  NcclResult (*finalize)(NcclHandle);
  NcclResult (*destroy)(NcclHandle);
  NcclResult (*abort)(NcclHandle);
  NcclResult (*async_error)(NcclHandle, NcclResult*);
  NcclResult (*count)(NcclHandle, int*);
  NcclResult (*user_rank)(NcclHandle, int*);
  NcclResult (*device)(NcclHandle, int*);
  const char* (*error_string)(NcclResult);
  const char* (*last_error)(NcclHandle);
  NcclResult (*send)(const void*, size_t count, NcclType, int peer, NcclHandle, cudaStream_t);
  NcclResult (*receive)(void*, size_t count, NcclType, int peer, NcclHandle, cudaStream_t);
  NcclResult (*all_reduce)(const void*, void*, size_t count, NcclType, NcclOp, NcclHandle,
                           cudaStream_t);
  NcclResult (*group_start)();
  NcclResult (*group_end)();
};

/// Returns the functions, and resolves them at the first call. Errors: NOT_SUPPORTED if the library
/// or one of the functions is missing, or if the version is older than 2.19.
const NcclApi& nccl_api();

/// Resolves the functions in a copy that the program has already loaded, or otherwise in the first
/// library of `names` that can be loaded. Errors: the same as nccl_api.
NcclApi load_nccl(const char* const* names, int count);

/// Returns the version as text, for example "2.28.9" for 22809.
std::string nccl_version_text(int version);

}  // namespace muonrt::cuda
