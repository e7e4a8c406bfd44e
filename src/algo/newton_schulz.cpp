#include "algo/newton_schulz.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "algo/restarts.hpp"
#include "base/checked.hpp"
#include "base/error.hpp"

namespace muonrt {
namespace {

/// Returns the first step after `begin` before which X is rebuilt. The standard form rebuilds X
/// before every step.
size_t segment_end(const Method& method, size_t steps, size_t begin) {
  if (method.form == Form::kStandard) return begin + 1;
  for (const int i : method.restarts)
    if (static_cast<size_t>(i) > begin) return std::min(steps, static_cast<size_t>(i));
  return steps;
}

bool keeps_q(const Method& method, size_t steps) {
  for (size_t i = 0; i < steps; i = segment_end(method, steps, i))
    if (segment_end(method, steps, i) - i > 1) return true;
  return false;
}

/// The buffers of a workspace. `q` and `spare` exist only if a segment has two or more steps. `w`
/// uses the memory of `x_next`, which is written only at the end of a segment. Each matrix of `w`
/// is stored in the memory of the corresponding matrix of `x_next`, because both have the same
/// stride.
struct Space {
  MatrixBatch x, x_next;          // m x n
  MatrixBatch r, z, w, q, spare;  // m x m
  MatrixBatch factors;            // 1 x m, or 1 x n, if rows or columns are scaled
  int64_t bytes = 0;
};

Space carve(const MatrixRules& rules, const NewtonSchulz& settings, const Method& method, int64_t m,
            int64_t n, int64_t count, void* base) {
  MUONRT_CHECK_INTERNAL(m >= 0 && m <= n && count >= 0, m, " x ", n, ", count ", count);
  Space space;
  const DType iterate = settings.iteration_of(method.form);
  const auto take = [&](MatrixBatch& part, int64_t rows, int64_t cols, DType dtype) {
    const int64_t size = size_of(dtype);
    part.dtype = dtype;
    part.rows = rows;
    part.cols = cols;
    part.ld = rules.leading_dimension(cols, part.dtype);
    part.count = count;
    part.stride = round_up(checked_mul(rows, part.ld), kMemoryAlignment / size);
    if (base) part.data = static_cast<unsigned char*>(base) + space.bytes;
    const int64_t bytes = checked_mul(checked_mul(part.stride, count), size);
    space.bytes = checked_add(space.bytes, round_up(bytes, kMemoryAlignment));
  };
  take(space.x, m, n, iterate);
  take(space.x_next, m, n, iterate);
  take(space.r, m, m, iterate);
  take(space.z, m, m, iterate);
  space.w = space.r;
  space.w.stride = space.x_next.stride;
  if (keeps_q(method, settings.list_of(method.form).steps.size())) {
    take(space.q, m, m, iterate);
    take(space.spare, m, m, iterate);
  }
  if (settings.row_scaling == RowScaling::kAol || settings.scales_neurons())
    take(space.factors, 1, settings.scales_neurons() ? n : m, DType::kF32);
  return space;
}

/// Collects the products of one batch. in_lockstep() merges them with the products of other
/// batches. Every symmetric product is written as A B^T, so a backend needs only one symmetric
/// kernel. A B^T equals A B because all m x m iterates are bitwise symmetric.
class Products {
 public:
  /// @param watched  Tally to which watch() adds, or null.
  Products(Ops& ops, Stream& stream, Tally* watched)
      : ops_(ops), stream_(stream), watched_(watched) {}

  std::vector<IterationStep> steps;

