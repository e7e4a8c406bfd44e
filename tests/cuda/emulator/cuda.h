#pragma once

// Declares the part of the CUDA driver API that cuda/ uses, with the names and values from its
// manual. driver.cpp defines the functions.

#include <cstdint>

#include "cuda_runtime_api.h"

using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;
using CUdevice = int;
using CUcontext = struct FakeContext*;
using CUdeviceptr = unsigned long long;
using CUstream = cudaStream_t;
enum : unsigned { CU_STREAM_WAIT_VALUE_GEQ = 0 };

enum CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201
};
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9
};
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };

struct CUtensorMap {
  alignas(64) cuuint64_t opaque[16];
};

CUresult cuInit(unsigned flags);
CUresult cuDeviceGet(CUdevice* device, int index);
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device);
CUresult cuCtxPushCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext* context);
CUresult cuCtxPopCurrent(CUcontext* context);
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr word, cuuint32_t value, unsigned flags);
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* memory, const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);
