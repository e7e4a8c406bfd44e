#include "cuda/products/cublas_api.hpp"

#include "base/error.hpp"
#include "cuda/device/vendor_library.hpp"

namespace muonrt::cuda {

namespace {

/// "libcublasLt.so.13" for CUDA 13; this file name is the same for all minor versions.
std::string library_name() { return cat("libcublasLt.so.", CUBLAS_VER_MAJOR); }

VendorLibrary find_cublas() {
  const std::string name = library_name();
  const char* const names[] = {name.c_str()};
  return VendorLibrary::open(
      names, cat("options: device is CUDA, but ", name),
      cat("install cuBLAS of CUDA ", CUBLAS_VER_MAJOR,
          " where the loader finds it, or set portable_gemm for slow portable products"));
}

CublasApi load() {
  const VendorLibrary library = find_cublas();
  const auto resolve = [&](auto& function, const char* name) {
    library.resolve(function, name,
                    "(it is older or newer than this build expects); install another one");
  };
  CublasApi api;
  resolve(api.create, "cublasLtCreate");
  resolve(api.get_version, "cublasLtGetVersion");
  resolve(api.status_string, "cublasLtGetStatusString");
  resolve(api.matmul, "cublasLtMatmul");
  resolve(api.desc_create, "cublasLtMatmulDescCreate");
  resolve(api.desc_destroy, "cublasLtMatmulDescDestroy");
  resolve(api.desc_set, "cublasLtMatmulDescSetAttribute");
  resolve(api.layout_create, "cublasLtMatrixLayoutCreate");
  resolve(api.layout_destroy, "cublasLtMatrixLayoutDestroy");
  resolve(api.layout_set, "cublasLtMatrixLayoutSetAttribute");
  resolve(api.preference_create, "cublasLtMatmulPreferenceCreate");
  resolve(api.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  resolve(api.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  resolve(api.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  resolve(api.cap_get, "cublasLtMatmulAlgoCapGetAttribute");
  resolve(api.algo_check, "cublasLtMatmulAlgoCheck");
  return api;
}

}  // namespace

const CublasApi& cublas_api() {
  static const CublasApi api = load();
  return api;
}

void check_cublas(cublasStatus_t status, const char* call, const char* function, int line) {
  MUONRT_REQUIRE(status == CUBLAS_STATUS_SUCCESS, Status::kDevice, call, " failed in ", function,
                 ", line ", line, ": ", cublas_api().status_string(status));
}

}  // namespace muonrt::cuda
