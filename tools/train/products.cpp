#include "train/products.hpp"

#include <algorithm>

#include "host/gemm.hpp"

namespace muonrt::train {

struct Products::Host {
  host::ThreadPool pool{1};
  host::GemmScratch scratch;
  std::vector<char> memory;  // workspace that `scratch` uses
};

Products::Products() : host_(std::make_unique<Host>()) {}
Products::~Products() = default;

/// Returns a contiguous transpose of A. Copies A in square blocks that fit into the cache.
const float* Products::transposed(const Factor& a) {
  constexpr int64_t kSquare = 16;
  transposed_.resize(static_cast<size_t>(a.rows * a.cols));
  for (int64_t c0 = 0; c0 < a.cols; c0 += kSquare) {
    for (int64_t r0 = 0; r0 < a.rows; r0 += kSquare) {
      const int64_t end = std::min(c0 + kSquare, a.cols), last = std::min(r0 + kSquare, a.rows);
      for (int64_t c = c0; c < end; ++c) {
        float* const to = transposed_.data() + c * a.rows;
        for (int64_t r = r0; r < last; ++r) to[r] = a.data[r * a.ld + c];
      }
    }
  }
  return transposed_.data();
}

void Products::multiply(const Factor& a, const Factor& b, float* c, int64_t ld, const float* d) {
  constexpr DType kF32 = DType::kF32;
  host::GemmArgs args;
  args.a = a.transposed ? host::ConstMatrixRef(transposed(a), kF32, a.cols, a.rows, a.rows)
                        : host::ConstMatrixRef(a.data, kF32, a.rows, a.cols, a.ld);
  args.b = host::ConstMatrixRef(b.data, kF32, b.rows, b.cols, b.ld);
  args.transpose_b = b.transposed;
  args.c = {c, kF32, args.a.rows, b.transposed ? b.rows : b.cols, ld};
  if (d) args.d = host::ConstMatrixRef(d, kF32, args.c.rows, args.c.cols, ld);
  args.beta = d ? 1.0f : 0.0f;
  auto& [pool, scratch, memory] = *host_;
  const int64_t bytes = scratch.bytes_for(args, pool.threads());
  if (std::ssize(memory) < bytes) memory.resize(static_cast<size_t>(bytes));
  scratch.set_workspace(memory.data(), std::ssize(memory));
  host::gemm(args, pool, scratch);
}

}  // namespace muonrt::train
