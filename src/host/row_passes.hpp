#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "backend/scalars.hpp"
#include "backend/update_rules.hpp"
#include "backend/weight_bits.hpp"
#include "base/dtype.hpp"
#include "host/isa.hpp"
#include "host/transpose.hpp"

// The inner loops over n consecutive elements. Each element is computed independently, so a row may
// be divided anywhere. The arrays that are passed to one call must not overlap.

namespace muonrt::host {

/// The bits of the smallest |x| in f32 that becomes infinite when it is stored as T. For bf16 and
/// f16, this |x| is halfway between the largest finite value and the next power of two.
template <class T>
inline constexpr int32_t kEndOfFinite = 0x7f800000;
template <>
inline constexpr int32_t kEndOfFinite<bf16> = 0x7f7f8000;
template <>
inline constexpr int32_t kEndOfFinite<f16> = 0x477ff000;

/// The largest magnitude of the elements of a pass, as the bits of an f32. These bits have the same
/// order as the magnitudes, and the bits of NaN are above those of infinity.
struct LargestBits {
  int32_t bits = 0;
  MUONRT_ALWAYS_INLINE void add(float x) {
    const int32_t magnitude = std::bit_cast<int32_t>(x) & 0x7fffffff;
    bits = magnitude > bits ? magnitude : bits;
  }
  /// Returns 1 if an element is infinite or NaN when it is stored as T.
  template <class T>
  MUONRT_ALWAYS_INLINE uint32_t not_finite_as() const {
    return bits >= kEndOfFinite<T>;
  }
};

/// out <- cast(direction). Does not write the momentum.
/// @return Bit 0 is set if a value in `out` is non-finite; a non-finite gradient or momentum always
///     sets it. Bit 1 is set if a value was non-finite in f32.
template <class Grad, class Momentum, class Element>
struct DirectionPass {
  static MUONRT_ALWAYS_INLINE uint32_t run(const Grad* __restrict grad,
                                           const Momentum* __restrict momentum,
                                           Element* __restrict out, int64_t n,
                                           const MuonScalars* scalars) {
    const MuonScalars s = *scalars;
    LargestBits largest;
    for (int64_t i = 0; i < n; ++i) {
      const float g = to_f32(grad[i]) * s.grad_scale;
      const float u = direction(next_momentum(to_f32(momentum[i]), g, s), g, s);
      largest.add(u);
      out[i] = from_f32<Element>(u);
    }
    return largest.not_finite_as<Element>() | largest.not_finite_as<float>() << 1;
  }
};

/// Updates the momentum, and applies the decay and `update` to the weights, all in f32. The new
/// weight is multiplied by `factor`.
struct MuonPass {
  static MUONRT_ALWAYS_INLINE void run(float* __restrict weight, float* __restrict momentum,
                                       const float* __restrict grad, const float* __restrict update,
                                       int64_t n, float scale, float decay_scale, float factor,
                                       const MuonScalars* scalars) {
    const MuonScalars s = *scalars;
    for (int64_t i = 0; i < n; ++i) {
      momentum[i] = next_momentum(momentum[i], grad[i] * s.grad_scale, s);
      weight[i] = muon_update(weight[i], update[i], scale, decay_scale, s) * factor;
    }
  }
};

/// Updates only the momentum, on an owner that stores it.
struct MomentumPass {
  static MUONRT_ALWAYS_INLINE void run(float* __restrict momentum, const float* __restrict grad,
                                       int64_t n, const MuonScalars* scalars) {
    const MuonScalars s = *scalars;
    for (int64_t i = 0; i < n; ++i)
      momentum[i] = next_momentum(momentum[i], grad[i] * s.grad_scale, s);
  }
};

/// Updates only the weights of a parameter whose momentum an owner stores.
struct UpdatePass {
  static MUONRT_ALWAYS_INLINE void run(float* __restrict weight, const float* __restrict update,
                                       int64_t n, float scale, float decay_scale, float factor,
                                       const MuonScalars* scalars) {
    const MuonScalars s = *scalars;
    for (int64_t i = 0; i < n; ++i)
      weight[i] = muon_update(weight[i], update[i], scale, decay_scale, s) * factor;
  }
};

/// sums <- message if kFirst is true, and otherwise sums <- sums + message.
template <class Element, bool kFirst>
struct AccumulatePass {
  static MUONRT_ALWAYS_INLINE void run(float* __restrict sums, const Element* __restrict message,
                                       int64_t n) {
    for (int64_t i = 0; i < n; ++i)
      sums[i] = kFirst ? to_f32(message[i]) : sums[i] + to_f32(message[i]);
  }
};

/// out <- cast(weight after AdamW). Writes nothing else. Returns 1 if the square of a scaled
/// gradient is non-finite.
template <class Element>
struct AdamValuePass {
  static MUONRT_ALWAYS_INLINE uint32_t run(const float* __restrict weight,
                                           const float* __restrict first,
                                           const float* __restrict second,
                                           const float* __restrict grad, Element* __restrict out,
                                           int64_t n, const AdamScalars* scalars) {
    const AdamScalars s = *scalars;
    LargestBits largest;
    for (int64_t i = 0; i < n; ++i) {
      float m = first[i], v = second[i];
      const float g = grad[i] * s.grad_scale;
      largest.add(g * g);
      out[i] = from_f32<Element>(adamw_update(weight[i], g, m, v, s));
    }
    return largest.not_finite_as<float>();
  }
};

struct AdamPass {
  static MUONRT_ALWAYS_INLINE void run(float* __restrict weight, float* __restrict first,
                                       float* __restrict second, const float* __restrict grad,
                                       int64_t n, const AdamScalars* scalars) {
    const AdamScalars s = *scalars;
    for (int64_t i = 0; i < n; ++i) {
      float m = first[i], v = second[i];
      weight[i] = adamw_update(weight[i], grad[i] * s.grad_scale, m, v, s);
      first[i] = m;
      second[i] = v;
    }
  }
};

/// out <- the f32 weights that have these upper and lower halves.
struct JoinPass {
  static MUONRT_ALWAYS_INLINE void run(const bf16* __restrict high, const uint16_t* __restrict low,
                                       float* __restrict out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = join_weight(high[i].bits, low[i]);
  }
};

/// Splits f32 weights into upper and lower halves. Returns 1 if an upper half is non-finite.
struct SplitPass {
  static MUONRT_ALWAYS_INLINE uint32_t run(const float* __restrict in, bf16* __restrict high,
                                           uint16_t* __restrict low, int64_t n) {
    LargestBits largest;
    for (int64_t i = 0; i < n; ++i) {
      const SplitWeight w = split_updated(in[i]);
      largest.add(in[i]);
      high[i].bits = w.high;
      low[i] = w.low;
    }
    return largest.not_finite_as<bf16>();
  }
};

/// out <- in, rounded stochastically.
/// @param element  The index of the first element in the whole tensor; the other elements follow.
struct StochasticPass {
  static MUONRT_ALWAYS_INLINE void run(const float* __restrict in, bf16* __restrict out, int64_t n,
                                       uint64_t seed, uint64_t step, uint32_t param,
                                       int64_t element) {
    for (int64_t i = 0; i < n;) {
      const uint64_t at = static_cast<uint64_t>(element) + static_cast<uint64_t>(i);
      if (at % kRandomBlock == 0 && n - i >= kGroup) {
        alignas(64) uint32_t words[kGroup / 2];
        random_blocks(seed, step, param, at / kRandomBlock, words);
        uint16_t random[kGroup];  // the lower half of a word belongs to the first element
        std::memcpy(random, words, sizeof random);
        for (int64_t k = 0; k < kGroup; ++k)
          out[i + k].bits = round_stochastic(in[i + k], random[k]);
        i += kGroup;
        continue;
      }
      const RandomBlock random = random_block(seed, step, param, at / kRandomBlock);
      const int64_t left = static_cast<int64_t>(kRandomBlock - at % kRandomBlock);
      const int64_t count = n - i < left ? n - i : left;
      for (int64_t k = 0; k < count; ++k, ++i)
        out[i].bits = round_stochastic(in[i], random.of(at + static_cast<uint64_t>(k)));
    }
  }

