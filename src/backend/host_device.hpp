#pragma once

// Marks functions that kernels also call.
#if defined(__CUDACC__)
#define MUONRT_HOST_DEVICE __host__ __device__
#else
#define MUONRT_HOST_DEVICE
#endif
