#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "muonrt/muonrt.h"
#include "reference/reference.hpp"
#include "support/numerics/reference_ops.hpp"

/// Types for tests of the C ABI: host tensors and an orthogonalizer.
namespace c_tensor {

using muonrt::DType;
using reference::Matrix;
using reference_ops::load;
using reference_ops::store;

constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16};

inline muonrt_group_t muon_group() {
  muonrt_group_t out;
  muonrt_group_init_muon(&out);
  return out;
}
inline muonrt_optimizer_options_t options() {
  muonrt_optimizer_options_t out;
  muonrt_optimizer_options_init(&out);
  return out;
}

struct Orthogonalizer {
  muonrt_orthogonalizer_t* handle = nullptr;

  explicit Orthogonalizer(const muonrt_group_t* g = nullptr,
                          const muonrt_optimizer_options_t* o = nullptr) {
    REQUIRE(muonrt_orthogonalizer_create(&handle, o, g) == MUONRT_OK);
  }
  ~Orthogonalizer() { muonrt_orthogonalizer_destroy(handle); }
  Orthogonalizer(const Orthogonalizer&) = delete;
  Orthogonalizer& operator=(const Orthogonalizer&) = delete;

  muonrt_status_t orthogonalize(const muonrt_dltensor_t& out, const muonrt_dltensor_t& x,
                                int64_t* nonfinite = nullptr) {
    return muonrt_orthogonalize(&out, nonfinite, handle, &x, nullptr);
  }
  muonrt_status_t product(const muonrt_dltensor_t& c, double alpha, const muonrt_dltensor_t& a,
                          double beta = 0, const muonrt_dltensor_t* d = nullptr) {
    return muonrt_symmetric_product(&c, handle, alpha, &a, beta, d, nullptr);
  }
};

/// A tensor together with its memory.
struct Tensor {
  std::vector<unsigned char> memory;
  std::vector<int64_t> shape, strides;
  DType dtype;
  muonrt_dltensor_t c{};

  Tensor(DType type, std::vector<int64_t> sizes, std::vector<int64_t> steps = {})
      : shape(std::move(sizes)), strides(std::move(steps)), dtype(type) {
    if (strides.empty()) {
      strides.assign(shape.size(), 1);
      for (size_t i = shape.size() - 1; i-- > 0;) strides[i] = strides[i + 1] * shape[i + 1];
    }
    int64_t elements = 1;
    for (size_t i = 0; i < shape.size(); ++i) elements += (shape[i] - 1) * strides[i];
    memory.assign(static_cast<size_t>(std::max<int64_t>(elements, 0) * size_of(dtype)), 0xee);
  }
  const muonrt_dltensor_t& view() {
    c.data = reinterpret_cast<char*>(memory.data());
    c.device_type = 1;
    c.ndim = static_cast<int32_t>(shape.size());
    c.type_code = dtype == DType::kBF16 ? 4 : 2;
    c.type_bits = dtype == DType::kF32 ? 32 : 16;
    c.type_lanes = 1;
    c.shape = shape.data();
    c.strides = strides.data();
    return c;
  }
  int64_t at(int64_t matrix, int64_t i, int64_t j) const {
    const size_t d = shape.size();
    return (d > 2 ? matrix * strides[d - 3] : 0) + i * strides[d - 2] + j * strides[d - 1];
  }
  void put(const Matrix& m, int64_t matrix = 0) {
    for (int64_t i = 0; i < m.rows; ++i)
      for (int64_t j = 0; j < m.cols; ++j)
        store(memory.data(), dtype, at(matrix, i, j), static_cast<float>(m(i, j)));
  }
  Matrix get(int64_t matrix = 0) const {
    Matrix m(shape[shape.size() - 2], shape.back());
    for (int64_t i = 0; i < m.rows; ++i)
      for (int64_t j = 0; j < m.cols; ++j)
        m(i, j) = static_cast<double>(load(memory.data(), dtype, at(matrix, i, j)));
    return m;
  }
};

inline Tensor tensor_of(const Matrix& m, DType dtype) {
  Tensor t(dtype, {m.rows, m.cols});
  t.put(m);
  return t;
}

inline bool same(const Matrix& a, const Matrix& b) {
  return a.rows == b.rows && a.cols == b.cols &&
         std::memcmp(a.v.data(), b.v.data(), a.v.size() * sizeof(double)) == 0;
}

}  // namespace c_tensor
