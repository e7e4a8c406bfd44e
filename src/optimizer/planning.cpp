#include "optimizer/planning.hpp"

#include "optimizer/consistency_check.hpp"
#include "optimizer/problem.hpp"

namespace muonrt {

const MatrixRules& matrix_rules(const OptimizerSettings& settings) {
  static const HostRules host;
  static const CudaRules own, vendor(false);
  if (settings.device == DeviceKind::kHost) return host;
  return settings.symmetric == SymmetricProvider::kVendor ? vendor : own;
}

Planning::Planning(OptimizerSettings settings, int world, bool checked)
    : settings_(std::move(settings)) {
  constexpr int kNoRank = -1;  // a rank without elements, which needs no buffers
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
  reports_ = pipelines_.report(matrix_rules(settings_), settings_.health_every > 0,
                               consistency_check_bytes(plan(), settings_));
}

}  // namespace muonrt
