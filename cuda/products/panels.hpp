#pragma once

#include <cstdint>

#include "backend/ops.hpp"

// Divides the upper triangle of a symmetric n x n product into row panels: panel i consists of the
// rows [r_i, r_i+1) and the columns [r_i, n). Together, p panels of equal height need (p + 1) / 2p
// of the FLOP of the full product.

namespace muonrt::cuda {

/// Returns the number of panels. It depends only on n, so the bits of the results do not depend on
/// the batch. Small results are not divided, because a panel with few rows would leave most of a
/// GPU idle.
constexpr int panel_count(int64_t n) { return n >= 2048 ? 4 : n >= 1024 ? 2 : 1; }

/// Returns the first row of panel i, or the number of rows if i = panel_count. The row is a
/// multiple of 128, so that the panels' operands begin at multiples of 16 bytes and at whole tiles.
constexpr int64_t panel_begin(int64_t n, int i) {
  constexpr int64_t kPanelUnit = 128;
  const int count = panel_count(n);
  return i == count ? n : (n * i / count + kPanelUnit / 2) / kPanelUnit * kPanelUnit;
}

/// Returns the part of a symmetric product that computes panel i.
inline Product panel_of(const Product& p, int i) {
  const int64_t n = p.c.rows, begin = panel_begin(n, i), rows = panel_begin(n, i + 1) - begin;
  const auto part = [](const MatrixBatch& m, int64_t row, int64_t col, int64_t rows_,
                       int64_t cols) {
    MatrixBatch out = m;
    if (m.data != nullptr)
      out.data = static_cast<char*>(m.data) + (row * m.ld + col) * size_of(m.dtype);
    out.rows = rows_;
    out.cols = cols;
    return out;
  };
  Product out = p;
  out.a = part(p.a, begin, 0, rows, p.a.cols);
  out.b = p.transpose_b ? part(p.b, begin, 0, n - begin, p.b.cols)
                        : part(p.b, 0, begin, p.b.rows, n - begin);
  out.c = part(p.c, begin, begin, rows, n - begin);
  if (p.d.data != nullptr) out.d = part(p.d, begin, begin, rows, n - begin);
  out.symmetric = false;
  return out;
}

}  // namespace muonrt::cuda