 private:
  // The number of blocks whose random bits are computed together, and of their elements.
  static constexpr int kBlocks = 32;
  static constexpr int64_t kGroup = kBlocks * static_cast<int64_t>(kRandomBlock);

  /// Writes the random bits of kGroup elements, the same as random_block() for each of their
  /// blocks.
  static MUONRT_ALWAYS_INLINE void random_blocks(uint64_t seed, uint64_t step, uint32_t param,
                                                 uint64_t block, uint32_t* words) {
    alignas(64) uint32_t c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
    for (uint32_t i = 0; i < kBlocks; ++i) {
      c0[i] = static_cast<uint32_t>(block + i);
      c1[i] = static_cast<uint32_t>((block + i) >> 32);
      c2[i] = param;
      c3[i] = static_cast<uint32_t>(step);
    }
    PhiloxKey key(seed, step);
    for (int round = 0; round < kPhiloxRounds; ++round, key.next())
#pragma GCC unroll 1
      for (int i = 0; i < kBlocks; ++i) philox_round(c0[i], c1[i], c2[i], c3[i], key.k0, key.k1);
#pragma GCC unroll 1
    for (int i = 0; i < kBlocks; ++i) {
      words[4 * i] = c0[i];
      words[4 * i + 1] = c1[i];
      words[4 * i + 2] = c2[i];
      words[4 * i + 3] = c3[i];
    }
  }
};

/// Returns 1 if a value times `scale` is non-finite. If kSquare is true, checks the square of this
/// product instead.
template <class T, bool kSquare>
struct ScanPass {
  static MUONRT_ALWAYS_INLINE uint32_t run(const T* __restrict values, float scale, int64_t n) {
    LargestBits largest;
    for (int64_t i = 0; i < n; ++i) {
      const float x = to_f32(values[i]) * scale;
      largest.add(kSquare ? x * x : x);
    }
    return largest.not_finite_as<float>();
  }
};

/// Returns 1 if a weight differs from its rounded master weight.
template <class T, bool kByCaller>
struct StalePass {
  static MUONRT_ALWAYS_INLINE uint32_t run(const T* __restrict weight,
                                           const float* __restrict master, int64_t n) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; ++i) bad |= is_stale(weight[i], master[i], kByCaller);
    return bad;
  }
};

