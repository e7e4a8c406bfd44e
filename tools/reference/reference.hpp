#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.hpp"

// The reference implementation of every formula in the library, with float64 and portable loops. It
// is based on the papers. From src, it uses only the storage type of bf16.
namespace reference {

// ---- matrices -------------------------------------------------------------------------------

/// A matrix of rows x cols, row-major.
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
/// Returns the value of a binary16 bit pattern, as defined by IEEE 754.
double half_value(uint16_t bits);
/// Returns the nearest binary16 bit pattern, ties to even.
uint16_t half_bits(double x);
/// Rounds every entry to bf16, f16 or f32.
Matrix rounded(const Matrix& a, muonrt::DType dtype);

/// Returns a value in [-1, 1) that is exact in f32. It depends only on the arguments, so that every
/// rank of a test can compute every value.
double value_at(uint64_t tensor, int64_t row, int64_t col, int64_t step);
/// Returns a matrix whose entries are values of value_at.
Matrix values(uint64_t tensor, int64_t rows, int64_t cols, int64_t step = 0);
/// Returns a matrix of standard normal entries that depends only on the arguments.
Matrix gaussian(int64_t rows, int64_t cols, uint64_t seed);

struct Svd {
  Matrix u;               // rows x k with k = min(rows, cols)
  std::vector<double> s;  // k values, descending
  Matrix v;               // cols x k
};
/// Computes the SVD by the one-sided Jacobi method. Source: Golub and Van Loan, Matrix
/// Computations, section 8.6.3 (4th edition).
Svd svd(const Matrix& a);
/// Returns U V^T of the SVD of a, without singular values up to `cutoff` times the largest one.
Matrix polar_factor(const Matrix& a, double cutoff = 1e-12);
/// Returns U diag(spectrum) V^T with random orthonormal U and V. `spectrum` has min(rows, cols)
/// entries.
Svd random_svd(int64_t rows, int64_t cols, const std::vector<double>& spectrum, uint64_t seed);
Matrix assemble(const Svd& f);

// ---- Newton-Schulz --------------------------------------------------------------------------

struct Triple {
  double a, b, c;
};
using List = std::vector<Triple>;

/// Returns the value to which the polynomials of `list` map a singular value x.
double compose(const List& list, double x);
/// Returns the largest factor by which the polynomials can amplify a rounding error: the maximum of
/// |dp/dx| over the singular values that a matrix can have after division by safety x norm.
double gain(const List& list, double safety);
/// Divides x by safety times its norm, and applies the standard form. For a zero matrix, returns
/// zero.
Matrix newton_schulz(const List& list, double safety, const Matrix& x);
/// Applies the steps of the standard form to x, without normalizing x. If x has more rows than
/// columns, works on its transpose.
Matrix newton_schulz_steps(const List& list, Matrix x);
/// Divides x by its norm, with the short side first, and then divides each row i by safety x
/// sqrt(max(sum_j |(X X^T)_ij|, 1e-7)). Source: Turbo-Muon, arXiv 2512.04632 (AOL).
Matrix aol_scaled(double safety, const Matrix& x);
/// Applies the Gram form. Recomputes X before each of the steps in `restarts`.
Matrix newton_schulz_gram(const List& list, const std::vector<int>& restarts, double safety,
                          const Matrix& x);
/// The errors of a Newton-Schulz result x for a matrix with a known SVD: the maximum over i of
/// |u_i^T x v_i - p(s_i / (safety norm s))|, and the largest off-diagonal |u_i^T x v_j|.
struct SpectralError {
  double diagonal, off_diagonal;
};
SpectralError spectral_error(const Matrix& x, const Svd& f, const List& list, double safety);

// ---- coefficient lists ----------------------------------------------------------------------

/// Computes the Polar Express list with the published algorithm (arXiv 2505.16932), in double
/// precision. `safety` applies to all steps except the last.
List polar_express(double lower_bound, int steps, double cushion, double safety);

/// Coefficient lists. Lists with the comment "60 digits" were computed with 60 digits; all others
/// are as their authors published them. l is the lower bound of the singular values.
namespace lists {
extern const List kKellerJordan;    // the same triple in all 5 steps
extern const List kYouJiacheng;     //
extern const List kPolarModded;     // l 1e-3, cushion 0.02, safety 1.02; divide the input by 1.02
extern const List kPolarModded7;    // kPolarModded with 7 steps; the last 3 with 60 digits
extern const List kPolarRaw;        // 8 steps; l 1e-3, cushion kRawCushion, no safety
extern const List kPolarRaw105;     // first 5 steps of kPolarRaw, with safety 1.05 in all
extern const List kPolarEmerging;   // kPolarRaw, safety 1.01 except in the last step; 4 decimals
extern const List kPolarReference;  // 10 steps; l 1e-3, cushion 0.02, safety 1.01; input / 1.01
extern const List kCansPrinted;     // 5 steps; 4 decimals
extern const List kCans;            // 8 steps; l 1e-3, no cushion, no safety; 60 digits
extern const List kDeepSeekV4;      // 10 steps
extern const List kCubic;           // 5 steps without quintic terms
extern const List kAolEmerging;     // 4 steps, for row-scaled input
extern const List kAolFlash;        // 4 steps, for row-scaled input
constexpr double kRawCushion = 0.02407327424182761;
}  // namespace lists

// ---- optimizers -----------------------------------------------------------------------------

enum class Scale { kOriginal, kMatchRms, kRatio, kMaxDim, kNone };
double scale_factor(Scale rule, int64_t rows, int64_t cols);

/// How a weight decays. `decayed` returns the weight w after the decay, before the update u is
/// subtracted. `rate` is the learning rate times its factors.
enum class Decay { kDecoupled, kIndependent, kLrSquared, kCautious };
double decayed(Decay kind, double rate, double weight_decay, double w, double u);

/// The values that a matrix can be divided by before Newton-Schulz: safety x norm, safety x norm +
/// eps, or the larger of safety x norm and eps.
enum class Normalize { kPrescaled, kAddEps, kMaxEps };

struct Muon {
  double lr = 0.02, weight_decay = 0.1, momentum = 0.95;
  Decay decay = Decay::kDecoupled;
  bool heavy_ball = false, nesterov = true;
  Scale scale = Scale::kMatchRms;
  double scale_times = 1.0;
  List list;  // coefficients of the standard form
  double safety = 1.0;
  Normalize normalize = Normalize::kPrescaled;
  double eps = 0.0;
  bool aol = false;          // scale rows with aol_scaled instead of dividing by the norm
  bool equilibrate = false;  // first scale all rows to the same norm
  bool renormalize = false;  // scale the result to the norm sqrt(min(rows, cols))
  bool normuon = false, normuon_columns = false;
  double normuon_beta2 = 0.95;
  // dtype to which messages in both directions are rounded
  muonrt::DType transport = muonrt::DType::kF32;
  /// If above 0, this is the number of the step, and the bias from the zero initial momentum is
  /// corrected as in Optax.
  int64_t corrected_at = 0;
};
/// Returns the orthogonalized direction O: divides u as `how` specifies, and applies Newton-Schulz.
/// For a zero matrix, returns zero.
Matrix orthogonalized(const Muon& how, const Matrix& u);

/// A block of a matrix that is orthogonalized and scaled separately.
struct Part {
  std::vector<int64_t> rows, cols;
  double lr_factor = 1.0;
  bool normuon_columns = false;
};
Part whole_matrix(int64_t rows, int64_t cols);
/// Divides each part into r x c blocks of ceil(size / number) rows and columns. Omits empty blocks.
std::vector<Part> cut_into(const std::vector<Part>& parts, int64_t r, int64_t c);
/// Runs one step on a matrix that consists of parts. Updates w and m in place. If NorMuon is on,
/// also updates the second moments of each part.
void muon_step(const Muon& how, const std::vector<Part>& parts, Matrix& w, Matrix& m,
               const Matrix& g, std::vector<std::vector<double>>& moments);
/// Runs one step on a matrix that has a single part.
void muon_step(const Muon& how, Matrix& w, Matrix& m, const Matrix& g,
               std::vector<double>* v = nullptr);

/// Applies NorMuon to a whole matrix. Updates v, which has one second moment for each row, in
/// place.
Matrix normuon(const Matrix& o, double beta2, std::vector<double>& v);

struct AdamW {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.01;
  Decay decay = Decay::kDecoupled;
  bool folded = false;    // add eps to the root before the bias correction
  bool nesterov = false;  // as in Optax's NAdamW
};
/// Runs step number t = 1, 2, ... and updates w, m and v in place.
void adamw_step(const AdamW& how, int64_t t, std::vector<double>& w, std::vector<double>& m,
                std::vector<double>& v, const std::vector<double>& g);

/// Returns the 16 random bits of a weight. They are generated by Philox4x32-10 (Salmon et al.
/// 2011), which computes 128 bits at a time, enough for eight elements.
uint32_t random_bits(uint64_t seed, uint64_t step, uint32_t param, uint64_t element);
/// Rounds a weight to bf16, up or down at random: up if the sum of its lower 16 bits and `bits`
/// overflows.
double rounded_at_random(double weight, uint32_t bits);
/// Combine the seed for bf16 weights with this value to get the seed for bf16 momentum.
constexpr uint64_t kMomentumSeed = 0x6d6f6d656e74756d;

}  // namespace reference
