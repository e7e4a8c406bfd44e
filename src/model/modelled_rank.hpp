#pragma once

#include <memory>
#include <vector>

#include "model/modelled_device.hpp"
#include "optimizer/methods/qk_clipper.hpp"
#include "optimizer/param_tables.hpp"
#include "optimizer/planning.hpp"
#include "optimizer/state.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// One rank of an optimizer on the modelled backend. It records what the driver enqueues in a full
/// step in which every parameter is active.
class ModelledRank {
 public:
  /// @param planning, methods, profile  They must outlive the object.
  ModelledRank(const Planning& planning, const std::vector<NewtonSchulz>& methods,
               const MachineProfile& profile, int32_t rank);

  RankRecording& recording() { return device_.recording(); }
  const Pipeline& pipeline() const { return *pipeline_; }

 private:
  void set_footprint(const Planning& planning, const MachineProfile& profile, int32_t rank);
  int64_t committed() const;
  void number_exchanges();

  const OptimizerSettings& settings_;
  ModelledDevice device_;
  ModelledComm comm_;
  State state_;
  ParamTables tables_;
  QkClipper clipper_;
  std::unique_ptr<Pipeline> pipeline_;
};

}  // namespace muonrt
