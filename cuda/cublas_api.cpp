#include "cuda/cublas_api.hpp"

#include <dlfcn.h>

#include "base/error.hpp"

namespace muonrt::cuda {

namespace {

/// "libcublasLt.so.13" for CUDA 13: one library serves all minor versions.
std::string library_name() { return cat("libcublasLt.so.", CUBLAS_VER_MAJOR); }

void* open_library() {
  const std::string name = library_name();
  void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (!library) library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  const char* why = library ? "" : dlerror();
  MUONRT_REQUIRE(library, Status::kNotSupported, "options: device is CUDA, but ", name,
                 " cannot be loaded (", why ? why : "unknown reason", "); install cuBLAS of CUDA ",
                 CUBLAS_VER_MAJOR,
                 " where the loader finds it, or set portable_gemm for slow plain products");
  return library;
}

template <class Function>
void resolve(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  MUONRT_REQUIRE(function, Status::kNotSupported, library_name(), " has no function ", name,
                 " (it is older or newer than this build expects); install another one");
}

CublasApi load() {
  void* const library = open_library();  // stays for the life of the process
  CublasApi api;
  resolve(library, api.create, "cublasLtCreate");
  resolve(library, api.get_version, "cublasLtGetVersion");
  resolve(library, api.status_string, "cublasLtGetStatusString");
  resolve(library, api.matmul, "cublasLtMatmul");
  resolve(library, api.desc_create, "cublasLtMatmulDescCreate");
  resolve(library, api.desc_destroy, "cublasLtMatmulDescDestroy");
  resolve(library, api.desc_set, "cublasLtMatmulDescSetAttribute");
  resolve(library, api.layout_create, "cublasLtMatrixLayoutCreate");
  resolve(library, api.layout_destroy, "cublasLtMatrixLayoutDestroy");
  resolve(library, api.layout_set, "cublasLtMatrixLayoutSetAttribute");
  resolve(library, api.preference_create, "cublasLtMatmulPreferenceCreate");
  resolve(library, api.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  resolve(library, api.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  resolve(library, api.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  resolve(library, api.cap_get, "cublasLtMatmulAlgoCapGetAttribute");
  resolve(library, api.algo_check, "cublasLtMatmulAlgoCheck");
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
