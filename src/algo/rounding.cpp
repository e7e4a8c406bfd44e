#include "algo/rounding.hpp"

#include <algorithm>
#include <cmath>

namespace muonrt {
namespace {

/// The values of a polynomial in X X^T at the two levels of the spectrum.
struct Pair {
  double high, low;
};
Pair operator*(Pair a, Pair b) { return {a.high * b.high, a.low * b.low}; }
Pair operator+(Pair a, double b) { return {a.high + b, a.low + b}; }

/// The parts of the error of block (p, q) in the common eigenbasis of all matrices: the error of X,
/// the error of X in the mirrored block (q, p), and the errors of the symmetric matrices R and Q.
enum Part { kX, kXMirrored, kR, kQ, kParts };
using Row = std::array<double, kParts>;
constexpr Row kZero = {0, 0, 0, 0}, kKeepX = {1, 0, 0, 0}, kKeepMirrored = {0, 1, 0, 0};

/// One block of the error: the covariance matrix of the parts, and the spectrum levels to which the
/// block's rows and columns belong.
struct Block {
  bool low_rows, low_columns;
  double weight;  // squared spectral norm, relative to a whole matrix with the same noise
  std::array<Row, kParts> c{};

  double p(Pair v) const { return low_rows ? v.low : v.high; }
  double q(Pair v) const { return low_columns ? v.low : v.high; }
  bool mixed() const { return low_rows != low_columns; }

  double variance(const Row& form) const {
    double sum = 0;
    for (int i = 0; i < kParts; ++i)
      for (int j = 0; j < kParts; ++j) sum += form[i] * c[i][j] * form[j];
    return sum;
  }
  void map(const std::array<Row, kParts>& to) {
    std::array<Row, kParts> half{}, out{};
    for (int i = 0; i < kParts; ++i)
      for (int j = 0; j < kParts; ++j)
        for (int k = 0; k < kParts; ++k) half[i][j] += to[i][k] * c[k][j];
    for (int i = 0; i < kParts; ++i)
      for (int j = 0; j < kParts; ++j)
        for (int k = 0; k < kParts; ++k) out[i][j] += half[i][k] * to[j][k];
    c = out;
  }
  /// Adds a source of noise. form[i] times the noise is added to part i.
  void add(const Row& form, double noise) {
    for (int i = 0; i < kParts; ++i)
      for (int j = 0; j < kParts; ++j) c[i][j] += form[i] * form[j] * noise;
  }
};

/// The iteration on one spectrum. In this class, the "variance" of a random matrix is the square of
/// its spectral norm.
class Iteration {
 public:
  Iteration(double unit, const TwoLevels& s)
      : unit_(unit), share_(s.share), x_{s.high, s.low}, mirrored_(2 * s.share * (1 - s.share)) {
    const double high = std::sqrt(share_), low = std::sqrt(1 - share_);
    const double mixed = (high + low) / 2;
    blocks_ = {Block{false, false, high * high}, Block{false, true, mixed * mixed},
               Block{true, true, low * low}};
    round_x();
  }

  /// Computes R <- X X^T.
  void rebuild() {
    r_ = x_ * x_;
    for (Block& b : blocks_) {
      b.map({kKeepX, kKeepMirrored, {b.q(x_), b.p(x_), 0, 0}, kZero});
      b.add({0, 0, 1, 0}, noise(r_));
    }
  }

  /// Computes X <- (Z + a I) X, which is a segment of one step.
  void step_x(const Coefficients& s) {
    const Pair z = z_of(s), factor = z + s.a;
    for (Block& b : blocks_) {
      const double slope = slope_of(s, b);
      b.map({Row{b.p(factor), 0, slope * b.q(x_), 0}, Row{0, b.q(factor), slope * b.p(x_), 0},
             kZero, kZero});
      b.add({b.q(x_), b.p(x_), 0, 0}, noise_of_z(s, z));
    }
    multiply_x(factor);
  }

  /// Computes Q <- Q (Z + a I), or Q <- Z + a I in the first step of a segment. Also computes R <-
  /// (Z + a I) R (Z + a I), unless X is rebuilt next.
  void step_q(const Coefficients& s, bool first, bool last) {
    const Pair z = z_of(s), factor = z + s.a, y = r_ * factor, r_next = y * factor;
    const Pair q_next = first ? factor : q_ * factor;
    // Variances of the errors that are caused by mirroring a triangle.
    double lost_q = 0, lost_y = 0, lost_r = 0;
    const Block& mixed = blocks_[1];
    const auto apart = [&](Pair v) { return mixed.p(v) - mixed.q(v); };
    const auto mean = [](const Block& b, Pair v) { return (b.p(v) + b.q(v)) / 2; };
    if (!first) {
      const double half = apart(q_) / 2;
      lost_q = mirrored_ * (mixed.variance({0, 0, half * slope_of(s, mixed), -apart(z) / 2}) +
                            half * half * noise_of_z(s, z));
    }
    if (!last) {
      lost_y = mirrored_ * apart(r_) * apart(r_) / 4 * noise_of_z(s, z);
      const double from_z = (apart(z) * mean(mixed, r_) - apart(y)) / 2;
      lost_r = mirrored_ *
               (from_z * from_z * noise_of_z(s, z) + apart(z) * apart(z) / 4 * (noise(y) + lost_y));
    }
    for (Block& b : blocks_) {
      const double slope = slope_of(s, b);
      const double factor_mean = mean(b, factor);
      Row of_r = kZero, of_q = {0, 0, slope, 0};
      double z_in_r = 0, z_in_q = 1;
      if (!first) {
        z_in_q = mean(b, q_);
        of_q = {0, 0, z_in_q * slope, factor_mean};
      }
      if (!last) {
        z_in_r = factor_mean * mean(b, r_) + mean(b, y);
        of_r = {0, 0, factor_mean * factor_mean + z_in_r * slope, 0};
      }
      b.map({kKeepX, kKeepMirrored, of_r, of_q});
      b.add({0, 0, z_in_r, z_in_q}, noise_of_z(s, z));
      b.add({0, 0, 0, 1}, noise(q_next) + lost_q);
      if (last) continue;
      b.add({0, 0, 1, 0}, factor_mean * factor_mean * (noise(y) + lost_y) + noise(r_next) + lost_r);
    }
    q_ = q_next;
    r_ = r_next;
  }

