#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <vector>

#include "support/bits_cases.hpp"
#include "support/world.hpp"

/// What the tests of health statistics share.
namespace health_cases {

using namespace muonrt;

inline world::Case measured(const bits::Factors& f, int64_t every = 1, int steps = 2) {
  world::Case c = bits::make(f, false, steps);
  c.settings.health_every = every;
  return c;
}

/// The reports of rank 0 after each step, and whether all ranks had the same bits.
struct Told {
  std::vector<HealthReport> reports;
  world::Tensors tensors;
  bool equal = true;
};

inline bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

inline bool same(const HealthReport& a, const HealthReport& b) {
  bool equal = a.step == b.step && a.skipped == b.skipped &&
               a.matrices.size() == b.matrices.size() && a.difference.param == b.difference.param &&
               a.difference.rank == b.difference.rank;
  for (size_t i = 0; equal && i < a.matrices.size(); ++i) {
    const MatrixHealth &x = a.matrices[i], &y = b.matrices[i];
    equal = x.param == y.param && x.index == y.index && x.rows == y.rows && x.cols == y.cols &&
            x.updated == y.updated && x.nonfinite == y.nonfinite &&
            same_bits(x.update_rms, y.update_rms) && same_bits(x.weight_rms, y.weight_rms) &&
            same_bits(x.sigma_min, y.sigma_min) && same_bits(x.sigma_max, y.sigma_max) &&
            same_bits(x.deviation, y.deviation) && same_bits(x.largest_q, y.largest_q);
  }
  return equal;
}

/// @param between  called on every rank after its gradients are filled.
inline Told tell(const world::Case& c,
                 const std::function<void(world::Rank&, int, int64_t)>& between = {}) {
  Told out;
  std::vector<std::vector<HealthReport>> all(static_cast<size_t>(c.world));
  std::vector<std::vector<bool>> seen;
  std::mutex mutex;
  world::on_ranks(c.world, [&](Comm& comm) {
    comm.set_timeout_ms(60000);
    world::Rank rank(c, comm);
    auto& mine = all[static_cast<size_t>(comm.rank())];
    for (int64_t step = 0; step < c.steps; ++step) {
      rank.fill_gradients(step);
      if (between) between(rank, comm.rank(), step);
      StepReport report;
      rank.step_only(step, report);
      mine.push_back(rank.optimizer().health());
    }
    const std::lock_guard lock(mutex);
    rank.add_to(out.tensors, seen);
  });
  out.reports = all[0];
  for (const auto& reports : all)
    for (size_t s = 0; s < reports.size(); ++s)
      out.equal = out.equal && same(reports[s], all[0][s]);
  return out;
}

inline std::vector<float> floats(const std::vector<unsigned char>& bytes) {
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

inline double rms(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum / static_cast<double>(v.size()));
}

}  // namespace health_cases
