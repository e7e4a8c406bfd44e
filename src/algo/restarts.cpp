#include "algo/restarts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.hpp"

namespace muonrt {
namespace {

constexpr int kMaxRestarts = 4;
constexpr double kSmallest = 1e-10;
// One more restart has to bring the metric down to this share of it.
constexpr double kWorthwhile = 0.9;

/// restart_metric, given up as soon as it passes `limit`.
double metric(const CoefficientList& list, const std::vector<int>& restarts,
              const RestartSearch& search, double limit) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const size_t steps = list.steps.size();
  std::array<bool, kMaxSteps> restart{};
  for (const int i : restarts) restart[static_cast<size_t>(i)] = true;
  std::array<double, kMaxSteps> least, most;
  least.fill(kInfinity);
  most.fill(0.0);
  const double growth = std::pow(search.largest / kSmallest, 1.0 / (search.points - 1));
  double start = kSmallest, worst = 0.0;
  for (int point = 0; point < search.points; ++point, start *= growth) {
    double x = start, q = 1.0, r = x * x - search.perturbation;
    for (size_t i = 0; i < steps; ++i) {
      if (restart[i]) {
        x *= q;
        q = 1.0;
        r = x * x - search.perturbation;
      }
      const Coefficients& s = list.steps[i];
      const double z = s.a + r * (s.b + r * s.c);
      q *= z;
      r *= z * z;
      if (!std::isfinite(q) || !std::isfinite(r) || q == 0.0) return kInfinity;
      least[i] = std::min(least[i], std::fabs(q));
      most[i] = std::max(most[i], std::fabs(q));
      worst = std::max(worst, most[i] / least[i]);
    }
    if (worst > limit) return worst;
  }
  return worst;
}

/// All ascending choices of `count` more places in 1 .. steps-1 after `chosen`, none further from
/// the one before, nor the last from the end, than `longest` steps; keeps the best.
void choose(const CoefficientList& list, const RestartSearch& search, int count,
            std::vector<int>& chosen, double& best, std::vector<int>& best_choice) {
  const int steps = static_cast<int>(list.steps.size());
  const int last = chosen.empty() ? 0 : chosen.back();
  if (count == 0) {
    if (steps - last > search.longest) return;
    const double value = metric(list, chosen, search, best);
    if (value < best) {
      best = value;
      best_choice = chosen;
    }
    return;
  }
  for (int i = last + 1; i < std::min(steps, last + search.longest + 1); ++i) {
    chosen.push_back(i);
    choose(list, search, count - 1, chosen, best, best_choice);
    chosen.pop_back();
  }
}

}  // namespace

RestartSearch restart_search(const CoefficientList& list, DType dtype) {
  RestartSearch search;
  search.largest = 1.0 / list.input_safety;
  switch (dtype) {
    case DType::kF16:
      search.longest = 4;
      break;
    case DType::kBF16:
      search.longest = 2;
      break;
    case DType::kF32:
      search.perturbation = 1e-6;
      search.bound = 1e4;
      search.longest = 3;
      break;
  }
  return search;
}

double restart_metric(const CoefficientList& list, const std::vector<int>& restarts,
                      const RestartSearch& search) {
  return metric(list, restarts, search, std::numeric_limits<double>::infinity());
}

std::optional<std::vector<int>> search_restarts(const CoefficientList& list,
                                                const RestartSearch& search) {
  const int steps = static_cast<int>(list.steps.size());
  std::optional<std::vector<int>> found;
  double limit = std::nextafter(search.bound, 2 * search.bound);
  for (int count = 0; count <= std::min(kMaxRestarts, steps - 1); ++count) {
    std::vector<int> chosen, best_choice;
    double best = limit;
    choose(list, search, count, chosen, best, best_choice);
    if (!(best < limit)) continue;
    found = best_choice;
    if (best <= search.good) break;
    limit = kWorthwhile * best;
  }
  return found;
}

std::vector<int> find_restarts(const CoefficientList& list, DType dtype) {
  const auto found = search_restarts(list, restart_search(list, dtype));
  MUONRT_REQUIRE(found.has_value(), Status::kNotSupported, "Gram form: no set of up to ",
                 kMaxRestarts, " restarts keeps this coefficient list bounded in ", name_of(dtype),
                 "; take the standard form, an iteration in f32, or a list with more safety");
  return *found;
}

}  // namespace muonrt
