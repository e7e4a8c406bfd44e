#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cuda/symmetric/symmetric_cases.hpp"

// Dense products C = alpha A X + beta D whose results are known exactly. The matrices consist of
// small integers, so the sums are exact in f32.
namespace cuda_test {

struct DenseCase {
  int64_t m, n, k, count = 1;
  float alpha = 1.0f, beta = 0.0f;  // no D if beta is 0
  muonrt::DType dtype = muonrt::DType::kBF16;

  std::string name() const {
    return muonrt::cat(m, " x ", n, " x ", k, ", ", count, " matrices, alpha ", alpha, ", beta ",
                       beta, ", ", name_of(dtype));
  }
  /// Returns matrices with `rows` rows, in the form that IntegerBatch uses.
  SymmetricCase with_rows(int64_t rows) const { return {rows, 0, count}; }
};

/// Returns a case whose epilogue and dtype depend on `turn`.
inline DenseCase dense_case(int64_t m, int64_t n, int64_t k, int64_t count, int64_t turn) {
  DenseCase c{m, n, k, count};
  if (turn % 3 == 1) c.beta = 3.0f;
  if (turn % 3 == 2) c.alpha = -2.0f, c.beta = 1.0f;
  if (turn / 3 % 2 == 1) c.dtype = muonrt::DType::kF16;
  return c;
}

/// Returns sizes close to the edges of squares, tiles, pairs, stages and the ring. The number of
/// rows of cells is odd in some results, and the number of columns of cells in others.
inline std::vector<DenseCase> dense_edge_cases() {
  constexpr std::array<int64_t, 8> kDepths = {1, 33, 64, 65, 130, 256, 257, 330};
  std::vector<DenseCase> cases;
  int64_t turn = 0;
  for (const int64_t m : {1, 64, 65, 128, 129, 256, 300, 385})
    for (const int64_t n : {1, 8, 63, 100, 128, 250, 257, 520}) {
      const int64_t count = m * n < 20000 ? 1 + turn % 3 : 1;
      cases.push_back(dense_case(m, n, kDepths[static_cast<size_t>(turn * 3 % 8)], count, turn));
      turn += turn % 8 == 7 ? 2 : 1;
    }
  return cases;
}

/// One dense product on a device, and the expected contents of C's memory, including the gaps.
class DenseTrial {
 public:
  DenseTrial(Machine& machine, const DenseCase& c, uint64_t seed) : count_(c.count) {
    IntegerBatch a(c.with_rows(c.m), c.k), x(c.with_rows(c.k), c.n), d(c.with_rows(c.m), c.n),
        out(c.with_rows(c.m), c.n);
    int64_t drawn = 0;
    for (auto& [batch, range] : {std::pair(&a, 2), {&x, 2}, {&d, 100}})
      for (int& value : batch->values)
        value = static_cast<int>(bits_at(seed, drawn++) >> 40) % (2 * range + 1) - range;
    std::vector<float> sums(static_cast<size_t>(c.n));  // f32 represents these sums exactly
    for (int64_t m = 0; m < c.count; ++m)
      for (int64_t row = 0; row < c.m; ++row) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int64_t i = 0; i < c.k; ++i) {
          const auto factor = static_cast<float>(a.at(m, row, i));
          const int* const from = &x.at(m, i, 0);
          for (size_t j = 0; j < sums.size(); ++j) sums[j] += factor * static_cast<float>(from[j]);
        }
        for (int64_t j = 0; j < c.n; ++j)
          out.at(m, row, j) =
              static_cast<int>(c.alpha) * static_cast<int>(sums[static_cast<size_t>(j)]) +
              static_cast<int>(c.beta) * d.at(m, row, j);
      }
    // The gaps of operands are NaN, and the gaps of C must not change.
    constexpr uint16_t kNan = 0x7fff, kKeep = kKeepByte * 0x101;
    const auto exact = [&](int value) { return half_of(value, c.dtype); };
    const auto rounded = [&](int value) {
      return c.dtype == muonrt::DType::kBF16 ? muonrt::to_bf16(static_cast<float>(value)).bits
                                             : nearest_f16(value);
    };
    product.a = a.view(machine.put(a.memory(c.count, kNan, exact)), c.dtype, c.count);
    product.b = x.view(machine.put(x.memory(c.count, kNan, exact)), c.dtype, c.count);
    if (c.beta != 0.0f)
      product.d = d.view(machine.put(d.memory(c.count, kNan, exact)), c.dtype, c.count);
    product.c = out.view(
        machine.put(std::vector<uint16_t>(static_cast<size_t>(c.count * out.stride), kKeep)),
        c.dtype, c.count);
    product.alpha = c.alpha;
    product.beta = c.beta;
    expected_ = out.memory(c.count, kKeep, rounded);
  }

  void wipe(Machine& machine) const {
    machine.ops().fill(machine.on(), product.c.data, kKeepByte, 2 * count_ * product.c.stride);
  }
  std::vector<uint16_t> result(Machine& machine) const {
    return machine.get(static_cast<const uint16_t*>(product.c.data), count_ * product.c.stride);
  }
  /// Returns the number of elements in C's memory that differ from the expected values.
  int64_t wrong(Machine& machine) const {
    const auto got = result(machine);
    int64_t different = 0;
    for (size_t i = 0; i < got.size(); ++i) different += got[i] != expected_[i];
    return different;
  }

  muonrt::Product product;

 private:
  static constexpr unsigned char kKeepByte = 0x5a;
  int64_t count_;
  std::vector<uint16_t> expected_;
};

}  // namespace cuda_test
