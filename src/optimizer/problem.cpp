#include "optimizer/problem.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"

namespace muonrt {

namespace {

NewtonSchulz make_one(const GroupSettings& group, const OptimizerSettings& all) {
  CoefficientSettings settings = default_settings(group.coefficients, group.steps);
  settings.lower_bound = group.lower_bound;
  if (group.coefficients == CoefficientFamily::kPolarExpress) settings.cushion = group.cushion;
  if (group.safety != 0) settings.safety = group.safety;
  if (group.safety_mode != SafetyMode::kAuto) settings.mode = group.safety_mode;
  settings.custom = group.custom;
  NewtonSchulzOptions options;
  options.gram_iteration = group.iteration_dtype ? group.iteration_dtype : all.gram_iteration_dtype;
  options.normalize = group.normalize;
  options.normalize_eps = group.normalize_eps;
  options.row_scaling = group.row_scaling;
  options.renormalize = group.renormalize;
  options.safety_chosen = group.safety != 0;
  options.mode_chosen = group.safety_mode != SafetyMode::kAuto;
  options.restarts = group.gram_restarts;
  return muonrt::make_newton_schulz(group.coefficients, settings,
                                    group.iteration_dtype.value_or(all.iteration_dtype), options);
}

}  // namespace

std::vector<NewtonSchulz> make_newton_schulz(const OptimizerSettings& settings) {
  std::vector<NewtonSchulz> out(settings.groups.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const GroupSettings& g = settings.groups[i];
    if (g.role != Role::kMuon) continue;
    try {
      out[i] = make_one(g, settings);
    } catch (const Error& e) {
      throw Error(e.status(), cat("group ", i, " '", g.name, "': ", e.message()));
    }
  }
  return out;
}

namespace {

/// Returns a part as a separate matrix, with the scale for its shape. In the arguments, rows are
/// outputs and columns are inputs. In the result, rows and columns refer to the stored matrix.
MatrixPart matrix_part(std::string name, Runs rows, Runs cols, const PartSettings& part,
                       const ParamSettings& p, const GroupSettings& g) {
  const double rate = p.lr_factor * part.lr_factor;
  const double factor = g.scale_factor * part.scale_factor * rate;
  const double scale = update_scale(g.scale_rule, factor, length(rows), length(cols));
  if (p.transposed) std::swap(rows, cols);
  return {std::move(name), std::move(rows), std::move(cols), scale,
          decay_scale(g.weight_decay_kind, rate)};
}

/// Adds the blocks into which the group's grid divides a part. The block size is rounded up, so the
/// last blocks may be smaller. Empty blocks are omitted.
void add_blocks(std::vector<MatrixPart>& to, const PartSettings& part, const ParamSettings& p,
                const GroupSettings& g) {
  const int64_t rows = length(part.rows), cols = length(part.cols);
  const int64_t height = ceil_div(rows, g.blocks.rows), width = ceil_div(cols, g.blocks.cols);
  for (int64_t i = 0; i * height < rows; ++i) {
    for (int64_t j = 0; j * width < cols; ++j) {
      to.push_back(matrix_part(cat(part.name, part.name.empty() ? "" : " ", "block ", i, ",", j),
                               slice(part.rows, i * height, (i + 1) * height),
                               slice(part.cols, j * width, (j + 1) * width), part, p, g));
    }
  }
}

std::vector<MatrixPart> parts_of(const ParamSettings& p, const GroupSettings& g, bool in_blocks) {
  std::vector<MatrixPart> out;
  if (in_blocks && g.blocks.rows * g.blocks.cols > 1) {
    const auto [rows, cols] = outputs_and_inputs(p);
    PartSettings all;
    all.rows = whole(rows);
    all.cols = whole(cols);
    if (p.parts.empty()) add_blocks(out, all, p, g);
    for (const PartSettings& part : p.parts) add_blocks(out, part, p, g);
    return out;
  }
  for (const PartSettings& part : p.parts)
    out.push_back(matrix_part(part.name, part.rows, part.cols, part, p, g));
  return out;
}

FormChoice form_of(const NewtonSchulz& method, const ParamSettings& p, const GroupSettings& g) {
  try {
    return permitted_form(method, g.form);
  } catch (const Error& e) {
    throw Error(e.status(),
                cat("param '", p.name, "': group ", p.group, " '", g.name, "': ", e.message()));
  }
}

}  // namespace

int block_period(const OptimizerSettings& settings) {
  int period = 1;
  for (const GroupSettings& g : settings.groups) {
    if (g.role == Role::kMuon) period = std::max(period, g.blocks.period);
  }
  return period;
}

Problem make_problem(const OptimizerSettings& settings, const std::vector<NewtonSchulz>& methods,
                     int world, bool in_blocks) {
  Problem problem;
  problem.options.world = world;
  problem.options.transport_dtype = settings.transport_dtype;
  problem.options.chunk_bytes = settings.serial ? 1 : settings.chunk_bytes;
  // A single rank exchanges nothing, so there is nothing to overlap with products.
  problem.options.window = world == 1 ? 1 : settings.window;
  problem.options.serial = settings.serial;
  problem.options.commit = settings.commit;
  problem.options.replica_mode = settings.replica_mode;
  problem.options.max_peers = settings.max_peers;
  problem.options.machine = machine_of(settings);
  if (settings.device == DeviceKind::kCuda) problem.options.least_part = kGpuLeastPart;
  problem.params.reserve(settings.params.size());
  for (const ParamSettings& p : settings.params) {
    const GroupSettings& g = settings.groups[p.group];
    const auto index = static_cast<int32_t>(&p - settings.params.data());
    ParamSpec spec;
    spec.name = p.name;
    spec.role = g.role;
    spec.layout = p.layout;
    spec.grad_layout = p.grad_layout;
    spec.dtype = p.dtype;
    spec.grad_dtype = p.grad_dtype;
    spec.group = p.group;
    spec.newton_schulz_steps = g.steps;
    spec.owner = p.owner;
    spec.owners = p.owners;
    spec.update_every = g.update_every;
    spec.by_callback = g.role == Role::kMuon && settings.exchange_callbacks;
    spec.priority = p.priority;
    for (const StateEntry& entry : state_of(settings, index)) {
      const bool weight = entry.kind == StateKind::kMaster || entry.kind == StateKind::kRemainder;
      if (entry.kind == StateKind::kMomentum) spec.momentum_bytes = size_of(entry.dtype);
      if (weight && entry.ours) spec.weight_bytes = size_of(entry.dtype);
      if (entry.location == StateLocation::kOwnedNeurons)
        spec.owner_bytes = normuon_bytes(normuon_neurons(settings, index));
      spec.master = spec.master || weight;
    }
    if (g.role == Role::kMuon) {
      const auto [rows, cols] = outputs_and_inputs(p);
      spec.form = form_of(methods[p.group], p, g);
      spec.gram_restarts = methods[p.group].gram_restarts;
      // With kAuto, the form is not known yet. Either dtype can be used here, because products run
      // at the same rate in both.
      spec.iteration_dtype = methods[p.group].iteration_of(
          spec.form == FormChoice::kGram ? Form::kGram : Form::kStandard);
      spec.update_scale = update_scale(g.scale_rule, g.scale_factor * p.lr_factor, rows, cols);
      spec.transposed = p.transposed;
      spec.decay_scale = decay_scale(g.weight_decay_kind, p.lr_factor);
      spec.stack = p.view == View::kStack;
      spec.parts = parts_of(p, g, in_blocks && g.blocks.period > 1);
    }
    problem.params.push_back(std::move(spec));
  }
  return problem;
}

}  // namespace muonrt
