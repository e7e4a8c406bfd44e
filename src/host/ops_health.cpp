#include <atomic>
#include <cmath>
#include <cstring>

#include "backend/weight_bits.hpp"
#include "host/dtype_dispatch.hpp"
#include "host/host_ops.hpp"
#include "host/host_stream.hpp"
#include "host/norm_passes.hpp"

namespace muonrt::host {

namespace {

constexpr int64_t kMaxColumns = 512;  // columns of a product that a thread computes on its stack

void add(int64_t& to, int64_t value) {
  if (value) std::atomic_ref(to).fetch_add(value, std::memory_order_relaxed);
}

void raise(int64_t& to, int64_t value) {
  std::atomic_ref box(to);
  int64_t seen = box.load(std::memory_order_relaxed);
  while (seen < value && !box.compare_exchange_weak(seen, value)) {
  }
}

void count(Tally& tally, float x) {
  const int64_t size = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
  tally.largest = size > tally.largest ? size : tally.largest;
  if (size >= 0x7f800000) {
    ++tally.nonfinite;
    return;
  }
  const LimbTerm term = limb_term(x);
  tally.limbs[term.limb] += term.low;
  tally.limbs[term.limb + 1] += term.middle;
  tally.limbs[term.limb + 2] += term.high;
}

/// acc[j] += factor * row[j].
template <class T>
struct AddScaledPass {
  static MUONRT_ALWAYS_INLINE void run(float* __restrict acc, const T* __restrict row, int64_t n,
                                       float factor) {
    for (int64_t i = 0; i < n; ++i) acc[i] += factor * to_f32(row[i]);
  }
};

/// acc[j] -= factor * row[j].
struct SubtractScaledPass {
  static MUONRT_ALWAYS_INLINE void run(float* __restrict acc, const float* __restrict row,
                                       int64_t n, float factor) {
    for (int64_t i = 0; i < n; ++i) acc[i] -= factor * row[i];
  }
};

/// The Lanczos method on one matrix; see Ops::lanczos().
template <class T>
struct LanczosRun {
  Isa isa;
  const T* x;
  int64_t m, n, ld;
  float* space;

  float* basis(int64_t j) const { return space + j * m; }
  float* image() const { return space + lanczos_space(m, n).image; }
  float* product() const { return space + lanczos_space(m, n).product; }

  void start() const {
    for (int64_t i = 0; i < m; ++i) basis(0)[i] = lanczos_start(i, m);
  }

  /// product <- x^T v, for columns [begin, end).
  void multiply_transposed(const float* v, int64_t begin, int64_t end) const {
    const int64_t width = end - begin;
    float partial[kMaxColumns];
    float* const out = product() + begin;
    std::memset(out, 0, static_cast<size_t>(width) * sizeof(float));
    for (int64_t first = 0; first < m; first += kLanczosRows) {
      const int64_t last = first + kLanczosRows < m ? first + kLanczosRows : m;
      std::memset(partial, 0, sizeof partial);
      for (int64_t i = first; i < last; ++i)
        run_pass<AddScaledPass<T>>(isa, partial, x + i * ld + begin, width, v[i]);
      for (int64_t j = 0; j < width; ++j) out[j] += partial[j];
    }
  }

  /// image[row] <- the product of this row of x and `product`.
  void multiply_row(int64_t row) const {
    image()[row] = run_pass<DotPass<T>>(isa, x + row * ld, product(), n);
  }

  void finish_step(int64_t step, Lanczos& out) const {
    float* const w = image();
    float diagonal = 0.0f, all[kLanczosSteps] = {};
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t k = 0; k <= step; ++k) all[k] = run_pass<DotPass<float>>(isa, w, basis(k), m);
      for (int64_t k = 0; k <= step; ++k) run_pass<SubtractScaledPass>(isa, w, basis(k), m, all[k]);
      diagonal += all[step];
    }
    const float off_diagonal = sqrtf(run_pass<DotPass<float>>(isa, w, w, m));
    out.diagonal[step] = diagonal;
    out.off_diagonal[step] = off_diagonal;
    float* const next = basis(step + 1);
    for (int64_t i = 0; i < m; ++i) next[i] = off_diagonal > 0.0f ? w[i] / off_diagonal : 0.0f;
  }
};

}  // namespace