  /// Computes X <- Q X.
  void apply_q() {
    for (Block& b : blocks_)
      b.map({Row{b.p(q_), 0, 0, b.q(x_)}, Row{0, b.q(q_), 0, b.p(x_)}, kZero, kZero});
    multiply_x(q_);
  }

  double error() const {
    double worst = std::max(outside_.high * blocks_[0].weight, outside_.low * blocks_[2].weight);
    for (const Block& b : blocks_)
      worst = std::max(worst, b.weight * std::max(b.c[kX][kX], b.c[kXMirrored][kXMirrored]));
    return std::sqrt(worst);
  }

 private:
  /// Returns the variance of the rounding error of a matrix with these eigenvalues or singular
  /// values.
  double noise(Pair v) const {
    return unit_ * unit_ * (share_ * v.high * v.high + (1 - share_) * v.low * v.low);
  }
  Pair z_of(const Coefficients& s) const {
    return {r_.high * (s.b + s.c * r_.high), r_.low * (s.b + s.c * r_.low)};
  }
  /// Returns the variance of the rounding error of Z. If c is 0, Z is b times R, and no product is
  /// rounded.
  double noise_of_z(const Coefficients& s, Pair z) const { return s.c == 0 ? 0 : noise(z); }
  /// Returns the divided difference of Z = b R + c R^2 for the block.
  double slope_of(const Coefficients& s, const Block& b) const {
    return s.b + s.c * (b.p(r_) + b.q(r_));
  }
  /// Multiplies X by a polynomial in X X^T. The part of the error outside the row space of X is
  /// multiplied by the same polynomial.
  void multiply_x(Pair factor) {
    outside_ = outside_ * factor * factor;
    x_ = x_ * factor;
    round_x();
  }
  void round_x() {
    const double v = noise(x_);
    for (Block& b : blocks_) {
      b.add(kKeepX, v);
      b.add(kKeepMirrored, v);
    }
    outside_ = outside_ + v;
  }

  double unit_, share_;
  Pair x_, r_{}, q_{}, outside_{0, 0};
  double mirrored_;  // antisymmetric error of the mixed block, relative to that of the whole matrix
  std::array<Block, 3> blocks_{};
};

}  // namespace

double predicted_error(const CoefficientList& list, const std::vector<int>& restarts, DType dtype,
                       const TwoLevels& spectrum) {
  const int digits = dtype == DType::kF32 ? 24 : dtype == DType::kF16 ? 11 : 8;
  const TwoLevels divided = {spectrum.high / list.input_safety, spectrum.low / list.input_safety,
                             spectrum.share};
  Iteration iteration(std::ldexp(1.0, -digits), divided);
  const int steps = static_cast<int>(list.steps.size());
  const auto starts = [&](int i) {
    return i == 0 || i == steps || std::find(restarts.begin(), restarts.end(), i) != restarts.end();
  };
  for (int i = 0; i < steps; ++i) {
    const Coefficients& s = list.steps[static_cast<size_t>(i)];
    const bool first = starts(i), last = starts(i + 1);
    if (first) iteration.rebuild();
    if (first && last) {
      iteration.step_x(s);
      continue;
    }
    iteration.step_q(s, first, last);
    if (last) iteration.apply_q();
  }
  return iteration.error();
}

std::vector<TwoLevels> compared_spectra(double fewest) {
  constexpr double kMost = 65536;
  constexpr int kDecades = 3, kPerDecade = 8;  // a finer grid changes the largest errors by 10%
  std::vector<TwoLevels> out;
  for (const double share : {1 / 4096.0, 1 / 512.0, 1 / 64.0, 0.25, 0.5, 0.75, 63 / 64.0}) {
    for (int i = 0; i <= kDecades * kPerDecade; ++i) {
      const double high = std::pow(10.0, -i / static_cast<double>(kPerDecade));
      for (int j = 0; j <= kDecades * kPerDecade; ++j) {
        const double down = std::pow(10.0, -j / static_cast<double>(kPerDecade));
        const double low = j == kDecades * kPerDecade ? 0 : high * down;
        const double rows = 1 / (share * high * high + (1 - share) * low * low);
        if (rows >= fewest * (1 - 1e-9) && rows <= kMost && share * rows >= 0.99)
          out.push_back({high, low, share});
      }
    }
  }
  return out;
}

}  // namespace muonrt