  /// Appends c = alpha a b^T + beta d + gamma I, whose result is symmetric.
  void symmetric(const MatrixBatch& c, double alpha, const MatrixBatch& a, const MatrixBatch& b,
                 double beta, const MatrixBatch& d, double gamma = 0.0) {
    Product p;
    p.a = a, p.b = b, p.c = c, p.d = d;
    p.transpose_b = true;
    p.symmetric = true;
    p.alpha = static_cast<float>(alpha);
    p.beta = static_cast<float>(beta);
    p.gamma = static_cast<float>(gamma);
    steps.push_back({{p}, {}});
  }
  /// Combines the last two products, which do not depend on each other, into one step.
  void join_last_two() {
    const Product last = steps.back().products.front();
    steps.pop_back();
    steps.back().products.push_back(last);
  }
  /// Appends c = x x^T.
  void gram(const MatrixBatch& c, const MatrixBatch& x) {
    symmetric(c, 1.0, x, x, 0.0, MatrixBatch{});
  }
  /// Appends c = alpha a x + beta x, where x is m x n.
  void apply(const MatrixBatch& c, double alpha, const MatrixBatch& a, double beta,
             const MatrixBatch& x) {
    Product p;
    p.a = a, p.b = x, p.c = c;
    if (beta != 0.0) p.d = x;
    p.alpha = static_cast<float>(alpha);
    p.beta = static_cast<float>(beta);
    steps.push_back({{p}, {}});
  }
  /// scale_rows() and the next two ops run after the last product that was appended.
  void scale_rows(const MatrixBatch& gram, const MatrixBatch& x, const MatrixBatch& factors,
                  const AolRule& rule) {
    steps.back().then.push_back([&ops = ops_, &stream = stream_, gram, x, factors, rule] {
      ops.scale_rows(stream, gram, x, factors, rule);
    });
  }
  void add_identity(const MatrixBatch& x, double gamma) {
    steps.back().then.push_back([&ops = ops_, &stream = stream_, x, gamma] {
      ops.add_identity(stream, x, static_cast<float>(gamma));
    });
  }
  void watch(const MatrixBatch& q) {
    if (!watched_) return;
    steps.back().then.push_back([&ops = ops_, &stream = stream_, q, watched = watched_] {
      ops.tally(stream, q, nullptr, watched);
    });
  }

