// Tests the descriptors of matrix products by reading them back from cuBLASLt. The tests need no
// GPU.

#include <dlfcn.h>

#include <catch2/catch.hpp>

#include "base/error.hpp"
#include "cuda/products/cublas_api.hpp"
#include "cuda/products/cublas_descriptors.hpp"

using namespace muonrt;
using namespace muonrt::cuda;

namespace {

/// Loads cuBLASLt: a copy that the process has already loaded, or one from the loader's search path
/// or the folder of the CUDA toolkit. Returns null if no copy is found. To run these tests with a
/// major version other than that of the build, preload that library:
/// LD_PRELOAD=.../libcublasLt.so.12.
void* library() {
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
    if (void* const found = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return found;
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"})
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"})
      if (void* const found = dlopen(cat(folder, name).c_str(), RTLD_LAZY | RTLD_LOCAL))
        return found;
  return nullptr;
}

template <class T, class Get, class Object, class Which>
T read(Get get, Object object, Which which) {
  T value{};
  size_t written = 0;
  REQUIRE(get(object, which, &value, sizeof value, &written) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(written == sizeof value);
  return value;
}

#define FROM(found, name) reinterpret_cast<decltype(&name)>(dlsym(found, #name))

}  // namespace

TEST_CASE("cublas: all functions are found in the real library, or NOT_SUPPORTED is thrown",
          "[unit][cublas]") {
  if (void* const found = library()) {
    CHECK(cublas_api().get_version() == FROM(found, cublasLtGetVersion)());
    CHECK(cublas_version_text(130100) == "13.1.0");
    const std::string text = cublas_api().status_string(CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(text.find("not supported") != std::string::npos);
    return;
  }
  WARN("no cuBLASLt here");
  try {
    cublas_api();
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(e.status() == Status::kNotSupported);
    CHECK(e.message().find("libcublasLt.so.") != std::string::npos);
    CHECK(e.message().find("portable_gemm") != std::string::npos);
  }
}

TEST_CASE("cublas: the real library stores the description of a product", "[unit][cublas]") {
  void* const found = library();
  if (!found) return;
  const auto layout = FROM(found, cublasLtMatrixLayoutGetAttribute);
  const auto desc = FROM(found, cublasLtMatmulDescGetAttribute);
  REQUIRE(layout);
  REQUIRE(desc);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool transpose_b : {false, true}) {
      const MatmulDescriptors words = words_of({3, 5, 7, 16, 24, 32, 40, dtype, transpose_b});
      struct Expected {
        const CublasLayout& layout;
        uint64_t rows, cols;
        int64_t ld;
      };
      const Expected b = transpose_b ? Expected{words.b, 7, 5, 24} : Expected{words.b, 5, 7, 24};
      for (const Expected& e : {Expected{words.a, 7, 3, 16}, b, Expected{words.c, 5, 3, 32},
                                Expected{words.d, 5, 3, 40}}) {
        set_batch(e.layout, 6, 1024);
        const auto get = e.layout.get();
        CHECK(read<uint64_t>(layout, get, CUBLASLT_MATRIX_LAYOUT_ROWS) == e.rows);
        CHECK(read<uint64_t>(layout, get, CUBLASLT_MATRIX_LAYOUT_COLS) == e.cols);
        CHECK(read<int64_t>(layout, get, CUBLASLT_MATRIX_LAYOUT_LD) == e.ld);
        CHECK(read<int32_t>(layout, get, CUBLASLT_MATRIX_LAYOUT_ORDER) == CUBLASLT_ORDER_COL);
        CHECK(read<uint32_t>(layout, get, CUBLASLT_MATRIX_LAYOUT_TYPE) ==
              static_cast<uint32_t>(dtype == DType::kF32   ? CUDA_R_32F
                                    : dtype == DType::kF16 ? CUDA_R_16F
                                                           : CUDA_R_16BF));
        CHECK(read<int32_t>(layout, get, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) == 6);
        CHECK(read<int64_t>(layout, get, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) == 1024);
      }
      const auto get = words.desc.get();
      CHECK(read<int32_t>(desc, get, CUBLASLT_MATMUL_DESC_TRANSA) ==
            (transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
      CHECK(read<int32_t>(desc, get, CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_N);
      CHECK(read<int32_t>(desc, get, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE) ==
            (dtype == DType::kF32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F));
      CHECK(read<int32_t>(desc, get, CUBLASLT_MATMUL_DESC_SCALE_TYPE) == CUDA_R_32F);
      CHECK(read<int32_t>(desc, get, CUBLASLT_MATMUL_DESC_POINTER_MODE) ==
            CUBLASLT_POINTER_MODE_HOST);
      CHECK(read<int32_t>(desc, get, CUBLASLT_MATMUL_DESC_EPILOGUE) == CUBLASLT_EPILOGUE_DEFAULT);
    }
  }
}

TEST_CASE("cublas: the real library stores the limits for algorithms", "[unit][cublas]") {
  void* const found = library();
  if (!found) return;
  const auto get = FROM(found, cublasLtMatmulPreferenceGetAttribute);
  REQUIRE(get);
  for (const Depth depth : {Depth::kWhole, Depth::kInParts}) {
    const CublasPreference preference = product_preference(depth);
    const auto of = preference.get();
    CHECK(read<uint64_t>(get, of, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) ==
          uint64_t{kCublasWorkspace});
    CHECK(
        read<uint32_t>(get, of, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) ==
        (depth == Depth::kWhole ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_MASK));
    for (const auto which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      CHECK(read<uint32_t>(get, of, which) == kCublasAlignment);
  }
}
