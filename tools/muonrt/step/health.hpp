#pragma once

#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "muonrt/step/tensors.hpp"
#include "muonrt/table.hpp"

namespace muonrt::tool {

/// What the steps that measured found; the same on every rank.
class HealthLog {
 public:
  explicit HealthLog(const std::vector<StepTensor>& tensors) : tensors_(tensors) {}

  /// Takes what `report`'s step measured, if it did.
  /// @param number  of the step in this run, from 1.
  /// Throws where replicas differ, naming parameter, ranks and what differs.
  void add(const Optimizer& optimizer, const muonrt_report_t& report, int64_t number);

  bool empty() const { return steps_.empty(); }
  /// One row for each matrix of each step that measured.
  Table table() const;
  /// One line for each step that measured.
  std::string summary() const;
  /// Writes the table as JSON lines. Throws where it cannot.
  void write(const std::string& path) const;

 private:
  struct Step {
    int64_t number;
    Health found;
  };
  const std::string& name_of(int64_t param) const;
  void require_equal_replicas(const muonrt_health_t& found, int64_t number) const;

  const std::vector<StepTensor>& tensors_;
  std::vector<Step> steps_;
};

}  // namespace muonrt::tool