 private:
  Ops& ops_;
  Stream& stream_;
  Tally* watched_;
};

/// The matrix Z = b R + c R^2 of a step, as a factor and a matrix. If c is 0, these are b and R,
/// and no product is needed.
struct Scaled {
  double factor;
  MatrixBatch matrix;
};

Scaled polynomial(Products& products, const Space& s, const Coefficients& step) {
  if (step.c == 0.0) return {step.b, s.r};
  products.symmetric(s.z, step.c, s.r, s.r, step.b, s.r);
  return {1.0, s.z};
}

/// Appends the products of a segment: X <- q(X X^T) X. If the segment has two or more steps, first
/// computes Q = q(R) from m x m products, where R = X X^T.
void append_segment(Products& products, Space& s, std::span<const Coefficients> steps) {
  if (steps.size() == 1) {
    const Scaled z = polynomial(products, s, steps[0]);
    products.apply(s.x_next, z.factor, z.matrix, steps[0].a, s.x);
    std::swap(s.x, s.x_next);
    return;
  }
  s.w.data = s.x_next.data;
  for (size_t i = 0; i < steps.size(); ++i) {
    const double a = steps[i].a;
    const Scaled z = polynomial(products, s, steps[i]);
    const bool last = i + 1 == steps.size();
    if (i > 0) products.symmetric(s.spare, z.factor, s.q, z.matrix, a, s.q);
    // R <- (Z + a I) R (Z + a I) in two products. The epilogues add `a` without rounding it.
    if (!last) products.symmetric(s.w, z.factor, s.r, z.matrix, a, s.r);
    if (i > 0) {
      if (!last) products.join_last_two();
      std::swap(s.q, s.spare);
      products.watch(s.q);
      if (last) break;
    }
    const bool z_is_r = z.matrix.data == s.r.data;
    MatrixBatch& next = z_is_r ? s.z : s.r;
    products.symmetric(next, z.factor, z.matrix, s.w, a, s.w);
    if (z_is_r) std::swap(s.r, s.z);
    if (i > 0) continue;
    // Q = Z + a I. It is written to the buffer of Z if Z is no longer needed.
    if (z_is_r) {
      // Computes no product, because alpha is 0.
      products.symmetric(s.q, 0.0, s.z, s.z, z.factor, s.z, a);
    } else {
      std::swap(s.q, s.z);
      products.add_identity(s.q, a);
    }
    products.watch(s.q);
  }
  products.apply(s.x_next, 1.0, s.q, 0.0, s.x);
  std::swap(s.x, s.x_next);
}

/// Sets the restarts that the caller chose. Errors: NOT_SUPPORTED if Q is unbounded with these
/// restarts.
void take_restarts(NewtonSchulz& out, const std::vector<int>& restarts) {
  const RestartSearch search = restart_search(out.gram_list, out.gram_iteration);
  std::vector<int> used;
  for (const int i : restarts)
    if (i < std::ssize(out.gram_list.steps)) used.push_back(i);
  const double metric = restart_metric(out.gram_list, used, search);
  MUONRT_REQUIRE(metric <= search.bound, Status::kNotSupported, "Gram form: restarts ", restarts,
                 " leave this coefficient list unbounded in ", name_of(out.gram_iteration),
                 " (condition number ", metric, ", limit ", search.bound,
                 "); omit restarts to have them searched, or use the standard form");
  out.gram_restarts = restarts;
}

// The elements of the Gram matrix are products of two rows. The smallest f16 number is 2^-24, so
// for a row with a norm of 2^-12 these elements could become zero, and nothing would limit the
// row's AOL factor. An X in f16 is therefore lifted: its norm is up to kLift until its rows are
// scaled, and this scaling also divides by kLift. The Gram matrix is then below 2^14, and underflow
// loses at most the fraction kLost of it. With equilibration, X is lifted so that elements of short
// rows do not become subnormal.
constexpr float kLift = 0x1p7f, kLost = 0x1p-38f;

float lift_of(const NewtonSchulz& settings, Form form) {
  const bool lifted =
      settings.row_scaling != RowScaling::kNone && settings.iteration_of(form) == DType::kF16;
  return lifted ? kLift : 1.0f;
}

Normalization normalization_of(const NewtonSchulz& settings, Form form) {
  const float lift = lift_of(settings, form);
  const float eps = static_cast<float>(settings.normalize_eps) / lift;
  Normalization out{static_cast<float>(settings.list_of(form).input_safety) / lift};
  if (settings.normalize == Normalize::kAddEps) out.added = eps;
  if (settings.normalize == Normalize::kMaxEps) out.least = eps;
  return out;
}

/// Returns the AOL rule for m rows. If X is lifted, the sums have a lower limit: below it, the loss
/// by underflow in f16 could exceed the rounding error of a sum.
AolRule aol_rule(const NewtonSchulz& settings, Form form, int64_t m) {
  AolRule rule{static_cast<float>(settings.list_of(form).input_safety)};
  const float lift = lift_of(settings, form);
  if (lift != 1.0f) rule.least = std::max(rule.least, 0x1p11f * kLost * static_cast<float>(m));
  rule.least *= lift * lift;
  return rule;
}

}  // namespace

NewtonSchulz make_newton_schulz(CoefficientFamily family, const CoefficientSettings& settings,
                                DType iteration, const NewtonSchulzOptions& options) {
  NewtonSchulz out;
  out.iteration = iteration;
  out.gram_iteration = options.gram_iteration.value_or(iteration);
  out.normalize = options.normalize;
  out.normalize_eps = options.normalize_eps;
  out.row_scaling = options.row_scaling;
  out.renormalize = options.renormalize;
  const auto settings_in = [&](DType dtype) {
    CoefficientSettings used = settings;
    // The published CANS list has headroom for its input, but not for later steps, where rounding
    // errors would grow.
    if (!options.mode_chosen && family == CoefficientFamily::kCans && dtype != DType::kF32)
      used.mode = SafetyMode::kInner;
    return used;
  };
  out.list = make_coefficients(family, settings_in(iteration), iteration);
  CoefficientSettings gram = settings_in(out.gram_iteration);
  const bool generated =
      family == CoefficientFamily::kPolarExpress || family == CoefficientFamily::kCans;
  if (generated && out.gram_iteration == DType::kF16 && !options.mode_chosen) {
    gram.mode = SafetyMode::kAll;
    if (!options.safety_chosen) gram.safety = kHalfGramSafety;
  }
  out.gram_list = make_coefficients(family, gram, out.gram_iteration);
  if (options.restarts) {
    take_restarts(out, *options.restarts);
    return out;
  }
  // With AOL, each row is scaled separately, so the restarts must be accurate for matrices of any
  // size.
  const double fewest = out.row_scaling == RowScaling::kAol ? 1 : 512;
  out.gram_restarts = find_restarts(out.gram_list, out.gram_iteration, out.list, fewest);
  return out;
}

FormChoice permitted_form(const NewtonSchulz& settings, FormChoice wish) {
  if (wish == FormChoice::kGram) {
    require_headroom(settings.gram_list, settings.gram_iteration);
    return wish;
  }
  require_headroom(settings.list, settings.iteration);
  // An f32 product takes twice the time of a bf16 product. Up to an aspect ratio of about 4, the
  // Gram form does not save enough FLOPs to make up for this. For longer matrices, which are rare,
  // the caller can choose the Gram form.
  if (settings.iteration == DType::kBF16 && settings.gram_iteration == DType::kF32)
    return FormChoice::kStandard;
  // With a restart before every step, the Gram form is identical to the standard form.
  const bool shorter = settings.gram_restarts.size() + 1 < settings.gram_list.steps.size();
  return shorter && has_headroom(settings.gram_list, settings.gram_iteration)
             ? wish
             : FormChoice::kStandard;
}

int64_t newton_schulz_workspace(const MatrixRules& rules, const NewtonSchulz& settings,
                                const Method& method, int64_t m, int64_t n, int64_t count) {
  return carve(rules, settings, method, m, n, count, nullptr).bytes;
}

namespace {

/// Appends the products for a batch whose X is already normalized.
void append_steps(Products& products, Space& space, const NewtonSchulz& settings,
                  const Method& method) {
  const CoefficientList& list = settings.list_of(method.form);
  const std::span<const Coefficients> steps = list.steps;
  for (size_t begin = 0; begin < steps.size();) {
    const size_t end = segment_end(method, steps.size(), begin);
    products.gram(space.r, space.x);
    if (begin == 0 && settings.row_scaling == RowScaling::kAol)
      products.scale_rows(space.r, space.x, space.factors,
                          aol_rule(settings, method.form, space.x.rows));
    append_segment(products, space, steps.subspan(begin, end - begin));
    begin = end;
  }
}

/// Sets `rule` for the rows or columns of each matrix of `x`. The caller must have set stored_rows.
void fill(std::span<NormuonState> lines, const MatrixBatch& x, const MatrixBatch& factors,
          NeuronRule rule, float target) {
  for (size_t i = 0; i < lines.size(); ++i) {
    NormuonState& s = lines[i];
    s.factors = static_cast<float*>(factors.data) + static_cast<int64_t>(i) * factors.stride;
    s.neurons = s.stored_rows ? x.rows : x.cols;
    s.rule = rule;
    s.target = target;
  }
}

}  // namespace

Orthogonalization::Orthogonalization(Ops& ops, Stream& stream,
                                     std::span<const OrthogonalizeArgs> batches, Findings* findings)
    : ops_(&ops), stream_(&stream), findings_(findings) {
  std::vector<std::vector<IterationStep>> iterations;
  for (const OrthogonalizeArgs& batch : batches) {
    const MatrixBatch& raw = batch.raw;
    const CoefficientList& list = batch.settings->list_of(batch.method->form);
    MUONRT_CHECK_INTERNAL(static_cast<size_t>(batch.method->steps) == list.steps.size(),
                          batch.method->steps, " steps planned, list of ", list.steps.size());
    Space space =
        carve(ops, *batch.settings, *batch.method, raw.rows, raw.cols, raw.count, batch.workspace);
    if (raw.rows > 0 && raw.count > 0) {
      normalized_.push_back({raw, space.x, normalization_of(*batch.settings, batch.method->form)});
      const auto count = static_cast<size_t>(raw.count);
      if (batch.settings->row_scaling == RowScaling::kEquilibrate) {
        const auto lines = batch.lines.first(count);
        fill(lines, space.x, space.factors, NeuronRule::kEqual,
             1.0f / lift_of(*batch.settings, batch.method->form));
        equilibrated_.push_back({space.x, lines});
      }
      Products products(ops, stream, batch.q);
      append_steps(products, space, *batch.settings, *batch.method);
      iterations.push_back(std::move(products.steps));
      if (batch.settings->renormalize) {
        const auto lines = batch.lines.subspan(count, count);
        fill(lines, space.x, space.factors, NeuronRule::kNorm,
             std::sqrt(static_cast<float>(raw.rows)));
        renormalized_.push_back({space.x, lines});
      }
    }
    results_.push_back(space.x);
  }
  sequences_ = in_lockstep(iterations);
}

void Orthogonalization::enqueue() const {
  for (const Normalized& n : normalized_) ops_->normalize(*stream_, n.raw, n.x, n.how, findings_);
  for (const ScaledLines& e : equilibrated_) ops_->normuon(*stream_, e.x, e.lines, {});
  run(*ops_, *stream_, sequences_);
  for (const ScaledLines& r : renormalized_) ops_->normuon(*stream_, r.x, r.lines, {});
}

void reserve(Ops& ops, const NewtonSchulz& settings, const Method& method, int64_t m, int64_t n) {
  if (m == 0 || n == 0) return;
  const DType iterate = settings.iteration_of(method.form);
  ops.reserve(m, m, n, iterate);  // X X^T
  ops.reserve(m, n, m, iterate);  // B X and Q X
  const CoefficientList& list = settings.list_of(method.form);
  const bool squares = std::any_of(list.steps.begin(), list.steps.end(),
                                   [](const Coefficients& s) { return s.c != 0.0; });
  if (squares || keeps_q(method, list.steps.size())) ops.reserve(m, m, m, iterate);
}

}  // namespace muonrt
