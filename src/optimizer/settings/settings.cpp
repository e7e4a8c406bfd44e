#include "optimizer/settings/describe.hpp"
#include "plan/machine/named_profiles.hpp"

namespace muonrt {

GroupSettings GroupSettings::defaults(Role role) {
  GroupSettings g;
  g.role = role;
  g.weight_decay = role == Role::kMuon ? 0.1 : 0.01;
  return g;
}

OptimizerSettings OptimizerSettings::defaults(DeviceKind kind) {
  OptimizerSettings out;
  out.device = kind;
  if (kind == DeviceKind::kHost) return out;
  out.iteration_dtype = DType::kBF16;
  // On a GPU, the Gram form uses f16: its iterates are bounded, and f16 has three mantissa bits
  // more than bf16.
  out.gram_iteration_dtype = DType::kF16;
  out.chunk_bytes = 256 << 20;
  return out;
}

MachineProfile machine_of(const OptimizerSettings& settings) {
  const bool cuda = settings.device == DeviceKind::kCuda;
  const std::string machine = !settings.machine.empty() ? settings.machine : cuda ? "h100" : "host";
  MachineProfile out;
  try {
    out = find_profile(machine, "options: machine");
  } catch (const Error& e) {  // CORRUPT would suggest a damaged file
    throw Error(e.status() == Status::kCorrupt ? kInvalidArg : e.status(), e.message());
  }
  MUONRT_REQUIRE(out.gpu == cuda, kInvalidArg, "options: machine '", out.name,
                 out.gpu ? "' is a GPU, but device is MUONRT_DEVICE_HOST"
                         : "' has no GPU, but device is MUONRT_DEVICE_CUDA",
                 "; choose a machine with this kind of device, or omit it");
  return out;
}

void change(GroupSettings& current, const GroupSettings& given, const std::string& who) {
  const auto require_equal = [&](const auto& value, const auto& at_creation, const char* field,
                                 const auto& show) {
    MUONRT_REQUIRE(value == at_creation, kInvalidArg, who, ": ", field, " is ", show(value),
                   ", but ", show(at_creation),
                   " at creation, and it cannot change; create a new optimizer");
  };
  if (!given.name.empty())
    require_equal(given.name, current.name, "name",
                  [](const std::string& name) { return cat("'", name, "'"); });
  visit_group_fields([&](const auto& row) {
    if constexpr (requires { row.member; }) {
      if (row.has(kFixed))
        require_equal(row.member(given), row.member(current), row.name,
                      [&](const auto& value) { return text_of(row, value); });
    }
  });
  visit_group_fields([&](const auto& row) {
    if constexpr (requires { row.member; }) {
      if (!row.has(kFixed)) row.member(current) = row.member(given);
    }
  });
}

void require_param(const OptimizerSettings& settings, int64_t param, const char* where) {
  MUONRT_REQUIRE(param >= 0 && param < std::ssize(settings.params), kInvalidArg, where,
                 "param index is ", param, ", but there are ", settings.params.size(),
                 " parameters; use an index below that");
}

double decay_scale(WeightDecayKind kind, double lr_factor) {
  if (kind == WeightDecayKind::kIndependent) return 1.0;
  return kind == WeightDecayKind::kLrSquared ? lr_factor * lr_factor : lr_factor;
}

const char* name_of(MasterKind kind) {
  switch (kind) {
    case MasterKind::kAuto:
      return "auto";
    case MasterKind::kNone:
      return "none";
    case MasterKind::kOwned:
      return "owned";
    case MasterKind::kCaller:
      return "caller";
    case MasterKind::kRemainder:
      return "remainder";
    case MasterKind::kStochastic:
      return "stochastic";
  }
  return "unknown";
}

bool owns_master(const ParamSettings& param) {
  return param.master_kind == MasterKind::kOwned ||
         (param.master_kind == MasterKind::kAuto && param.dtype != DType::kF32);
}

}  // namespace muonrt
