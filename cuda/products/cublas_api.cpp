#include "cuda/products/cublas_api.hpp"

#include "backend/cuda_device.hpp"
#include "base/error.hpp"
#include "cuda/device/vendor_library.hpp"

namespace muonrt::cuda {

namespace {

// The functions, types and values that muonrt uses are the same in CUDA 12 and CUDA 13.
#if CUBLAS_VER_MAJOR == 12
constexpr const char* kNames[] = {"libcublasLt.so.12", "libcublasLt.so.13"};
#else
constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
#endif

VendorLibrary find_cublas() {
  if (const auto own = VendorLibrary::of_program("cublasLtGetVersion")) return *own;
  return VendorLibrary::open(
      kNames, "options: device is CUDA, but cuBLAS",
      "install cuBLAS of CUDA 12 or 13 where the loader finds it, for example with pip, or set "
      "portable_gemm for slow portable products");
}

CublasApi load() {
  const VendorLibrary library = find_cublas();
  const auto resolve = [&](auto& function, const char* name) {
    library.resolve(
        function, name,
        "(this build does not support its version); install another version of cuBLAS 12 or 13");
  };
  CublasApi api{};
  api.place = library.place();
  resolve(api.create, "cublasLtCreate");
  resolve(api.get_version, "cublasLtGetVersion");
  const size_t version = api.get_version();
  MUONRT_REQUIRE(version / 10000 == 12 || version / 10000 == 13, Status::kNotSupported,
                 "options: device is CUDA, but ", api.place, " is cuBLAS ",
                 cublas_version_text(version), "; versions 12 and 13 are supported");
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

std::string cublas_version_text(size_t version) {
  return cat(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

void check_cublas(cublasStatus_t status, const char* call, const char* function, int line) {
  MUONRT_REQUIRE(status == CUBLAS_STATUS_SUCCESS, Status::kDevice, call, " failed in ", function,
                 ", line ", line, ": ", cublas_api().status_string(status));
}

}  // namespace muonrt::cuda

std::string muonrt::describe_cublas() {
  const cuda::CublasApi& api = cuda::cublas_api();
  return cat(cuda::cublas_version_text(api.get_version()), " (", api.place, ")");
}
