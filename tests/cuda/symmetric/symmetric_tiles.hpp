#pragma once

#include "cuda/device/cuda_device.hpp"
#include "cuda/symmetric/small_jobs.hpp"
#include "cuda/symmetric/symmetric_draws.hpp"
#include "cuda/symmetric/symmetric_products.hpp"

// Products by tiles of the test's choice.
namespace cuda_test {

using namespace muonrt;
using namespace muonrt::cuda;

constexpr auto kProvider = SymmetricProvider::kSm90;
constexpr int kMostSlices = 4;

/// Runs one product with chosen tiles and slices (0: by shape).
inline void multiply(Machine& machine, const Product& product, Tiles tiles, int slices, int sms = 4,
                     bool pairs = true) {
  SymmetricProducts products(*machine.device, kProvider, sms,
                             {.tiles = tiles, .pairs = pairs, .slices = slices});
  products.multiply({&product, 1}, handle_of(machine.on()));
  machine.finish();
}

inline int64_t wrong(Machine& machine, const SymmetricCase& c, const SymmetricNumbers& numbers,
                     Tiles tiles, int slices = 0) {
  const SymmetricTrial trial(machine, c, numbers);
  multiply(machine, trial.product, tiles, slices);
  return trial.wrong(machine);
}
inline int64_t wrong(const SymmetricCase& c, Tiles tiles, int slices = 0) {
  Machine machine(make_device(kProvider));
  return wrong(machine, c, SymmetricNumbers(c, static_cast<uint64_t>(c.n * 1000 + c.k)), tiles,
               slices);
}

/// Every kind of epilogue and both dtypes in turn.
inline SymmetricCase case_of(int64_t n, int64_t k, int64_t count, int64_t turn) {
  SymmetricCase c = with_epilogue({n, k, count}, turn % kEpilogues);
  if (turn / 4 % 2 == 1) c.dtype = DType::kF16;
  return c;
}

/// Random real numbers, a batch of three, and the bits of its results.
class RandomBatch {
 public:
  RandomBatch(int64_t n, int64_t k)
      : n_(n), ld_((n + 31) / 32 * 32), machine_(make_device(kProvider)) {
    const int64_t in_ld = (k + 31) / 32 * 32;
    const auto operand = [&](uint64_t seed, int64_t cols, int64_t ld) {
      return MatrixBatch{machine_.put(values(seed, DType::kBF16, kCount * n * ld)),
                         DType::kBF16,
                         n,
                         cols,
                         ld,
                         kCount,
                         n * ld};
    };
    product_.a = operand(3, k, in_ld);
    product_.b = operand(4, k, in_ld);
    product_.d = operand(5, n, ld_);
    product_.c = operand(6, n, ld_);
    product_.transpose_b = product_.symmetric = true;
    product_.alpha = 0.37f;
    product_.beta = 0.7f;
  }
  /// The last matrix, computed with the others or alone.
  std::vector<uint16_t> last(Tiles tiles, int sms, bool alone = false, bool pairs = true) {
    Product p = product_;
    for (MatrixBatch* m : {&p.a, &p.b, &p.c, &p.d}) {
      if (!alone) continue;
      m->data = static_cast<char*>(m->data) + 2 * (kCount - 1) * m->stride;
      m->count = 1;
    }
    const auto* out = static_cast<uint16_t*>(product_.c.data) + (kCount - 1) * n_ * ld_;
    machine_.ops().fill(machine_.on(), product_.c.data, 0x5a, 2 * kCount * n_ * ld_);
    multiply(machine_, p, tiles, n_ <= 384 ? kMostSlices : 0, sms, pairs);
    return machine_.get(out, n_ * ld_);
  }
  bool is_symmetric(const std::vector<uint16_t>& c) const {
    for (int64_t row = 0; row < n_; ++row)
      for (int64_t col = 0; col < row; ++col)
        if (c[static_cast<size_t>(row * ld_ + col)] != c[static_cast<size_t>(col * ld_ + row)])
          return false;
    return true;
  }

 private:
  static constexpr int64_t kCount = 3;
  int64_t n_, ld_;
  Machine machine_;
  Product product_;
};

}  // namespace cuda_test
