#pragma once

#include <cublasLt.h>

#include <string>

namespace muonrt::cuda {

/// The functions of cuBLASLt of CUDA 12 or 13. They are resolved at run time, so that muonrt also
/// loads on machines without the library. A copy that is already loaded, for example by a
/// framework, is preferred. Otherwise the CUDA major version with which muonrt was built is
/// preferred.
struct CublasApi {
  std::string place;  // the name or path under which the library was found
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

/// Returns the version as text, for example "13.1.0" for 130100.
std::string cublas_version_text(size_t version);

void check_cublas(cublasStatus_t status, const char* call, const char* function, int line);

}  // namespace muonrt::cuda

/// Throws a DEVICE error if the cuBLASLt call fails.
#define MUONRT_CUBLAS(call) ::muonrt::cuda::check_cublas((call), #call, __func__, __LINE__)