/// out <- cast(in). Returns 1 if a value in `out` is non-finite.
template <class From, class To>
struct CastPass {
  static MUONRT_ALWAYS_INLINE uint32_t run(const From* __restrict in, To* __restrict out,
                                           int64_t n) {
    LargestBits largest;
    for (int64_t i = 0; i < n; ++i) {
      const float x = to_f32(in[i]);
      out[i] = from_f32<To>(x);
      largest.add(x);  // must be last, or GCC 14 does not vectorize the loop
    }
    return largest.not_finite_as<To>();
  }
};

/// out (cols x rows) <- cast(transpose of in (rows x cols)), in tiles that stay in the L1 cache.
/// Returns 1 if a value in `out` is non-finite.
template <class From, class To>
struct TransposePass {
  static MUONRT_ALWAYS_INLINE uint32_t run(const From* __restrict in, int64_t in_ld,
                                           To* __restrict out, int64_t out_ld, int64_t rows,
                                           int64_t cols) {
    uint32_t bad = 0;
    const bool stream = may_stream(out, out_ld, rows * cols);
    for (int64_t begin = 0; begin < rows; begin += kBand) {
      const int64_t end = rows - begin < kBand ? rows : begin + kBand;
      for (int64_t c = 0; c < cols; c += kTile) {
        for (int64_t r = begin; r < end; r += kTile) {
          const From* const from = in + r * in_ld + c;
          To* const to = out + c * out_ld + r;
          const int64_t height = end - r, width = cols - c;
          bad |= height >= kTile && width >= kTile
                     ? run_whole_tile(from, in_ld, to, out_ld, stream)
                     : run_tile(from, in_ld, to, out_ld, height < kTile ? height : kTile,
                                width < kTile ? width : kTile);
        }
      }
    }
    if (stream) end_of_stream();
    return bad;
  }

