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

/// Values are public (opt.json, C ABI) and are never renumbered.
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

/// How headroom against rounding is bought; public values. Sources: the generator of
/// NoahAmsel/PolarExpress (inner), Dao-AILab/gram-newton-schulz (all).
enum class SafetyMode : int32_t {
  kAuto = 0,   // as default_settings has it for the family
  kInner = 1,  // every polynomial but the last divided inside the generator, and the input too
  kAll = 2,    // the finished list divided, the last included; the input by its norm alone
  kNone = 3,   // the list as it is; the input divided by safety x norm
};

/// What a list is made from. `default_settings` fills it for a family.
struct CoefficientSettings {
  int steps = 5;              // 1 .. kMaxSteps
  double lower_bound = 1e-3;  // generated families: smallest singular value aimed at, (0, 1)
  double cushion = 0.02;      // generated families: the fit starts at cushion x upper bound
  double safety = 1.02;       // 1 .. 2
  SafetyMode mode = SafetyMode::kInner;
  std::vector<Coefficients> custom;  // kCustom only; `steps` must be its size
};

/// The steps, and the factor on the norm: the input is divided by input_safety x norm.
struct CoefficientList {
  std::vector<Coefficients> steps;
  double input_safety = 1.0;
  friend bool operator==(const CoefficientList&, const CoefficientList&) = default;
};

constexpr int kMaxSteps = 32;
/// Singular values up to this must be mapped well, because rounding moves the largest one of a
/// normalized matrix: its storage in half precision by up to 2^-7; in f32 the roundings of the norm
/// by less than 2^-20.
constexpr double kReach = 1.0 + 0x1p-7, kReachF32 = 1.0 + 0x1p-20;
/// |p| above this counts as lost headroom.
constexpr double kHeadroomLimit = 1.5;

std::span<const CoefficientFamily> coefficient_families();
const char* name_of(CoefficientFamily family);

/// How many steps the family was published with; 0 for a custom list.
int published_steps(CoefficientFamily family);

/// The family's published form with `steps` steps (0: published_steps): Polar Express inner / 1.02;
/// CANS as generated and the cubic as printed, with an input factor of 1.02 (they have no headroom
/// of their own); the others as printed; a custom list as it is.
CoefficientSettings default_settings(CoefficientFamily family, int steps = 0);

/// The list a group runs. Keller Jordan's triple and the classical one are repeated, DeepSeek-V4's
/// last too; the other printed lists have as many steps as were published.
/// Errors: INVALID_ARGUMENT for settings out of range, and for a list that is not finite, that
/// takes some value within (0, 1] beyond 4 after any of its steps, or that changes sign or loses
/// its headroom within (0, kReach]; the message says which and what to do.
/// @param iteration  dtype of the iterates; f32: within (0, kReachF32].
CoefficientList make_coefficients(CoefficientFamily family, const CoefficientSettings& settings,
                                  DType iteration = DType::kBF16);

/// Every polynomial, the last included, acting on x / factor; the input's factor is kept.
CoefficientList scaled(const CoefficientList& list, double factor);

struct Range {
  double low, high;
};

/// Image of a singular value (of the matrix divided by its norm), input factor included.
double image(const CoefficientList& list, double sigma);
/// Smallest and largest image of [low, high], exact up to rounding.
Range image_range(const CoefficientList& list, double low, double high);
/// Gain of noise in null directions.
double slope_at_zero(const CoefficientList& list);
/// Whether the images stay bounded, and positive, though every step's result is rounded to `dtype`:
/// the largest singular value may grow by 2 units of roundoff before each.
bool has_headroom(const CoefficientList& list, DType dtype);
/// Errors: INVALID_ARGUMENT where it has none, with the growth.
void require_headroom(const CoefficientList& list, DType dtype);
/// Largest sigma (at most 4) such that |image| <= kHeadroomLimit on all of (0, sigma].
double headroom(const CoefficientList& list);

}  // namespace muonrt
