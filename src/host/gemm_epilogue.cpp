#include "host/gemm_epilogue.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "host/gemm_tile.hpp"
#include "host/isa.hpp"
#include "host/transpose.hpp"

namespace muonrt::host {

namespace {

template <class T>
MUONRT_ALWAYS_INLINE T* element(void* data, int64_t ld, int64_t row, int64_t col) {
  return static_cast<T*>(data) + row * ld + col;
}
template <class T>
MUONRT_ALWAYS_INLINE const T* element(const void* data, int64_t ld, int64_t row, int64_t col) {
  return static_cast<const T*>(data) + row * ld + col;
}

/// Rounds alpha values + beta d to `out`.
/// @param d  may be null, which means beta = 0.
template <class C, class D>
MUONRT_ALWAYS_INLINE void finish_row(const float* __restrict values, float alpha,
                                     const D* __restrict d, float beta, int64_t n,
                                     C* __restrict out) {
  if (d == nullptr) {
    for (int64_t i = 0; i < n; ++i) out[i] = from_f32<C>(alpha * values[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = from_f32<C>(alpha * values[i] + beta * to_f32(d[i]));
}

/// Rounds rows to the dtype of C.
template <class C, class D>
MUONRT_ALWAYS_INLINE void finish_rows(const TileRows<C, D>& rows) {
  if constexpr (std::is_same_v<C, bf16> && !std::is_same_v<D, f16>)
    if (round_rows_natively(rows)) return;
  for (int64_t r = 0; r < rows.count; ++r) {
    C* const out = rows.out + r * rows.out_ld;
    finish_row(rows.values + r * rows.values_ld, rows.alpha,
               rows.d == nullptr ? nullptr : rows.d + r * rows.d_ld, rows.beta, rows.n, out);
    if (rows.copy != nullptr)
      std::memcpy(rows.copy + r * kSmallTile, out, static_cast<size_t>(rows.n) * sizeof(C));
  }
}

/// Like finish_row, for one element. Also adds gamma before rounding.
template <class C, class D>
MUONRT_ALWAYS_INLINE C finish_one(float value, const GemmArgs& args, const D* d) {
  value *= args.alpha;
  if (d != nullptr) value += args.beta * to_f32(*d);
  return from_f32<C>(value + args.gamma);
}

constexpr int64_t kSide = kTileSide;

template <class C>
using Bits = std::conditional_t<sizeof(C) == 2, uint16_t, uint32_t>;

/// Computes block(j, i) = from(i, j) for kSide x kSide elements, where `block` is dense. Transposes
/// N x N elements at a time.
template <int N, class C>
MUONRT_ALWAYS_INLINE void transpose_side(const C* __restrict from, int64_t from_ld,
                                         C* __restrict block) {
  using Row = typename VectorOf<Bits<C>, N>::type;
  for (int64_t i = 0; i < kSide; i += N) {
    for (int64_t j = 0; j < kSide; j += N) {
      Row rows[N];
#pragma GCC unroll 16
      for (int64_t k = 0; k < N; ++k)
        std::memcpy(&rows[k], from + (i + k) * from_ld + j, sizeof rows[k]);
      transpose<N>(rows);
#pragma GCC unroll 16
      for (int64_t k = 0; k < N; ++k)
        std::memcpy(block + (j + k) * kSide + i, &rows[k], sizeof rows[k]);
    }
  }
}

/// Computes to(j, i) = from(i, j) for rows x cols elements of `from`, at most kSide x kSide. If
/// kDiagonal is true, writes only elements left of the diagonal of `to`.
template <int N, bool kDiagonal, class C>
MUONRT_ALWAYS_INLINE void mirror_block(const C* __restrict from, int64_t from_ld, int64_t rows,
                                       int64_t cols, C* __restrict to, int64_t to_ld) {
  if (rows < kSide || cols < kSide) {
    for (int64_t j = 0; j < cols; ++j) {
      for (int64_t i = 0; i < (kDiagonal ? j : rows); ++i)
        to[j * to_ld + i] = from[i * from_ld + j];
    }
    return;
  }
  // Transposes into a dense block first, because rows of C share a cache set if the distance
  // between them is a power of two.
  alignas(64) C block[kSide * kSide];
  transpose_side<N>(from, from_ld, block);
  using Row = typename VectorOf<Bits<C>, kSide>::type;
  Row columns;
  for (int i = 0; i < kSide; ++i) columns[i] = static_cast<Bits<C>>(i);
  for (int64_t j = 0; j < kSide; ++j) {
    Row row;
    std::memcpy(&row, block + j * kSide, sizeof row);
    if constexpr (kDiagonal) {
      Row upper;
      std::memcpy(&upper, from + j * from_ld, sizeof upper);
      row = columns < static_cast<Bits<C>>(j) ? row : upper;
    }
    std::memcpy(to + j * to_ld, &row, sizeof row);
  }
}

/// Stores rows [begin, end) of a tile, at most kSide rows. If kSymmetric is true, also stores their
/// transpose.
template <bool kWide, bool kSymmetric, class C, class D>
MUONRT_ALWAYS_INLINE void store_rows(const GemmArgs& args, const TilePosition& position,
                                     const float* tile, int64_t begin, int64_t end) {
  // Number of elements of type C in an AVX-512 register (at most 16) or in an SSE2 register.
  constexpr int N = kWide ? 16 : static_cast<int>(16 / sizeof(C));
  alignas(64) C rounded[kSymmetric ? kSide * kSmallTile : 1];
  const int64_t above = position.row + begin - position.col;
  const bool on_diagonal = kSymmetric && above >= 0;
  const bool add = args.d.data != nullptr && args.beta != 0.0f;
  const int64_t first = on_diagonal ? above : 0, n = position.cols - first,
                row = position.row + begin, col = position.col + first;
  const TileRows<C, D> part{.values = tile + begin * position.cols + first,
                            .values_ld = position.cols,
                            .count = end - begin,
                            .n = n,
                            .alpha = args.alpha,
                            .beta = args.beta,
                            .d = add ? element<D>(args.d.data, args.d.ld, row, col) : nullptr,
                            .d_ld = args.d.ld,
                            .out = element<C>(args.c.data, args.c.ld, row, col),
                            .out_ld = args.c.ld,
                            .copy = kSymmetric ? rounded : nullptr};
  finish_rows(part);
  for (int64_t r = 0; args.gamma != 0.0f && r < part.count; ++r) {
    const int64_t i = row + r - col;
    if (i < 0 || i >= n) continue;
    C& out = part.out[r * part.out_ld + i];
    out = finish_one<C>(part.values[r * part.values_ld + i], args,
                        add ? part.d + r * part.d_ld + i : nullptr);
    if (kSymmetric) rounded[r * kSmallTile + i] = out;
  }
  if (!kSymmetric) return;
  for (int64_t j = 0; j < n; j += kSide) {
    C* mirrored = element<C>(args.c.data, args.c.ld, col + j, position.row + begin);
    const int64_t rows = end - begin, cols = std::min(kSide, n - j);
    if (on_diagonal && j == 0) {
      mirror_block<N, true>(rounded, kSmallTile, rows, std::min(rows, cols), mirrored, args.c.ld);
    } else {
      mirror_block<N, false>(rounded + j, kSmallTile, rows, cols, mirrored, args.c.ld);
    }
  }
}

/// @param kWide  whether 64-byte vectors are fast.
template <bool kWide>
struct StoreTile {
  static MUONRT_ALWAYS_INLINE void run(const GemmArgs* args, const TilePosition* position,
                                       float* tile) {
    if (args->c.dtype == DType::kBF16) {
      store_as<bf16>(*args, *position, tile);
    } else if (args->c.dtype == DType::kF16) {
      store_as<f16>(*args, *position, tile);
    } else {
      store_as<float>(*args, *position, tile);
    }
  }

 private:
  template <class C>
  static MUONRT_ALWAYS_INLINE void store_as(const GemmArgs& args, const TilePosition& position,
                                            float* tile) {
    if (args.d.dtype == DType::kBF16) {
      store_typed<C, bf16>(args, position, tile);
    } else if (args.d.dtype == DType::kF16) {
      store_typed<C, f16>(args, position, tile);
    } else {
      store_typed<C, float>(args, position, tile);
    }
  }
  template <class C, class D>
  static MUONRT_ALWAYS_INLINE void store_typed(const GemmArgs& args, const TilePosition& position,
                                               float* tile) {
    for (int64_t r = 0; r < position.rows; r += kSide) {
      const int64_t end = std::min(r + kSide, position.rows);
      if (args.symmetric) {
        store_rows<kWide, true, C, D>(args, position, tile, r, end);
      } else {
        store_rows<kWide, false, C, D>(args, position, tile, r, end);
      }
    }
  }
};

template <class From>
struct WidenPass {
  static MUONRT_ALWAYS_INLINE void run(const From* __restrict from, float* __restrict to,
                                       int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] = to_f32(from[i]);
  }
};

}  // namespace

void store_tile(const GemmArgs& args, const TilePosition& position, float* tile) {
  const Isa isa = best_isa();
  if (isa == Isa::kAvx512) return run_pass<StoreTile<true>>(isa, &args, &position, tile);
  run_pass<StoreTile<false>>(isa, &args, &position, tile);
}

void copy_rows_dense(const ConstMatrixRef& from, DType to, void* dense, int64_t begin,
                     int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    if (from.dtype == to) {
      const int64_t bytes = size_of(to);
      std::memcpy(static_cast<char*>(dense) + r * from.cols * bytes,
                  static_cast<const char*>(from.data) + r * from.ld * bytes,
                  static_cast<size_t>(from.cols * bytes));
    } else {
      float* target = element<float>(dense, from.cols, r, 0);
      if (from.dtype == DType::kBF16) {
        run_pass<WidenPass<bf16>>(best_isa(), element<bf16>(from.data, from.ld, r, 0), target,
                                  from.cols);
      } else {
        run_pass<WidenPass<f16>>(best_isa(), element<f16>(from.data, from.ld, r, 0), target,
                                 from.cols);
      }
    }
  }
}

}  // namespace muonrt::host
