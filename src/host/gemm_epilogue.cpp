#include "host/gemm_epilogue.hpp"

#include <algorithm>
#include <cstring>

#include "host/isa.hpp"

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

MUONRT_ALWAYS_INLINE void scale_row(float* values, float alpha, int64_t n) {
  if (alpha == 1.0f) return;
  for (int64_t i = 0; i < n; ++i) values[i] *= alpha;
}

/// Computes values = alpha values + beta d.
template <class D>
MUONRT_ALWAYS_INLINE void scale_add_row(float* __restrict values, float alpha,
                                        const D* __restrict d, float beta, int64_t n) {
  for (int64_t i = 0; i < n; ++i) values[i] = alpha * values[i] + beta * to_f32(d[i]);
}

MUONRT_ALWAYS_INLINE void round_row(const float* __restrict values, int64_t n,
                                    float* __restrict out) {
  std::memcpy(out, values, static_cast<size_t>(n) * sizeof(float));
}

template <class C>
MUONRT_ALWAYS_INLINE void round_row(const float* __restrict values, int64_t n, C* __restrict out) {
  for (int64_t i = 0; i < n; ++i) out[i] = from_f32<C>(values[i]);
}

/// The number of rows that are processed at a time, and the side of the blocks in which they are
/// mirrored. With this size the rows stay in the L1 cache until both halves are written, and a
/// mirrored row of f32 fills a cache line.
constexpr int64_t kSide = 16;

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

/// Computes to(j, i) = from(i, j), rounded, for rows x cols values of `from`. There must be at most
/// kSide x kSide values.
template <class C>
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
  float block[kSide * kSide];
  for (int64_t i = 0; i < kSide; i += 4) {
    for (int64_t j = 0; j < kSide; j += 4) {
      transpose_four(from + i * from_ld + j, from_ld, block + j * kSide + i, kSide);
    }
  }
  for (int64_t j = 0; j < kSide; ++j) round_row(block + j * kSide, kSide, to + j * to_ld);
}

/// Stores rows [begin, end) of a tile and mirrors them. There must be at most kSide rows.
template <class C, class D>
MUONRT_ALWAYS_INLINE void store_rows(const GemmArgs& args, const TilePosition& position,
                                     float* tile, int64_t begin, int64_t end) {
  const bool on_diagonal = args.symmetric && position.row == position.col;
  const bool add = args.d.data != nullptr && args.beta != 0.0f;
  const int64_t first = on_diagonal ? begin : 0, n = position.cols - first,
                col = position.col + first;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t row = position.row + r;
    float* values = tile + r * position.cols + first;
    if (add) {
      const D* d = element<D>(args.d.data, args.d.ld, row, col);
      scale_add_row(values, args.alpha, d, args.beta, n);
    } else {
      scale_row(values, args.alpha, n);
    }
    if (args.gamma != 0.0f && row >= col && row < col + n) values[row - col] += args.gamma;
    // In a tile on the diagonal, row r also needs the elements left of the diagonal in its block.
    // They are copied from the rows above, because the result is symmetric.
    for (int64_t i = first; on_diagonal && i < r; ++i)
      values[i - first] = tile[i * position.cols + r];
    round_row(values, n, element<C>(args.c.data, args.c.ld, row, col));
  }
  if (!args.symmetric) return;
  for (int64_t j = on_diagonal ? end : 0; j < position.cols; j += kSide) {
    C* mirrored = element<C>(args.c.data, args.c.ld, position.col + j, position.row + begin);
    mirror_block(tile + begin * position.cols + j, position.cols, end - begin,
                 std::min(kSide, position.cols - j), mirrored, args.c.ld);
  }
}

template <class C, class D>
MUONRT_ALWAYS_INLINE void store_typed(const GemmArgs& args, const TilePosition& position,
                                      float* tile) {
  for (int64_t r = 0; r < position.rows; r += kSide) {
    store_rows<C, D>(args, position, tile, r, std::min(r + kSide, position.rows));
  }
}

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
  run_pass<StoreTile>(best_isa(), &args, &position, tile);
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
