#include "algo/restarts.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>

#include "algo/rounding.hpp"

namespace muonrt {
namespace {

constexpr double kSmallest = 1e-10;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Returns restart_metric(). As soon as the metric exceeds `limit`, returns any value above
/// `limit`.
double metric(const CoefficientList& list, const std::vector<int>& restarts,
              const RestartSearch& search, double limit) {
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

std::vector<int> before_every_step(const CoefficientList& list) {
  std::vector<int> all;
  for (int i = 1; i < static_cast<int>(list.steps.size()); ++i) all.push_back(i);
  return all;
}

class Search {
 public:
  Search(const CoefficientList& list, DType dtype, const CoefficientList& standard, double fewest)
      : list_(list),
        dtype_(dtype),
        how_(restart_search(list, dtype)),
        spectra_(compared_spectra(fewest)) {
    const std::vector<int> all = before_every_step(standard);
    for (const TwoLevels& s : spectra_)
      allowed_.push_back(how_.error *
                         std::min(1.0, predicted_error(standard, all, DType::kBF16, s)));
  }

  std::vector<int> run() {
    const int steps = static_cast<int>(list_.steps.size());
    for (int count = 0; count < steps - 1; ++count) {
      best_share_ = std::nextafter(1.0, 2.0);
      std::vector<int> chosen;
      choose(count, chosen);
      if (best_share_ <= 1) return best_;
    }
    return before_every_step(list_);
  }

 private:
  /// Tries all ascending sequences of `count` more restarts after `chosen`, and stores the best
  /// one.
  void choose(int count, std::vector<int>& chosen) {
    if (count == 0) {
      if (!(metric(list_, chosen, how_, how_.bound) <= how_.bound)) return;
      const double share = share_of_allowed(chosen);
      if (!(share < best_share_)) return;
      best_share_ = share;
      best_ = chosen;
      return;
    }
    const int first = chosen.empty() ? 1 : chosen.back() + 1;
    for (int i = first; i < static_cast<int>(list_.steps.size()); ++i) {
      chosen.push_back(i);
      choose(count - 1, chosen);
      chosen.pop_back();
    }
  }

  /// Returns the largest ratio of predicted to allowed error over all spectra. Returns infinity as
  /// soon as a ratio shows that these restarts are no better than the best ones so far. Begins with
  /// the spectrum that excluded the previous candidate.
  double share_of_allowed(const std::vector<int>& restarts) {
    const size_t n = allowed_.size();
    double worst = 0;
    for (size_t k = 0; k < n; ++k) {
      const size_t at = (hardest_ + k) % n;
      const double share = predicted_error(list_, restarts, dtype_, spectra_[at]) / allowed_[at];
      if (!(share < best_share_)) {
        hardest_ = at;
        return kInfinity;
      }
      worst = std::max(worst, share);
    }
    return worst;
  }

  const CoefficientList& list_;
  DType dtype_;
  RestartSearch how_;
  std::vector<TwoLevels> spectra_;
  std::vector<double> allowed_;
  size_t hardest_ = 0;
  double best_share_ = 0;
  std::vector<int> best_;
};

/// The inputs of a search, which identify its result in the cache.
struct Key {
  CoefficientList list, standard;
  DType dtype;
  double fewest;
  friend bool operator==(const Key&, const Key&) = default;
};
constexpr size_t kMaxFound = 64;

}  // namespace

RestartSearch restart_search(const CoefficientList& list, DType dtype) {
  RestartSearch search;
  search.largest = 1.0 / list.input_safety;
  search.points = 801;
  if (dtype == DType::kF32) {
    search.perturbation = 1e-6;
    search.bound = 1e4;
    search.error = 1.0 / 1024;
  }
  return search;
}

double restart_metric(const CoefficientList& list, const std::vector<int>& restarts,
                      const RestartSearch& search) {
  return metric(list, restarts, search, kInfinity);
}

std::vector<int> find_restarts(const CoefficientList& list, DType dtype,
                               const CoefficientList& standard, double fewest) {
  if (static_cast<int>(list.steps.size()) > kMaxSearchedSteps) return before_every_step(list);
  // A search takes some milliseconds. The results are cached, because the optimizers of a process
  // use only a few coefficient lists.
  struct Found {
    Key key;
    std::vector<int> restarts;
  };
  static std::mutex mutex;
  // The list is never freed, so it can be used even while static objects are destroyed.
  static std::vector<Found>& found = *new std::vector<Found>;
  const Key key{list, standard, dtype, fewest};
  {
    const std::lock_guard lock(mutex);
    for (const Found& f : found)
      if (f.key == key) return f.restarts;
  }
  std::vector<int> restarts = Search(list, dtype, standard, fewest).run();
  const std::lock_guard lock(mutex);
  if (found.size() < kMaxFound) found.push_back({key, restarts});
  return restarts;
}

}  // namespace muonrt
