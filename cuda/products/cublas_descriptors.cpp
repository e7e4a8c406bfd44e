#include "cuda/products/cublas_descriptors.hpp"

#include "cuda/products/cublas_api.hpp"

namespace muonrt::cuda {

namespace {

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

CublasLayout layout_of(int64_t rows, int64_t cols, int64_t ld, DType dtype) {
  const CublasApi& api = cublas_api();
  cublasLtMatrixLayout_t handle = nullptr;
  MUONRT_CUBLAS(api.layout_create(&handle, type_of(dtype), static_cast<uint64_t>(cols),
                                  static_cast<uint64_t>(rows), ld));
  return CublasLayout(handle, api.layout_destroy);
}

}  // namespace

MatmulDescriptors words_of(const ProductShape& s) {
  const CublasApi& api = cublas_api();
  MatmulDescriptors descriptors;
  // Products in f32 use only f32 arithmetic, and neither TF32 nor emulation.
  cublasLtMatmulDesc_t desc = nullptr;
  MUONRT_CUBLAS(api.desc_create(
      &desc, s.dtype == DType::kF32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F,
      CUDA_R_32F));
  descriptors.desc = CublasObject<cublasLtMatmulDesc_t>(desc, api.desc_destroy);
  const cublasOperation_t first = s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  MUONRT_CUBLAS(api.desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
  descriptors.a = layout_of(s.m, s.k, s.a_ld, s.dtype);
  descriptors.b =
      s.transpose_b ? layout_of(s.n, s.k, s.b_ld, s.dtype) : layout_of(s.k, s.n, s.b_ld, s.dtype);
  descriptors.c = layout_of(s.m, s.n, s.c_ld, s.dtype);
  descriptors.d = layout_of(s.m, s.n, s.d_ld, s.dtype);
  return descriptors;
}

void set_batch(const CublasLayout& layout, int64_t count, int64_t stride) {
  const auto matrices = static_cast<int32_t>(count);
  MUONRT_CUBLAS(cublas_api().layout_set(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &matrices,
                                        sizeof matrices));
  MUONRT_CUBLAS(cublas_api().layout_set(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                        &stride, sizeof stride));
}

const MatrixBatch& addend_of(const Product& p) {
  return p.d.data != nullptr && p.beta != 0.0f ? p.d : p.c;
}

ProductShape product_shape_of(const Product& p) {
  return {p.c.rows, p.c.cols,        p.a.cols,  p.a.ld,       p.b.ld,
          p.c.ld,   addend_of(p).ld, p.a.dtype, p.transpose_b};
}

void set_batches(const MatmulDescriptors& descriptors, const Product& p, int64_t count) {
  set_batch(descriptors.a, count, p.a.stride);
  set_batch(descriptors.b, count, p.b.stride);
  set_batch(descriptors.c, count, p.c.stride);
  set_batch(descriptors.d, count, addend_of(p).stride);
}

CublasPreference product_preference(Depth depth) {
  const CublasApi& api = cublas_api();
  cublasLtMatmulPreference_t handle = nullptr;
  MUONRT_CUBLAS(api.preference_create(&handle));
  CublasPreference preference(handle, api.preference_destroy);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
    MUONRT_CUBLAS(api.preference_set(handle, which, &value, sizeof value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kCublasWorkspace});
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t{depth == Depth::kWhole ? CUBLASLT_REDUCTION_SCHEME_NONE
                                      : CUBLASLT_REDUCTION_SCHEME_MASK});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kCublasAlignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kCublasAlignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kCublasAlignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kCublasAlignment);
  return preference;
}

}  // namespace muonrt::cuda
