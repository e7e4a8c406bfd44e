#include "algo/coefficients.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "algo/polar_express.hpp"
#include "base/error.hpp"

namespace muonrt {
namespace {

using Real = long double;

// Below this limit, a singular value of a normalized matrix is zero within rounding in any dtype.
constexpr double kSmallestSigma = 1e-9;
constexpr double kLargestSigma = 4.0;
// No step may map a value in (0, 1] to a value above this limit. The steps of published lists and,
// by design, those of generated lists map (0, 1] to (0, 2).
constexpr double kMaxInside = 4.0;
// The image of a singular value slightly above 1 may be at most this many times the largest image
// of (0, 1].
constexpr double kGrowth = 1.25;

/// Source: KellerJordan/Muon.
constexpr Coefficients kKeller = {3.4445, -4.7750, 2.0315};
/// Source: the five steps of You Jiacheng, as in Emerging-Optimizers and XTuner.
constexpr std::array<Coefficients, 5> kYou = {{{4.0848, -6.8946, 2.9270},
                                               {3.9505, -6.3029, 2.6377},
                                               {3.7418, -5.5913, 2.3037},
                                               {2.8769, -3.1427, 1.2046},
                                               {2.8366, -3.0525, 1.2012}}};

/// The step of DeepSeek-V4 that follows eight steps of Keller Jordan. Source: Emerging-Optimizers.
constexpr Coefficients kSettling = {2.0, -1.5, 0.5};
constexpr int kBeforeSettling = 8;
/// Tuned for singular values of at least 7e-3. Source: arXiv 2606.00371, as in Emerging-Optimizers.
constexpr std::array<Coefficients, 5> kCubic = {{{3.3656576, -3.3420992, 0},
                                                 {2.5744352, -1.4957376, 0},
                                                 {2.5368962, -1.4312570, 0},
                                                 {2.4418906, -1.2764040, 0},
                                                 {2.2230472, -0.9630650, 0}}};
/// The quintic whose deviation from 1 vanishes to third order at x = 1.
constexpr Coefficients kClassicalStep = {15.0 / 8, -10.0 / 8, 3.0 / 8};
/// Source: the list of Turbo-Muon in flash-newton-schulz. The list "aol" of Emerging-Optimizers
/// cannot be used: it changes sign above 0.8837, and matrices of rank 1 have a larger singular
/// value with every scaling.
constexpr std::array<Coefficients, 4> kAolFlash = {{{4.6051, -9.6552, 5.6769},
                                                    {4.7505, -6.0861, 2.1790},
                                                    {2.7763, -2.3190, 0.5523},
                                                    {2.4231, -2.2861, 0.8193}}};

constexpr std::array<CoefficientFamily, 9> kFamilies = {
    CoefficientFamily::kPolarExpress, CoefficientFamily::kKellerJordan,
    CoefficientFamily::kYouJiacheng,  CoefficientFamily::kCans,
    CoefficientFamily::kDeepSeekV4,   CoefficientFamily::kCubic,
    CoefficientFamily::kClassical,    CoefficientFamily::kAol,
    CoefficientFamily::kCustom};

bool is_generated(CoefficientFamily family) {
  return family == CoefficientFamily::kPolarExpress || family == CoefficientFamily::kCans;
}

struct Interval {
  Real low, high;
};

Real apply(const Coefficients& s, Real x) {
  const Real y = x * x;
  return x * (s.a + y * (s.b + y * s.c));
}

/// Returns the image of an interval under one step. The image is exact and not only a bound, so
/// composing all steps gives the exact range.
Interval apply(const Coefficients& s, Interval in) {
  Interval out = {apply(s, in.low), apply(s, in.high)};
  if (out.low > out.high) std::swap(out.low, out.high);
  const auto visit = [&](Real square) {
    if (!(square > 0)) return;
    const Real root = std::sqrt(square);
    for (const Real x : {root, -root}) {
      if (x < in.low || x > in.high) continue;
      out.low = std::min(out.low, apply(s, x));
      out.high = std::max(out.high, apply(s, x));
    }
  };
  // The stationary points satisfy a + 3 b y + 5 c y^2 = 0, where y = x^2.
  const Real a = s.a, b = 3 * Real(s.b), c = 5 * Real(s.c);
  if (c == 0) {
    if (b != 0) visit(-a / b);
    return out;
  }
  const Real disc = b * b - 4 * a * c;
  if (disc < 0) return out;
  visit((-b - std::sqrt(disc)) / (2 * c));
  visit((-b + std::sqrt(disc)) / (2 * c));
  return out;
}

Interval range_of(const CoefficientList& list, Real low, Real high) {
  Interval x = {low / list.input_safety, high / list.input_safety};
  for (const Coefficients& s : list.steps) x = apply(s, x);
  return x;
}

/// Returns the largest sigma, up to kLargestSigma, for which `good` returns true. `good` must be
/// true up to some sigma and false above it.
template <class Good>
double largest_sigma(const Good& good) {
  Real low = 0, high = kLargestSigma;
  if (good(high)) return kLargestSigma;
  for (int i = 0; i < 200 && low < high; ++i) {
    const Real middle = (low + high) / 2;
    if (middle == low || middle == high) break;
    (good(middle) ? low : high) = middle;
  }
  return static_cast<double>(low);
}

bool bounded(const CoefficientList& list, Real sigma) {
  const Interval r = range_of(list, 0, sigma);
  return r.low >= -kHeadroomLimit && r.high <= kHeadroomLimit;
}

bool positive(const CoefficientList& list, Real sigma) {
  return range_of(list, std::min<Real>(kSmallestSigma, sigma), sigma).low > 0;
}

void check_settings(CoefficientFamily family, const CoefficientSettings& s) {
  MUONRT_REQUIRE(s.steps >= 1 && s.steps <= kMaxSteps, Status::kInvalidArgument,
                 "coefficients: ", s.steps, " steps are out of range; give 1 to ", kMaxSteps);
  MUONRT_REQUIRE(s.safety >= 1.0 && s.safety <= 2.0, Status::kInvalidArgument,
                 "coefficients: safety ", s.safety, " is out of range; give 1 to 2");
  const bool generated = is_generated(family);
  MUONRT_REQUIRE(
      generated || s.mode != SafetyMode::kInner, Status::kInvalidArgument,
      "coefficients: ", name_of(family),
      " is not generated, so safety mode inner does not apply; use safety mode none or all");
  if (!generated) return;
  MUONRT_REQUIRE(s.lower_bound > 0.0 && s.lower_bound < 1.0, Status::kInvalidArgument,
                 "coefficients: lower bound ", s.lower_bound,
                 " is out of range; use a number above 0 and below 1, such as 0.001");
  MUONRT_REQUIRE(s.cushion >= 0.0 && s.cushion < 1.0, Status::kInvalidArgument,
                 "coefficients: cushion ", s.cushion,
                 " is out of range; give a number from 0 to below 1, such as 0.02");
  MUONRT_REQUIRE(family != CoefficientFamily::kCans || s.cushion == 0.0, Status::kInvalidArgument,
                 "coefficients: cans has no cushion, but ", s.cushion,
                 " is set; set 0 or use polar_express");
}

/// Returns the limit for the largest image, including rounding. By design, generated lists with few
/// steps exceed kHeadroomLimit within (0, 1]. Such a list is rejected only if rounding increases
/// its largest image too much.
Real most_after(const CoefficientList& list) {
  return std::max<Real>(kHeadroomLimit, range_of(list, 0, 1).high * kGrowth);
}

void check_list(const CoefficientList& list, double reach) {
  for (const Coefficients& s : list.steps) {
    MUONRT_REQUIRE(std::isfinite(s.a) && std::isfinite(s.b) && std::isfinite(s.c),
                   Status::kInvalidArgument, "coefficients: triple (", s.a, ", ", s.b, ", ", s.c,
                   ") is not finite; give finite numbers");
  }
  CoefficientList begun = list;
  begun.steps.clear();
  for (const Coefficients& s : list.steps) {
    begun.steps.push_back(s);
    const Interval r = range_of(begun, 0, 1);
    const Real most = std::max(-r.low, r.high);
    MUONRT_REQUIRE(most <= kMaxInside, Status::kInvalidArgument,
                   "coefficients: the list explodes: after step ", begun.steps.size(), " of ",
                   list.steps.size(), " a singular value within (0, 1] grows to ",
                   static_cast<double>(most), ", at most ", kMaxInside,
                   " is accepted; set a larger safety, or use another list");
  }
  const Real reached = range_of(list, 0, reach).high;
  MUONRT_REQUIRE(reached <= most_after(list), Status::kInvalidArgument,
                 "coefficients: the list has no headroom: a singular value of ", reach,
                 ", to which rounding can move the largest one, grows to ",
                 static_cast<double>(reached), "; set safety to 1.01 or more, or use another list");
  MUONRT_REQUIRE(
      positive(list, reach), Status::kInvalidArgument,
      "coefficients: the list changes sign: singular values above ",
      largest_sigma([&](Real sigma) { return positive(list, sigma); }),
      " give an update in the wrong direction, and rounding can move the largest one to ", reach,
      "; set safety to 1.01 or more, or use another list");
}

/// Returns the steps of a list that was published with a fixed number of steps.
std::vector<Coefficients> printed(CoefficientFamily family, std::span<const Coefficients> list,
                                  int steps) {
  MUONRT_REQUIRE(static_cast<size_t>(steps) == list.size(), Status::kInvalidArgument,
                 "coefficients: ", steps, " steps, but the ", name_of(family), " list is made for ",
                 list.size(), "; set ", list.size(), " steps or use polar_express");
  return {list.begin(), list.end()};
}

}  // namespace

std::span<const CoefficientFamily> coefficient_families() { return kFamilies; }

const char* name_of(CoefficientFamily family) {
  switch (family) {
    case CoefficientFamily::kPolarExpress:
      return "polar_express";
    case CoefficientFamily::kKellerJordan:
      return "keller_jordan";
    case CoefficientFamily::kYouJiacheng:
      return "you_jiacheng";
    case CoefficientFamily::kCans:
      return "cans";
    case CoefficientFamily::kDeepSeekV4:
      return "deepseek_v4";
    case CoefficientFamily::kCubic:
      return "cubic";
    case CoefficientFamily::kClassical:
      return "classical";
    case CoefficientFamily::kAol:
      return "aol";
    case CoefficientFamily::kCustom:
      return "custom";
  }
  return "unknown";
}

int published_steps(CoefficientFamily family) {
  switch (family) {
    case CoefficientFamily::kDeepSeekV4:
    case CoefficientFamily::kClassical:
      return 10;
    case CoefficientFamily::kAol:
      return static_cast<int>(kAolFlash.size());
    case CoefficientFamily::kCustom:
      return 0;
    default:
      return 5;
  }
}

CoefficientSettings default_settings(CoefficientFamily family, int steps) {
  CoefficientSettings s;
  s.steps = steps ? steps : published_steps(family);
  if (family == CoefficientFamily::kPolarExpress) return s;
  s.mode = SafetyMode::kNone;
  s.cushion = 0.0;
  if (family != CoefficientFamily::kCans && family != CoefficientFamily::kCubic) s.safety = 1.0;
  return s;
}

CoefficientList make_coefficients(CoefficientFamily family, const CoefficientSettings& settings,
                                  DType iteration) {
  CoefficientSettings s = settings;
  if (s.mode == SafetyMode::kAuto) s.mode = default_settings(family).mode;
  check_settings(family, s);
  CoefficientList list;
  list.input_safety = s.mode == SafetyMode::kAll ? 1.0 : s.safety;
  switch (family) {
    case CoefficientFamily::kPolarExpress:
    case CoefficientFamily::kCans:
      list.steps = polar_express(s.steps, s.lower_bound, s.cushion,
                                 s.mode == SafetyMode::kInner ? s.safety : 1.0);
      break;
    case CoefficientFamily::kKellerJordan:
      list.steps.assign(static_cast<size_t>(s.steps), kKeller);
      break;
    case CoefficientFamily::kYouJiacheng:
      list.steps = printed(family, kYou, s.steps);
      break;
    case CoefficientFamily::kCubic:
      list.steps = printed(family, kCubic, s.steps);
      break;
    case CoefficientFamily::kAol:
      list.steps = printed(family, kAolFlash, s.steps);
      break;
    case CoefficientFamily::kDeepSeekV4:
      MUONRT_REQUIRE(s.steps > kBeforeSettling, Status::kInvalidArgument, "coefficients: ", s.steps,
                     " steps, but deepseek_v4 begins with ", kBeforeSettling,
                     " of keller_jordan and then settles; set 9 or more (published: 10) or use "
                     "keller_jordan");
      list.steps.assign(kBeforeSettling, kKeller);
      list.steps.resize(static_cast<size_t>(s.steps), kSettling);
      break;
    case CoefficientFamily::kClassical:
      list.steps.assign(static_cast<size_t>(s.steps), kClassicalStep);
      break;
    case CoefficientFamily::kCustom:
      MUONRT_REQUIRE(s.custom.size() == static_cast<size_t>(s.steps), Status::kInvalidArgument,
                     "coefficients: ", s.steps, " steps, but ", s.custom.size(),
                     " triples of a custom list; give one triple for each step");
      list.steps = s.custom;
      break;
  }
  MUONRT_REQUIRE(!list.steps.empty(), Status::kInvalidArgument, "coefficients: family ",
                 static_cast<int32_t>(family),
                 " is unknown; use one of `muonrt info coefficients`");
  if (s.mode == SafetyMode::kAll) list = scaled(list, s.safety);
  check_list(list, iteration == DType::kF32 ? kReachF32 : kReach);
  return list;
}

CoefficientList scaled(const CoefficientList& list, double factor) {
  CoefficientList out = list;
  const Real f = factor, f3 = f * f * f;
  for (Coefficients& s : out.steps) {
    s = {static_cast<double>(s.a / f), static_cast<double>(s.b / f3),
         static_cast<double>(s.c / (f3 * f * f))};
  }
  return out;
}

double image(const CoefficientList& list, double sigma) {
  Real x = sigma / static_cast<Real>(list.input_safety);
  for (const Coefficients& s : list.steps) x = apply(s, x);
  return static_cast<double>(x);
}

Range image_range(const CoefficientList& list, double low, double high) {
  const Interval r = range_of(list, low, high);
  return {static_cast<double>(r.low), static_cast<double>(r.high)};
}

double slope_at_zero(const CoefficientList& list) {
  Real slope = 1 / static_cast<Real>(list.input_safety);
  for (const Coefficients& s : list.steps) slope *= s.a;
  return static_cast<double>(slope);
}

namespace {

Real drift_of(DType dtype) {
  if (dtype == DType::kBF16) return 0x1p-7L;
  return dtype == DType::kF16 ? 0x1p-10L : 0x1p-23L;
}

/// Returns the image of (0, 1], assuming that rounding increases the largest value before every
/// step.
Interval drifted(const CoefficientList& list, DType dtype) {
  Interval x = {static_cast<Real>(kSmallestSigma) / list.input_safety,
                1 / static_cast<Real>(list.input_safety)};
  for (const Coefficients& s : list.steps) x = apply(s, {x.low, x.high * (1 + drift_of(dtype))});
  return x;
}

}  // namespace

bool has_headroom(const CoefficientList& list, DType dtype) {
  const Interval x = drifted(list, dtype);
  return x.high <= most_after(list) && x.low > 0;
}

void require_headroom(const CoefficientList& list, DType dtype) {
  MUONRT_REQUIRE(has_headroom(list, dtype), Status::kInvalidArgument,
                 "coefficients: the list has no headroom between its steps: roundings to ",
                 name_of(dtype), " move the largest singular value to ",
                 static_cast<double>(drifted(list, dtype).high), ", but at most ",
                 static_cast<double>(most_after(list)),
                 " is accepted; set safety_mode to auto, inner or all, or iterate in f32");
}

double headroom(const CoefficientList& list) {
  return largest_sigma([&](Real sigma) { return bounded(list, sigma); });
}

}  // namespace muonrt
