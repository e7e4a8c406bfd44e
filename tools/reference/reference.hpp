#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.hpp"

// The reference implementation of every formula of the library: float64, portable loops, written
// from the papers and not from src. It uses nothing of src except the storage of bf16.
namespace reference {

// ---- matrices -------------------------------------------------------------------------------

/// rows x cols, row-major.
struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> v;

  Matrix() = default;
  Matrix(int64_t r, int64_t c) : rows(r), cols(c), v(static_cast<size_t>(r * c), 0.0) {}
  double& operator()(int64_t i, int64_t j) { return v[static_cast<size_t>(i * cols + j)]; }
  double operator()(int64_t i, int64_t j) const { return v[static_cast<size_t>(i * cols + j)]; }
};

Matrix identity(int64_t n);
Matrix transpose(const Matrix& a);
Matrix multiply(const Matrix& a, const Matrix& b);
Matrix add(double alpha, const Matrix& a, double beta, const Matrix& b);
Matrix scale(double alpha, const Matrix& a);
double frobenius(const Matrix& a);
double max_difference(const Matrix& a, const Matrix& b);
bool all_finite(const Matrix& a);
/// IEEE binary16 by its definition: the value of a pattern, the nearest pattern (ties to even).
double half_value(uint16_t bits);
uint16_t half_bits(double x);
/// Rounds every entry to bf16, f16 or f32.
Matrix rounded(const Matrix& a, muonrt::DType dtype);

/// A value in [-1, 1), exact in f32, that depends only on the arguments, so that every rank of a
/// test can compute every value.
double value_at(uint64_t tensor, int64_t row, int64_t col, int64_t step);
/// A matrix of value_at.
Matrix values(uint64_t tensor, int64_t rows, int64_t cols, int64_t step = 0);
/// Standard normal entries; a function of the arguments.
Matrix gaussian(int64_t rows, int64_t cols, uint64_t seed);

struct Svd {
  Matrix u;               // rows x k with k = min(rows, cols)
  std::vector<double> s;  // k, descending
  Matrix v;               // cols x k
};
/// One-sided Jacobi. Source: Golub and Van Loan, Matrix Computations, section 8.6.3 (4th edition).
Svd svd(const Matrix& a);
/// U V^T over the singular values above `cutoff` x the largest.
Matrix polar_factor(const Matrix& a, double cutoff = 1e-12);
/// U diag(spectrum) V^T with random orthonormal U, V; spectrum has min(rows, cols) entries.
Svd random_svd(int64_t rows, int64_t cols, const std::vector<double>& spectrum, uint64_t seed);
Matrix assemble(const Svd& f);

// ---- Newton-Schulz --------------------------------------------------------------------------

struct Triple {
  double a, b, c;
};
using List = std::vector<Triple>;

/// The image of a singular value x.
double compose(const List& list, double x);
/// Largest |dp/dx| over the singular values of matrices divided by safety x norm, per unit of the
/// divided value: how much a rounding grows at worst.
double gain(const List& list, double safety);
/// Standard form on x divided by safety x its norm; zero gives zero.
Matrix newton_schulz(const List& list, double safety, const Matrix& x);
/// Steps of the standard form on x without normalization; the short side comes first.
Matrix newton_schulz_steps(const List& list, Matrix x);
/// Rows divided by safety x sqrt(max(sum_j |(X X^T)_ij|, 1e-7)) of x divided by its norm, short
/// side first. Source: Turbo-Muon, arXiv 2512.04632 (AOL).
Matrix aol_scaled(double safety, const Matrix& x);
/// Gram form with X rebuilt before the steps in `restarts`.
Matrix newton_schulz_gram(const List& list, const std::vector<int>& restarts, double safety,
                          const Matrix& x);
/// max over i of |u_i^T x v_i - p(s_i / (safety norm s))|, and the largest off-diagonal
/// |u_i^T x v_j|, of a Newton-Schulz result x for a matrix whose SVD is known.
struct SpectralError {
  double diagonal, off_diagonal;
};
SpectralError spectral_error(const Matrix& x, const Svd& f, const List& list, double safety);

// ---- coefficient lists ----------------------------------------------------------------------

/// Polar Express by the published algorithm (arXiv 2505.16932), in double; safety acts on all but
/// the last.
List polar_express(double lower_bound, int steps, double cushion, double safety);

