#include "opt_json/health.hpp"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace {

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

void HealthLog::require_equal_replicas(const muonrt_health_t& found, int64_t number) const {
  if (found.replica_param < 0) return;
  throw std::runtime_error("step " + std::to_string(number) + ": replicas differ: the " +
                           kind_name(found.replica_kind) + " of " +
                           shown(names_.at(static_cast<size_t>(found.replica_param))) +
                           " on rank " + std::to_string(found.replica_rank) +
                           " differ from those of rank " + std::to_string(found.replica_reference) +
                           ", although they were equal before the run; check both machines for a "
                           "fault and repeat the run");
}

void HealthLog::add(Health found, int64_t number) {
  require_equal_replicas(found.summary, number);
  steps_.push_back({number, std::move(found)});
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
    out += "health of step " + std::to_string(step.number) + ": " +
           std::to_string(step.found.summary.matrices) + " matrices, ";
    if (worst) {
      char value[32];
      std::snprintf(value, sizeof value, "%.3g", worst->deviation);
      out += std::string("|sigma - 1| up to ") + value + " (" + shown(name_of(*worst)) +
             ", matrix " + std::to_string(worst->index) + "), ";
    }
    out += std::to_string(bad) + " elements of gradients not finite, replicas equal\n";
  }
  return out;
}

std::vector<std::string> HealthLog::json() const {
  std::vector<std::string> out;
  for (const Step& step : steps_) {
    for (const muonrt_matrix_health_t& m : step.found.matrices) {
      // Write NaN as null, because JSON has no NaN.
      const nlohmann::ordered_json row = {{"step", step.number},
                                          {"name", name_of(m)},
                                          {"matrix", m.index},
                                          {"rows", m.rows},
                                          {"cols", m.cols},
                                          {"update_rms", m.update_rms},
                                          {"weight_rms", m.weight_rms},
                                          {"sigma_min", m.sigma_min},
                                          {"sigma_max", m.sigma_max},
                                          {"deviation", m.deviation},
                                          {"largest_q", m.largest_q},
                                          {"nonfinite", m.nonfinite}};
      out.push_back(row.dump());
    }
  }
  return out;
}

std::string HealthLog::json_list() const {
  std::string out = "[";
  for (const std::string& row : json()) out += (out.size() > 1 ? "," : "") + row;
  return out + "]";
}

std::string HealthLog::json_lines() const {
  std::string out;
  for (const std::string& row : json()) out += row + '\n';
  return out;
}

}  // namespace muonrt::tool
