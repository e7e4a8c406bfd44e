#include "cuda/symmetric/fake_cublas_product.hpp"

#include <algorithm>
#include <vector>

#include "base/dtype.hpp"

using namespace muonrt;

namespace {

float element(const void* data, cudaDataType_t type, int64_t at) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  if (type == CUDA_R_16F) return to_f32(static_cast<const f16*>(data)[at]);
  return to_f32(static_cast<const bf16*>(data)[at]);
}
void put(void* data, cudaDataType_t type, int64_t at, float value) {
  if (type == CUDA_R_32F)
    static_cast<float*>(data)[at] = value;
  else if (type == CUDA_R_16F)
    static_cast<f16*>(data)[at] = to_f16(value);
  else
    static_cast<bf16*>(data)[at] = to_bf16(value);
}

/// Returns a batch of matrices as f32, column by column, without padding.
std::vector<float> gathered(const void* data, const FakeCublasLayout& l, bool by_rows) {
  std::vector<float> out(static_cast<size_t>(l.count * l.rows * l.cols));
  float* to = out.data();
  for (int64_t i = 0; i < l.count; ++i)
    for (int64_t outer = 0; outer < (by_rows ? l.rows : l.cols); ++outer)
      for (int64_t inner = 0; inner < (by_rows ? l.cols : l.rows); ++inner)
        *to++ = element(data, l.type,
                        i * l.stride + (by_rows ? inner * l.ld + outer : outer * l.ld + inner));
  return out;
}

}  // namespace

void multiply(const Operands& o, float alpha, const void* a, const void* b, float beta,
              const void* c, void* d) {
  constexpr int64_t kStep = 16;  // number of terms that tensor cores add at once
  // The rows of op(A) and the columns of B. In both arrays, the elements that are multiplied for
  // one sum are contiguous.
  const std::vector<float> rows = gathered(a, o.a, !o.transposed), cols = gathered(b, o.b, false);
  const int64_t m = o.m(), n = o.n(), k = o.k();
  for (int64_t i = 0; i < o.d.count; ++i)
    for (int64_t col = 0; col < n; ++col)
      for (int64_t row = 0; row < m; ++row) {
        const float *x = &rows[(i * m + row) * k], *y = &cols[(i * n + col) * k];
        float sum = 0;
        for (int64_t from = 0; from < k; from += kStep) {
          double step = 0;
          for (int64_t at = from; at < std::min(from + kStep, k); ++at)
            step += static_cast<double>(x[at]) * static_cast<double>(y[at]);
          sum += static_cast<float>(step);
        }
        float value = alpha * sum;
        if (beta != 0.0f) value += beta * element(c, o.c.type, i * o.c.stride + col * o.c.ld + row);
        put(d, o.d.type, i * o.d.stride + col * o.d.ld + row, value);
      }
}