 private:
  static constexpr int kTile = 32, kSquare = sizeof(To) == 2 && kVectorBytes >= 32 ? 16 : 8;
  /// Number of rows whose tiles are processed before the next column of tiles. It is limited
  /// because the rows of `out` are on different pages.
  static constexpr int64_t kBand = 128;
  /// From this size on, `out` would not stay in the cache until it is read, so it is written with
  /// non-temporal stores, which do not read the cache line first.
  static constexpr int64_t kStreamBytes = int64_t{8} << 20;
  using Tile = To[kTile][kTile];
  using Bits = std::conditional_t<sizeof(To) == 2, int16_t, int32_t>;
  using Row = typename VectorOf<Bits, kSquare>::type;

  static MUONRT_ALWAYS_INLINE bool may_stream(const To* out, int64_t out_ld, int64_t elements) {
    constexpr int64_t kSize = sizeof(To);
    return kCanStream && elements * kSize >= kStreamBytes && out_ld * kSize % kStreamed == 0 &&
           reinterpret_cast<uintptr_t>(out) % kStreamed == 0;
  }

  static MUONRT_ALWAYS_INLINE uint32_t run_whole_tile(const From* in, int64_t in_ld, To* out,
                                                      int64_t out_ld, bool stream) {
    for (int64_t i = 0; i < kTile; ++i) __builtin_prefetch(in + i * in_ld + kTile);
    alignas(64) Tile transposed;
    uint32_t bad = 0;
    if constexpr (std::is_same_v<From, To>) {
      // CastPass would change only NaNs.
      bad = transpose_tile(in, in_ld, transposed);
      if (bad) return run_tile(in, in_ld, out, out_ld, kTile, kTile);
    } else {
      alignas(64) Tile tile;
      for (int64_t i = 0; i < kTile; ++i)
        bad |= CastPass<From, To>::run(in + i * in_ld, tile[i], kTile);
      transpose_tile(tile[0], kTile, transposed);
    }
    for (int64_t j = 0; j < kTile; ++j) {
      if (stream) {
        stream_bytes<sizeof transposed[j]>(transposed[j], out + j * out_ld);
      } else {
        std::memcpy(static_cast<void*>(out + j * out_ld), transposed[j], sizeof transposed[j]);
      }
    }
    return bad;
  }

  /// @param rows, cols  at most kTile.
  static MUONRT_ALWAYS_INLINE uint32_t run_tile(const From* in, int64_t in_ld, To* out,
                                                int64_t out_ld, int64_t rows, int64_t cols) {
    Tile tile;
    uint32_t bad = 0;
    for (int64_t i = 0; i < rows; ++i)
      bad |= CastPass<From, To>::run(in + i * in_ld, tile[i], cols);
    for (int64_t j = 0; j < cols; ++j)
      for (int64_t i = 0; i < rows; ++i) out[j * out_ld + i] = tile[i][j];
    return bad;
  }

  /// Returns 1 if a value is non-finite.
  static MUONRT_ALWAYS_INLINE uint32_t transpose_tile(const To* from, int64_t from_ld, Tile& to) {
    constexpr auto kMagnitude = std::numeric_limits<Bits>::max();
    Row largest = {};
    for (int i = 0; i < kTile; i += kSquare) {
      for (int j = 0; j < kTile; j += kSquare) {
        Row rows[kSquare];
#pragma GCC unroll 16
        for (int k = 0; k < kSquare; ++k) {
          std::memcpy(&rows[k], from + (i + k) * from_ld + j, sizeof rows[k]);
          const Row magnitude = rows[k] & kMagnitude;
          largest = magnitude > largest ? magnitude : largest;
        }
        transpose<kSquare>(rows);
#pragma GCC unroll 16
        for (int k = 0; k < kSquare; ++k)
          std::memcpy(static_cast<void*>(&to[j + k][i]), &rows[k], sizeof rows[k]);
      }
    }
    Bits most = 0;
    for (int k = 0; k < kSquare; ++k) most = largest[k] > most ? largest[k] : most;
    return most >= kInfinityBits;
  }

  static constexpr Bits kInfinityBits = std::is_same_v<To, bf16>  ? 0x7f80
                                        : std::is_same_v<To, f16> ? 0x7c00
                                                                  : 0x7f800000;
};

}  // namespace muonrt::host
