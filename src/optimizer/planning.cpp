#include "optimizer/planning.hpp"

#include "optimizer/consistency_check.hpp"
#include "optimizer/problem.hpp"

namespace muonrt {

Planning::Planning(OptimizerSettings settings, int world, bool checked)
    : settings_(std::move(settings)) {
  constexpr int kNoRank = -1;  // holds no elements, so it needs no buffers
  for (ParamSettings& p : settings_.params) {
    p.data = nullptr;
    p.grad = nullptr;
    p.master = nullptr;
    p.local_shape_given = false;
  }
  if (!checked) {
    validate(settings_, kNoRank, world);
    assign_owners(settings_, world);
  }
  pipelines_ = StepPipelines(settings_, make_newton_schulz(settings_), world);
  const bool gpu = settings_.device == DeviceKind::kCuda;
  const CudaRules gpu_rules(settings_.symmetric != SymmetricProvider::kVendor);
  const HostRules host_rules;
  const MatrixRules& rules = gpu ? static_cast<const MatrixRules&>(gpu_rules)
                                 : static_cast<const MatrixRules&>(host_rules);
  reports_ = pipelines_.report(rules, settings_.health_every > 0,
                               consistency_check_bytes(plan(), settings_));
}

}  // namespace muonrt
