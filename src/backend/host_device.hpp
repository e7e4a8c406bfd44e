#pragma once

// Marks functions that are called by kernels, too.
#if defined(__CUDACC__)
#define MUONRT_HOST_DEVICE __host__ __device__
#else
#define MUONRT_HOST_DEVICE
#endif
