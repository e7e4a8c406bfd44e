#pragma once

#include <cublasLt.h>

namespace muonrt::cuda {

/// The functions of cuBLASLt, resolved at run time, so that muonrt loads on machines without it. A
/// copy that is already loaded under this name, for example a framework's, is preferred.
struct CublasApi {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCapGetAttribute) cap_get;
  decltype(&cublasLtMatmulAlgoCheck) algo_check;
};

/// Errors: NOT_SUPPORTED if the library or one of the functions does not exist.
const CublasApi& cublas_api();

void check_cublas(cublasStatus_t status, const char* call, const char* function, int line);

}  // namespace muonrt::cuda

/// Turns the error of a cuBLASLt call into DEVICE.
#define MUONRT_CUBLAS(call) ::muonrt::cuda::check_cublas((call), #call, __func__, __LINE__)
