#include "muonrt/step/health.hpp"

#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "muonrt/step/strict_json.hpp"

namespace muonrt::tool {

namespace {

/// "-" and null where there is nothing to tell.
Cell measured(double value) {
  return std::isfinite(value) ? cell::scientific(value) : cell::nothing();
}

const char* kind_name(int32_t kind) {
  switch (kind) {
    case MUONRT_STATE_MOMENTUM:
      return "momentum";
    case MUONRT_STATE_VARIANCE:
      return "variance";
    case MUONRT_STATE_MASTER:
      return "master weights";
    case MUONRT_STATE_REMAINDER:
      return "remainder";
    default:
      return "values";
  }
}

}  // namespace

const std::string& HealthLog::name_of(int64_t param) const {
  for (const StepTensor& t : tensors_) {
    if (t.steps() && t.index == param) return t.entry->name;
  }
  throw std::runtime_error("health: a parameter of no file");
}

void HealthLog::require_equal_replicas(const muonrt_health_t& found, int64_t number) const {
  if (found.replica_param < 0) return;
  throw std::runtime_error(fmt::format(
      "step {}: replicas differ: the {} of {} on rank {} are not those of rank {} (they were, "
      "before the run); look for a faulty machine and repeat",
      number, kind_name(found.replica_kind), shown(name_of(found.replica_param)),
      found.replica_rank, found.replica_reference));
}

void HealthLog::add(const Optimizer& optimizer, const muonrt_report_t& report, int64_t number) {
  if (!report.health) return;
  steps_.push_back({number, optimizer.health()});
  require_equal_replicas(steps_.back().found.summary, number);
}

Table HealthLog::table() const {
  constexpr auto kLeft = Table::Align::kLeft;
  Table table({{"step", "step"},
               {"name", "parameter", kLeft},
               {"matrix", "matrix"},
               {"rows", "rows"},
               {"cols", "columns"},
               {"update_rms", "update RMS"},
               {"weight_rms", "weight RMS"},
               {"sigma_min", "least sigma"},
               {"sigma_max", "largest"},
               {"deviation", "|sigma - 1|"},
               {"largest_q", "max |Q|"},
               {"nonfinite", "not finite"}});
  for (const Step& step : steps_) {
    for (const muonrt_matrix_health_t& m : step.found.matrices) {
      table.add({cell::count(step.number), cell::word(name_of(m.param)), cell::count(m.index),
                 cell::count(m.rows), cell::count(m.cols), measured(m.update_rms),
                 measured(m.weight_rms), measured(m.sigma_min), measured(m.sigma_max),
                 measured(m.deviation), measured(m.largest_q), cell::count(m.nonfinite)});
    }
  }
  return table;
}

std::string HealthLog::summary() const {
  std::string out;
  for (const Step& step : steps_) {
    const muonrt_matrix_health_t* worst = nullptr;
    int64_t bad = 0;
    for (const muonrt_matrix_health_t& m : step.found.matrices) {
      if (m.updated && !(worst && worst->deviation >= m.deviation)) worst = &m;
      bad += m.nonfinite;
    }
    out +=
        fmt::format("health of step {}: {} matrices, ", step.number, step.found.summary.matrices);
    if (worst) {
      out += fmt::format("|sigma - 1| up to {:.3g} ({}, matrix {}), ", worst->deviation,
                         shown(name_of(worst->param)), worst->index);
    }
    out += fmt::format("{} gradients not finite, replicas equal\n", bad);
  }
  return out;
}

void HealthLog::write(const std::string& path) const {
  std::ofstream file(path, std::ios::trunc);
  const auto rows = nlohmann::json::parse(table().json());
  for (const auto& row : rows) file << row.dump() << '\n';
  file.close();
  if (!file) throw std::runtime_error(path + ": cannot be written; check folder and free space");
}

}  // namespace muonrt::tool
