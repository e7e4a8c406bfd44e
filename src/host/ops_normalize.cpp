#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/norm_rules.hpp"
#include "backend/op_checks.hpp"
#include "host/dtype_dispatch.hpp"
#include "host/findings.hpp"
#include "host/host_ops.hpp"
#include "host/host_stream.hpp"
#include "host/norm_passes.hpp"

namespace muonrt::host {

namespace {

constexpr int64_t kBands = 128;  // the rows of a sum are divided into at most this number of bands
// Below this size, one thread normalizes a whole matrix.
constexpr int64_t kSplitElements = 1 << 17;
constexpr int32_t kInfinityBits = 0x7f800000;

struct Scale {
  float up, up2;  // powers of two that are multiplied one after the other
};

/// Returns the scale that brings the largest value of the matrix, whose bits are `largest_bits`,
/// into [1, 2). Scaling is exact: a factor that is too large for one float is divided into two
/// factors of at least 1, and a factor that is too small for a normal float is an exact subnormal.
Scale scale_for(int32_t largest_bits) {
  int exponent = 0;
  std::frexp(std::bit_cast<float>(largest_bits), &exponent);
  const int up = 1 - exponent;
  const int first = std::min(up, 127);
  return {std::ldexp(1.0f, first), std::ldexp(1.0f, up - first)};
}

/// Normalizes one matrix. `run(count, body)` must call `body` for each band of rows.
template <class From, class To>
class Normalizer {
 public:
  Normalizer(Isa isa, const MatrixBatch& in, const MatrixBatch& out, int64_t index)
      : isa_(isa),
        in_(static_cast<const From*>(in.data) + index * in.stride),
        out_(static_cast<To*>(out.data) + index * out.stride),
        in_ld_(in.ld),
        out_ld_(out.ld),
        rows_(in.rows),
        cols_(in.cols),
        band_rows_(ceil_div(in.rows, kBands)),
        bands_(ceil_div(in.rows, band_rows_)) {}

  template <class Run>
  void operator()(const Normalization& how, Findings& findings, Run run) const {
    int32_t largest_of[kBands];
    run(bands_, [&](int64_t band) { largest_of[band] = largest(band); });
    const int32_t largest_bits = *std::max_element(largest_of, largest_of + bands_);
    if (largest_bits == 0) {
      note_zero_matrix(findings);
      return run(bands_, [&](int64_t band) { fill(band, 0.0f); });
    }
    if (largest_bits >= kInfinityBits) {
      // The whole output becomes NaN, so pack() finds a NaN in every block.
      return run(bands_,
                 [&](int64_t band) { fill(band, std::numeric_limits<float>::quiet_NaN()); });
    }
    const Scale scale = scale_for(largest_bits);
    float squares_of[kBands];
    run(bands_, [&](int64_t band) { squares_of[band] = squares(band, scale); });
    PairwiseSum sum;
    for (int64_t band = 0; band < bands_; ++band) sum.add(squares_of[band]);
    const float divisor = norm_divisor(std::sqrt(sum.total()), how, scale.up, scale.up2);
    run(bands_, [&](int64_t band) { divide(band, scale, divisor); });
  }

 private:
  int64_t first(int64_t band) const { return band * band_rows_; }
  int64_t end(int64_t band) const { return std::min(rows_, (band + 1) * band_rows_); }

  int32_t largest(int64_t band) const {
    int32_t most = 0;
    for (int64_t row = first(band); row < end(band); ++row)
      most = std::max(most, run_pass<LargestPass<From>>(isa_, in_ + row * in_ld_, cols_));
    return most;
  }

  float squares(int64_t band, Scale scale) const {
    PairwiseSum sum;
    for (int64_t row = first(band); row < end(band); ++row)
      sum.add(run_pass<SquaresPass<From>>(isa_, in_ + row * in_ld_, cols_, scale.up, scale.up2));
    return sum.total();
  }

  void divide(int64_t band, Scale scale, float divisor) const {
    for (int64_t row = first(band); row < end(band); ++row)
      run_pass<DividePass<From, To>>(isa_, in_ + row * in_ld_, out_ + row * out_ld_, cols_,
                                     scale.up, scale.up2, divisor);
  }

  void fill(int64_t band, float value) const {
    for (int64_t row = first(band); row < end(band); ++row)
      std::fill_n(out_ + row * out_ld_, cols_, from_f32<To>(value));
  }

  Isa isa_;
  const From* in_;
  To* out_;
  int64_t in_ld_, out_ld_, rows_, cols_, band_rows_, bands_;
};

}  // namespace

void HostOps::normalize(Stream& stream, const MatrixBatch& in, const MatrixBatch& out,
                        const Normalization& how, Findings* findings) {
  check_normalize(in, out, how);
  if (in.rows == 0 || in.cols == 0 || in.count == 0) return;
  host_stream(stream).enqueue(Task([=, this] {
    with_dtype(in.dtype, [&](auto from) {
      with_iterate(out.dtype, [&](auto to) {
        using One = Normalizer<decltype(from), decltype(to)>;
        if (in.rows * in.cols >= kSplitElements && in.count < pool_.threads() * 4) {
          for (int64_t i = 0; i < in.count; ++i)
            One(isa_, in, out, i)(how, *findings, [&](int64_t bands, auto body) {
              spread(bands, [&](int64_t band, int) { body(band); });
            });
          return;
        }
        spread(in.count, [&](int64_t i, int) {
          One(isa_, in, out, i)(how, *findings, [](int64_t bands, auto body) {
            for (int64_t band = 0; band < bands; ++band) body(band);
          });
        });
      });
    });
  }));
}

}  // namespace muonrt::host
