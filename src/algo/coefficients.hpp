#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt {

/// The coefficients of one Newton-Schulz step, which maps every singular value x to
/// a x + b x^3 + c x^5.
struct Coefficients {
  double a, b, c;
  friend bool operator==(const Coefficients&, const Coefficients&) = default;
};

/// The families of coefficient lists. The values are part of the C ABI and are never renumbered.
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

/// Selects how a list is modified so that rounding errors do not grow. The values are part of the C
/// ABI. Sources: the generator of NoahAmsel/PolarExpress (inner), Dao-AILab/gram-newton-schulz
/// (all).
enum class SafetyMode : int32_t {
  kAuto = 0,  // the mode that default_settings() returns for the family
  /// The factor divides the input and, while the list is generated, every polynomial except the
  /// last.
  kInner = 1,
  kAll = 2,   // divides every polynomial of the finished list, and the input only by its norm
  kNone = 3,  // does not change the list, and divides the input by safety x norm
};

/// The settings of a coefficient list. default_settings() returns the published settings of a
/// family.
struct CoefficientSettings {
  int steps = 5;  // number of steps, 1 to kMaxSteps
  /// For generated families: the smallest singular value for which the list is optimized, between 0
  /// and 1.
  double lower_bound = 1e-3;
  double cushion = 0.02;  // for generated families: the fit starts at cushion x upper bound
  double safety = 1.02;   // safety factor, 1 to 2
  SafetyMode mode = SafetyMode::kInner;
  std::vector<Coefficients> custom;  // only for kCustom; the size must be `steps`
};

/// A list of steps. Before the first step, the input is divided by input_safety x norm.
struct CoefficientList {
  std::vector<Coefficients> steps;
  double input_safety = 1.0;
  friend bool operator==(const CoefficientList&, const CoefficientList&) = default;
};

constexpr int kMaxSteps = 32;
/// Lists must also work for singular values up to these limits, because rounding can increase the
/// largest singular value of a normalized matrix. Storing the matrix in half precision increases
/// this value by up to 2^-7. In f32, rounding the norm increases it by less than 2^-20.
constexpr double kReach = 1.0 + 0x1p-7, kReachF32 = 1.0 + 0x1p-20;
/// A list has no headroom if it maps a singular value to a larger absolute value than this.
constexpr double kHeadroomLimit = 1.5;

std::span<const CoefficientFamily> coefficient_families();
const char* name_of(CoefficientFamily family);

/// Returns the number of steps with which the family was published, or 0 for a custom list.
int published_steps(CoefficientFamily family);

/// Returns the settings with which the family was published, for `steps` steps (0 means
/// published_steps()). Polar Express has safety 1.02 in mode kInner. CANS and the cubic list would
/// have no headroom without an additional factor of 1.02, which divides the input. All other
/// families have no safety factor.
CoefficientSettings default_settings(CoefficientFamily family, int steps = 0);

/// Creates the list of steps that a group uses. The Keller Jordan and classical families repeat one
/// step, and DeepSeek-V4 repeats its last step. Other published lists have a fixed number of steps.
/// Errors: INVALID_ARGUMENT if a setting is out of range, a coefficient is non-finite, a step maps
/// a value in (0, 1] to a value above 4, or the list changes sign or exceeds the larger of
/// kHeadroomLimit and 1.25 times its largest image of (0, 1] within (0, kReach].
/// @param iteration  Dtype of the iterates. For f32, the list must have headroom only within (0,
///     kReachF32].
CoefficientList make_coefficients(CoefficientFamily family, const CoefficientSettings& settings,
                                  DType iteration = DType::kBF16);

/// Returns the list in which every polynomial is applied to x / factor. input_safety does not
/// change.
CoefficientList scaled(const CoefficientList& list, double factor);

struct Range {
  double low, high;
};

/// Divides a singular value of the normalized matrix by input_safety, and returns the value to
/// which the list maps the result.
double image(const CoefficientList& list, double sigma);
/// Returns the smallest and the largest image of the values in [low, high], exact up to rounding.
Range image_range(const CoefficientList& list, double low, double high);
/// Returns the slope of the image at zero. Rounding errors in null directions grow by this factor.
double slope_at_zero(const CoefficientList& list);
/// Returns true if the images remain positive and bounded when every step rounds to `dtype`.
/// Rounding is modelled by increasing the largest singular value by 2 units of roundoff before each
/// step.
bool has_headroom(const CoefficientList& list, DType dtype);
/// Checks that the list has headroom in `dtype`. Errors: INVALID_ARGUMENT, with the factor by which
/// values grow.
void require_headroom(const CoefficientList& list, DType dtype);
/// Returns the largest sigma, up to 4, for which the absolute value of the image is at most
/// kHeadroomLimit on all of (0, sigma].
double headroom(const CoefficientList& list);

}  // namespace muonrt
