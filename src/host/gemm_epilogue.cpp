#include "host/gemm_epilogue.hpp"

#include <algorithm>
#include <cstring>

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
/// @param kKeep  whether `values` receives the result, too.
/// @param d      null: as if beta were 0.
template <bool kKeep, class C, class D>
MUONRT_ALWAYS_INLINE void finish_row(float* __restrict values, float alpha, const D* __restrict d,
                                     float beta, int64_t n, C* __restrict out) {
  if (d == nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      const float value = alpha * values[i];
      if constexpr (kKeep) values[i] = value;
      out[i] = from_f32<C>(value);
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const float value = alpha * values[i] + beta * to_f32(d[i]);
    if constexpr (kKeep) values[i] = value;
    out[i] = from_f32<C>(value);
  }
}

template <class C>
MUONRT_ALWAYS_INLINE void round_row(const float* __restrict values, int64_t n, C* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = from_f32<C>(values[i]);
}

constexpr int64_t kSide = kTileSide;

using Four = float __attribute__((vector_size(16)));

MUONRT_ALWAYS_INLINE Four load(const float* from) {
  Four value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// Computes to(j, i) = from(i, j) for 4 x 4 values.
MUONRT_ALWAYS_INLINE void transpose_four(const float* from, int64_t from_ld, float* to,
                                         int64_t to_ld) {
  const Four a = load(from), b = load(from + from_ld);
  const Four c = load(from + 2 * from_ld), d = load(from + 3 * from_ld);
  const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Four ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Four cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const Four out[4] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
                       __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
                       __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                       __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
  for (int j = 0; j < 4; ++j) std::memcpy(to + j * to_ld, &out[j], sizeof out[j]);
}

/// Computes block(j, i) = from(i, j) for kSide x kSide values, where `block` is dense.
template <bool kWide>
MUONRT_ALWAYS_INLINE void transpose_side(const float* __restrict from, int64_t from_ld,
                                         float* __restrict block) {
  if constexpr (kWide) {
    Vec16 rows[kSide];
#pragma GCC unroll 16
    for (int64_t i = 0; i < kSide; ++i) std::memcpy(&rows[i], from + i * from_ld, sizeof rows[i]);
    transpose(rows);
#pragma GCC unroll 16
    for (int64_t j = 0; j < kSide; ++j) std::memcpy(block + j * kSide, &rows[j], sizeof rows[j]);
  } else {
    for (int64_t i = 0; i < kSide; i += 4) {
      for (int64_t j = 0; j < kSide; j += 4)
        transpose_four(from + i * from_ld + j, from_ld, block + j * kSide + i, kSide);
    }
  }
}

/// Computes to(j, i) = from(i, j), rounded, for rows x cols values of `from`. There must be at most
/// kSide x kSide values.
template <bool kWide, class C>
MUONRT_ALWAYS_INLINE void mirror_block(const float* __restrict from, int64_t from_ld, int64_t rows,
                                       int64_t cols, C* __restrict to, int64_t to_ld) {
  if (rows < kSide || cols < kSide) {
    for (int64_t j = 0; j < cols; ++j) {
      for (int64_t i = 0; i < rows; ++i) to[j * to_ld + i] = from_f32<C>(from[i * from_ld + j]);
    }
    return;
  }
  // Uses a dense block as an intermediate step, because rows of C would share a cache set if their
  // distance is a power of two.
  alignas(64) float block[kSide * kSide];
  transpose_side<kWide>(from, from_ld, block);
  for (int64_t j = 0; j < kSide; ++j) round_row(block + j * kSide, kSide, to + j * to_ld);
}

/// Copies the upper triangle of a rows x rows block to the lower one, rounded to `out`.
template <bool kWide, class C>
MUONRT_ALWAYS_INLINE void mirror_diagonal(const float* __restrict from, int64_t from_ld,
                                          int64_t rows, C* __restrict out, int64_t out_ld) {
  if (rows < kSide) {
    for (int64_t r = 1; r < rows; ++r)
      for (int64_t i = 0; i < r; ++i) out[r * out_ld + i] = from_f32<C>(from[i * from_ld + r]);
    return;
  }
  alignas(64) float block[kSide * kSide];
  transpose_side<kWide>(from, from_ld, block);
  for (int64_t r = 1; r < kSide; ++r) {
    float* const row = block + r * kSide;
    for (int64_t i = 0; i < kSide; ++i) row[i] = i < r ? row[i] : from[r * from_ld + i];
    round_row(row, kSide, out + r * out_ld);
  }
}

/// Stores rows [begin, end) of a tile and, if kSymmetric is true, mirrors them. There must be at
/// most kSide rows.
template <bool kWide, bool kSymmetric, class C, class D>
MUONRT_ALWAYS_INLINE void store_rows(const GemmArgs& args, const TilePosition& position,
                                     float* tile, int64_t begin, int64_t end) {
  const int64_t above = position.row + begin - position.col;
  const bool on_diagonal = kSymmetric && above >= 0;
  const bool add = args.d.data != nullptr && args.beta != 0.0f;
  const int64_t first = on_diagonal ? above : 0, n = position.cols - first,
                col = position.col + first;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t row = position.row + r;
    float* values = tile + r * position.cols + first;
    const D* d = add ? element<D>(args.d.data, args.d.ld, row, col) : nullptr;
    C* const out = element<C>(args.c.data, args.c.ld, row, col);
    finish_row<kSymmetric>(values, args.alpha, d, args.beta, n, out);
    if (args.gamma != 0.0f && row >= col && row < col + n) {  // adds gamma before the rounding
      float* const value = values + (row - col);
      if (!kSymmetric)
        finish_row<true>(value, args.alpha, add ? d + (row - col) : d, args.beta, 1,
                         out + (row - col));
      *value += args.gamma;
      out[row - col] = from_f32<C>(*value);
    }
  }
  if (!kSymmetric) return;
  if (on_diagonal)
    mirror_diagonal<kWide>(tile + begin * position.cols + first, position.cols, end - begin,
                           element<C>(args.c.data, args.c.ld, position.row + begin, col),
                           args.c.ld);
  for (int64_t j = on_diagonal ? first + end - begin : 0; j < position.cols; j += kSide) {
    C* mirrored = element<C>(args.c.data, args.c.ld, position.col + j, position.row + begin);
    mirror_block<kWide>(tile + begin * position.cols + j, position.cols, end - begin,
                        std::min(kSide, position.cols - j), mirrored, args.c.ld);
  }
}

/// @param kWide  whether vectors of 64 bytes are fast.
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
