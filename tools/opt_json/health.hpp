#pragma once

#include <string>
#include <utility>
#include <vector>

#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// The health statistics of all steps that collected them. They are equal on every rank.
class HealthLog {
 public:
  /// @param names  the names of the optimizer's parameters, in the optimizer's order.
  explicit HealthLog(std::vector<std::string> names) : names_(std::move(names)) {}

  /// Adds the statistics of a step. If replicas differ, throws a std::runtime_error that names the
  /// parameter and the ranks.
  /// @param number  the number of the step in this run, counted from 1.
  void add(Health found, int64_t number);

  /// Returns a text with one line for each step.
  std::string summary() const;
  /// Returns JSON texts, with one object for each matrix of each step.
  std::vector<std::string> json() const;
  /// Returns these objects as a JSON list.
  std::string json_list() const;
  /// Returns these objects with one object in each line.
  std::string json_lines() const;

 private:
  struct Step {
    int64_t number;
    Health found;
  };
  const std::string& name_of(const muonrt_matrix_health_t& matrix) const {
    return names_.at(static_cast<size_t>(matrix.param));
  }
  void require_equal_replicas(const muonrt_health_t& found, int64_t number) const;

  std::vector<std::string> names_;
  std::vector<Step> steps_;
};

}  // namespace muonrt::tool