/// Lists as their authors printed them, or generated with 60 digits if the comment says so.
namespace lists {
extern const List kKellerJordan;    // five times the same
extern const List kYouJiacheng;     //
extern const List kPolarModded;     // l 1e-3, cushion 0.02, safety 1.02; input / 1.02
extern const List kPolarModded7;    // the same with 7 steps (the last three; 60 digits)
extern const List kPolarRaw;        // l 1e-3, cushion kRawCushion, no safety; 8
extern const List kPolarRaw105;     // the first five, all over 1.05
extern const List kPolarEmerging;   // raw over 1.01 but the last; four decimals; 8
extern const List kPolarReference;  // l 1e-3, cushion 0.02, safety 1.01; 10; input / 1.01
extern const List kCansPrinted;     // five, four decimals
extern const List kCans;            // l 1e-3, no cushion, no safety; 8, 60 digits
extern const List kDeepSeekV4;      // 10
extern const List kCubic;           // 5, no quintic term
extern const List kAolEmerging;     // 4, meant for row-scaled input
extern const List kAolFlash;        // 4, meant for row-scaled input
constexpr double kRawCushion = 0.02407327424182761;
}  // namespace lists

// ---- optimizers -----------------------------------------------------------------------------

enum class Scale { kOriginal, kMatchRms, kRatio, kMaxDim, kNone };
double scale_factor(Scale rule, int64_t rows, int64_t cols);

/// The decay of a weight w before its update u is subtracted; `rate` is the learning rate times its
/// factors.
enum class Decay { kDecoupled, kIndependent, kLrSquared, kCautious };
double decayed(Decay kind, double rate, double weight_decay, double w, double u);

/// The divisor of a matrix before Newton-Schulz: safety x norm; safety x norm + eps; or the larger
/// of safety x norm and eps.
enum class Normalize { kPrescaled, kAddEps, kMaxEps };

struct Muon {
  double lr = 0.02, weight_decay = 0.1, momentum = 0.95;
  Decay decay = Decay::kDecoupled;
  bool heavy_ball = false, nesterov = true;
  Scale scale = Scale::kMatchRms;
  double scale_times = 1.0;
  List list;  // standard form
  double safety = 1.0;
  Normalize normalize = Normalize::kPrescaled;
  double eps = 0.0;
  bool aol = false;          // rows are scaled by aol_scaled instead
  bool equilibrate = false;  // rows are scaled to one norm first
  bool renormalize = false;  // the result is scaled to the norm sqrt(min(rows, cols))
  bool normuon = false, normuon_columns = false;
  double normuon_beta2 = 0.95;
  muonrt::DType transport = muonrt::DType::kF32;  // rounding of messages in both directions
  /// > 0: the number t of this step; the momentum is corrected for its start at zero, as in Optax.
  int64_t corrected_at = 0;
};
/// O of a direction: Newton-Schulz on what `how` divides it by; zero gives zero.
Matrix orthogonalized(const Muon& how, const Matrix& u);

/// A block of a matrix that is orthogonalized and scaled separately.
struct Part {
  std::vector<int64_t> rows, cols;
  double lr_factor = 1.0;
  bool normuon_columns = false;
};
Part whole_matrix(int64_t rows, int64_t cols);
/// Cuts each part into r x c blocks of ceil(size / number) rows and columns; empty blocks are
/// omitted.
std::vector<Part> cut_into(const std::vector<Part>& parts, int64_t r, int64_t c);
/// One step of a matrix of parts; w and m are updated in place, and the second moments of each part
/// where NorMuon is on.
void muon_step(const Muon& how, const std::vector<Part>& parts, Matrix& w, Matrix& m,
               const Matrix& g, std::vector<std::vector<double>>& moments);
/// The same of a matrix in one part.
void muon_step(const Muon& how, Matrix& w, Matrix& m, const Matrix& g,
               std::vector<double>* v = nullptr);

/// NorMuon of a whole matrix with one second moment for each row, updated in place.
Matrix normuon(const Matrix& o, double beta2, std::vector<double>& v);

struct AdamW {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.01;
  Decay decay = Decay::kDecoupled;
  bool folded = false;    // eps is added to the uncorrected root
  bool nesterov = false;  // as in Optax's NAdamW
};
/// Step number t = 1, 2, ...; w, m, v are updated in place.
void adamw_step(const AdamW& how, int64_t t, std::vector<double>& w, std::vector<double>& m,
                std::vector<double>& v, const std::vector<double>& g);

/// 16 random bits of a weight: of Philox4x32-10 (Salmon et al. 2011), whose 128 bits are those of
/// eight elements.
uint32_t random_bits(uint64_t seed, uint64_t step, uint32_t param, uint64_t element);
/// A weight as bf16, up or down at random: up where the lower half and the bits overflow.
double rounded_at_random(double weight, uint32_t bits);
/// What the seed of bf16 momentum differs by from that of bf16 weights.
constexpr uint64_t kMomentumSeed = 0x6d6f6d656e74756d;

}  // namespace reference