void HostOps::tally(Stream& stream, const MatrixBatch& x, const uint16_t* low, Tally* tallies) {
  MUONRT_CHECK_INTERNAL(!low || x.dtype == DType::kBF16, "lower halves of ", name_of(x.dtype));
  if (x.count == 0 || x.rows == 0 || x.cols == 0) return;
  host_stream(stream).enqueue(Task([=, this] {
    with_iterate(x.dtype, [&](auto type) {
      using T = decltype(type);
      spread_range(x.count * x.rows * x.cols, [&](int64_t begin, int64_t end) {
        while (begin < end) {
          const int64_t row = begin / x.cols, col = begin % x.cols, matrix = row / x.rows;
          const int64_t n = std::min(end - begin, x.cols - col);
          const int64_t at = matrix * x.stride + row % x.rows * x.ld + col;
          Tally mine;
          for (int64_t i = at; i < at + n; ++i) {
            if constexpr (std::is_same_v<T, bf16>) {
              const bf16 high = static_cast<const bf16*>(x.data)[i];
              count(mine, low ? join_weight(high.bits, low[i]) : to_f32(high));
            } else {
              count(mine, to_f32(static_cast<const T*>(x.data)[i]));
            }
          }
          Tally& out = tallies[matrix];
          for (int64_t l = 0; l < kTallyLimbs; ++l) add(out.limbs[l], mine.limbs[l]);
          add(out.nonfinite, mine.nonfinite);
          raise(out.largest, mine.largest);
          begin += n;
        }
      });
    });
  }));
}

void HostOps::lanczos(Stream& stream, const MatrixBatch& x, float* workspace, Lanczos* out) {
  MUONRT_CHECK_INTERNAL(x.rows <= x.cols, "Lanczos on ", x.rows, " x ", x.cols);
  if (x.count == 0 || x.rows == 0) return;
  host_stream(stream).enqueue(Task([=, this] {
    with_iterate(x.dtype, [&](auto type) {
      using T = decltype(type);
      const int64_t m = x.rows, n = x.cols, parts = ceil_div(n, kMaxColumns);
      const auto run_of = [&](int64_t k) {
        return LanczosRun<T>{isa_, static_cast<const T*>(x.data) + k * x.stride, m, n,
                             x.ld, workspace + k * lanczos_space(m, n).floats};
      };
      for (int64_t k = 0; k < x.count; ++k) run_of(k).start();
      for (int64_t step = 0; step < std::min(m, kLanczosSteps); ++step) {
        spread(x.count * parts, [&](int64_t i, int) {
          const LanczosRun<T> run = run_of(i / parts);
          const int64_t begin = i % parts * kMaxColumns;
          run.multiply_transposed(run.basis(step), begin, std::min(n, begin + kMaxColumns));
        });
        spread(x.count * m, [&](int64_t i, int) { run_of(i / m).multiply_row(i % m); });
        spread(x.count, [&](int64_t k, int) { run_of(k).finish_step(step, out[k]); });
      }
    });
  }));
}

void HostOps::hash_memory(Stream& stream, const void* memory, int64_t bytes, uint64_t* sum) {
  if (bytes == 0) return;
  host_stream(stream).enqueue(Task([=, this] {
    const auto* const from = static_cast<const unsigned char*>(memory);
    spread_range(ceil_div(bytes, 4), [&](int64_t begin, int64_t end) {
      uint64_t mine = 0;
      for (int64_t i = begin; i < end; ++i) {
        uint32_t word = 0;
        std::memcpy(&word, from + 4 * i, static_cast<size_t>(std::min<int64_t>(4, bytes - 4 * i)));
        mine += hash_term(word, i);
      }
      std::atomic_ref(*sum).fetch_add(mine, std::memory_order_relaxed);
    });
  }));
}

}  // namespace muonrt::host
