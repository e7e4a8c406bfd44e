#pragma once

#include <string>
#include <utility>
#include <vector>

#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// What the steps that measured found; the same on every rank.
class HealthLog {
 public:
  /// @param names  of the optimizer's parameters, in their order.
  explicit HealthLog(std::vector<std::string> names) : names_(std::move(names)) {}

  /// @param number  of the step in this run, from 1.
  /// Throws where replicas differ, naming parameter, ranks and what differs.
  void add(Health found, int64_t number);

  /// One line for each step.
  std::string summary() const;
  /// One JSON object for each matrix of each step.
  std::vector<std::string> json() const;
  /// Those as a list.
  std::string json_list() const;
  /// Those as lines.
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
