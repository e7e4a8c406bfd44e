#include "cuda/symmetric/problem.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"

namespace muonrt::cuda {

namespace {

constexpr int64_t kAlignment = 16;  // bytes

void check_operand(const char* name, const MatrixBatch& m) {
  const int64_t size = size_of(m.dtype);
  const bool aligned = reinterpret_cast<uintptr_t>(m.data) % kAlignment == 0 &&
                       m.ld * size % kAlignment == 0 && m.stride * size % kAlignment == 0;
  MUONRT_CHECK_INTERNAL(aligned, "own product: rows of ", name, " at multiples of ", kAlignment,
                        " bytes");
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  MUONRT_CHECK_INTERNAL(m.ld <= kMost && m.count <= kMost, "own product: ", name, " of ld ", m.ld,
                        ", count ", m.count);
}

}  // namespace

SymmetricProblem problem_of(const Product& p, int slices) {
  MUONRT_CHECK_INTERNAL(symmetric_takes(p) || dense_takes(p), "own product of another form");
  MUONRT_CHECK_INTERNAL(p.a.cols > 0, "own product of no terms");
  constexpr int64_t kMaxCells = std::numeric_limits<int16_t>::max();
  MUONRT_CHECK_INTERNAL(cells_of(std::max(p.c.rows, p.c.cols)) <= kMaxCells, "own product of ",
                        p.c.rows, " rows, ", p.c.cols, " columns");
  const bool reads_d = p.d.data != nullptr && p.beta != 0.0f;
  check_operand("A", p.a);
  check_operand("B", p.b);
  check_operand("C", p.c);
  if (reads_d) check_operand("D", p.d);
  SymmetricProblem out = {};
  out.a = static_cast<const uint16_t*>(p.a.data);
  out.b = static_cast<const uint16_t*>(p.b.data);
  out.c = static_cast<uint16_t*>(p.c.data);
  out.a_stride = p.a.stride;
  out.b_stride = p.b.stride;
  out.c_stride = p.c.stride;
  out.a_ld = static_cast<int32_t>(p.a.ld);
  out.b_ld = static_cast<int32_t>(p.b.ld);
  out.c_ld = static_cast<int32_t>(p.c.ld);
  if (reads_d) {
    out.d = static_cast<const uint16_t*>(p.d.data);
    out.d_stride = p.d.stride;
    out.d_ld = static_cast<int32_t>(p.d.ld);
  }
  out.n = static_cast<int32_t>(p.c.cols);
  out.k = static_cast<int32_t>(p.a.cols);
  out.alpha = p.alpha;
  out.beta = reads_d ? p.beta : 0.0f;
  out.gamma = p.gamma;
  out.slices = slices;
  out.same = p.symmetric && p.a.data == p.b.data && p.a.ld == p.b.ld && p.a.stride == p.b.stride;
  out.rows = static_cast<int32_t>(p.c.rows);
  return out;
}

}  // namespace muonrt::cuda
