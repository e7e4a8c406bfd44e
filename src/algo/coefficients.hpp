#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt {

/// One Newton-Schulz step: every singular value x becomes a x + b x^3 + c x^5.
struct Coefficients {
  double a, b, c;
  friend bool operator==(const Coefficients&, const Coefficients&) = default;
};

/// The families of coefficient lists. Values are public (C ABI) and are never renumbered.
enum class CoefficientFamily : int32_t {
  kPolarExpress = 0,
  kKellerJordan = 1,
  kYouJiacheng = 2,
  kCans = 3,
  kDeepSeekV4 = 4,
  kCubic = 5,
  kClassical = 6,
  kAol = 7,
  kCustom = 100,
};

/// How a list gets headroom against rounding. Values are public. Sources: the generator of
/// NoahAmsel/PolarExpress (inner), Dao-AILab/gram-newton-schulz (all).
enum class SafetyMode : int32_t {
  kAuto = 0,   // the mode of default_settings for the family
  kInner = 1,  // divides the input and, in the generator, every polynomial except the last
  kAll = 2,    // divides every polynomial of the finished list; the input only by its norm
  kNone = 3,   // keeps the list; divides the input by safety x norm
};

/// The settings of a list. `default_settings` fills them for a family.
struct CoefficientSettings {
  int steps = 5;              // 1 .. kMaxSteps
  double lower_bound = 1e-3;  // generated families: smallest targeted singular value, (0, 1)
  double cushion = 0.02;      // generated families: the fit starts at cushion x upper bound
  double safety = 1.02;       // 1 .. 2
  SafetyMode mode = SafetyMode::kInner;
  std::vector<Coefficients> custom;  // kCustom only; `steps` must be its size
};

/// The steps of a list. The input is divided by input_safety x norm.
struct CoefficientList {
  std::vector<Coefficients> steps;
  double input_safety = 1.0;
  friend bool operator==(const CoefficientList&, const CoefficientList&) = default;
};

constexpr int kMaxSteps = 32;
/// Lists must map singular values up to this well, because rounding can increase the largest one of
/// a normalized matrix: storage in half precision by up to 2^-7, and in f32 the rounding of the
/// norm by less than 2^-20.
constexpr double kReach = 1.0 + 0x1p-7, kReachF32 = 1.0 + 0x1p-20;
/// A list whose |image| exceeds this has no headroom.
constexpr double kHeadroomLimit = 1.5;

std::span<const CoefficientFamily> coefficient_families();
const char* name_of(CoefficientFamily family);

/// Returns the number of steps with which the family was published; 0 for a custom list.
int published_steps(CoefficientFamily family);

/// Returns the settings of the family's published form with `steps` steps (0: published_steps).
/// Polar Express has safety 1.02 in mode inner. CANS and the cubic, which have no headroom without
/// it, have an input factor of 1.02. The others are as published.
CoefficientSettings default_settings(CoefficientFamily family, int steps = 0);

/// Makes the list that a group runs. The triples of Keller Jordan and of the classical family, and
/// the last one of DeepSeek-V4, are repeated; other published lists have a fixed number of steps.
/// Errors: INVALID_ARGUMENT for settings out of range, and for a list that is not finite, that maps
/// a value within (0, 1] beyond 4 after any step, or that changes sign or exceeds kHeadroomLimit
/// within (0, kReach].
/// @param iteration  dtype of the iterates. For f32 the range is (0, kReachF32].
CoefficientList make_coefficients(CoefficientFamily family, const CoefficientSettings& settings,
                                  DType iteration = DType::kBF16);

/// Returns the list with every polynomial applied to x / factor; input_safety is unchanged.
CoefficientList scaled(const CoefficientList& list, double factor);

struct Range {
  double low, high;
};

/// Returns the image of a singular value of the matrix divided by its norm; input_safety is
/// applied.
double image(const CoefficientList& list, double sigma);
/// Returns the smallest and the largest image of [low, high], exact up to rounding.
Range image_range(const CoefficientList& list, double low, double high);
/// Returns the slope at zero, by which noise in null directions grows.
double slope_at_zero(const CoefficientList& list);
/// Returns true if the images stay positive and bounded when every step rounds to `dtype`: before
/// each step the largest singular value grows by 2 units of roundoff.
bool has_headroom(const CoefficientList& list, DType dtype);
/// Errors: INVALID_ARGUMENT with the growth if the list has no headroom in `dtype`.
void require_headroom(const CoefficientList& list, DType dtype);
/// Returns the largest sigma (at most 4) for which |image| <= kHeadroomLimit on all of (0, sigma].
double headroom(const CoefficientList& list);

}  // namespace muonrt
