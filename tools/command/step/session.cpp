#include "command/step/session.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>

#include "base/dtype.hpp"
#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace {

/// Returns the name of the tensor that contains this partial gradient of a parameter. If there is
/// only one partial gradient, the name may have no index.
std::string gradient_name(const TensorModel& file, const StepTensor& t, int64_t partial_grad) {
  const std::string& name = t.entry->name;
  const bool single = t.grads().partial_grads() == 1 && !file.table().find(name + "@0");
  return t.partial && !single ? name + "@" + std::to_string(partial_grad) : name;
}

/// Returns the name without the index of a partial gradient; for example, "w" for "w@12".
std::string_view without_index(std::string_view name) {
  const size_t digits = name.find_last_not_of("0123456789");
  const bool numbered = digits != name.npos && digits + 1 < name.size() && name[digits] == '@';
  return numbered ? name.substr(0, digits) : name;
}

/// Returns whether the file contains the gradient, or at least one partial gradient, of a
/// parameter.
bool has_gradient(const TensorModel& file, const StepTensor& t) {
  for (int64_t a = 0; a < t.grads().partial_grads(); ++a)
    if (file.table().find(gradient_name(file, t, a))) return true;
  return false;
}

void check_gradient(const TensorModel& file, const StepTensor& t, const std::string& name) {
  const TensorEntry* entry = file.table().find(name);
  const std::string where = file.path() + ": gradient " + shown(name);
  if (!entry) {
    throw std::runtime_error(where + " is missing, but the parameter is not frozen; add it, give " +
                             shown(t.entry->name) +
                             " the role frozen, or pass --missing-grad sit-out");
  }
  if (entry->shape != t.entry->shape) {
    throw std::runtime_error(where + ": its shape is " + shape_text(entry->shape) +
                             ", but that of the parameter is " + shape_text(t.entry->shape) +
                             "; pass the gradients of these parameters");
  }
  if (!is_float(entry->dtype)) {
    throw std::runtime_error(where + ": its dtype is " + entry->dtype +
                             ", but must be F32, BF16 or F16; convert it");
  }
}

}  // namespace

StepSession::StepSession(Comm& comm, const StepConfig& config, const TensorModel& params,
                         std::vector<StepTensor>& tensors,
                         const std::vector<std::unique_ptr<TensorModel>>& grads, bool allow_missing,
                         const RunDevice& where)
    : config_(config), tensors_(tensors), rank_(comm.rank()), memory_(where.cuda(), comm.rank()) {
  for (StepTensor& t : tensors) {
    if (!t.steps()) continue;
    used_.push_back(t.rule);
    locals_.emplace_back().tensor = &t;
  }
  std::sort(used_.begin(), used_.end());
  used_.erase(std::unique(used_.begin(), used_.end()), used_.end());
  for (const size_t rule : used_) rules_.emplace_back(config.file, config.rules[rule].config);
  check_gradients(grads, allow_missing);
  params_.reserve(locals_.size());
  for (Local& local : locals_) take_param(params, local);
  if (!empty()) make_optimizer(comm, where);
}

void StepSession::check_gradients(const std::vector<std::unique_ptr<TensorModel>>& grads,
                                  bool allow_missing) {
  for (const auto& file : grads) {
    std::map<std::string_view, const StepTensor*> users;  // by the name of a tensor in the file
    for (Local& local : locals_) {
      const StepTensor& t = *local.tensor;
      if (local.grad_dtype.empty()) local.grad_dtype = "BF16";
      if (allow_missing && !has_gradient(*file, t)) continue;
      for (int64_t a = 0; a < t.grads().partial_grads(); ++a) {
        const std::string name = gradient_name(*file, t, a);
        check_gradient(*file, t, name);
        // The gradients from all files share one buffer. It is bf16 if all gradients are bf16,
        // otherwise f32.
        const TensorEntry& entry = *file->table().find(name);
        if (entry.dtype != "BF16") local.grad_dtype = "F32";
        const auto [user, is_new] = users.emplace(entry.name, &t);
        if (!is_new) {
          throw std::runtime_error(file->path() + ": gradient " + shown(name) + " belongs to " +
                                   shown(user->second->entry->name) + " and to " +
                                   shown(t.entry->name) + "; rename one of the parameters");
        }
      }
    }
    if (users.size() == file->table().entries.size()) continue;
    std::set<std::string_view> frozen;
    for (const StepTensor& t : tensors_)
      if (!t.steps()) frozen.insert(t.entry->name);
    for (const TensorEntry& entry : file->table().entries) {
      // The file may contain the gradient of a frozen parameter, which is not read.
      if (users.contains(entry.name) || frozen.contains(entry.name) ||
          frozen.contains(without_index(entry.name)))
        continue;
      throw std::runtime_error(file->path() + ": gradient " + shown(entry.name) +
                               " belongs to no parameter; remove it, or correct its name");
    }
  }
}

void StepSession::take_param(const TensorModel& params, Local& local) {
  const StepTensor& t = *local.tensor;
  const auto cut = cut_tensor(params, *t.entry, t.layout->stretches(rank_));
  const auto elements = cut.size() / static_cast<size_t>(element_bytes(t.entry->dtype));
  local.data = memory_.allocate(t.f16() ? std::ssize(cut) * 2 : std::ssize(cut));
  for (size_t i = 0; t.f16() && i < elements; ++i) {
    const float value = element_as_float("F16", cut.data() + i * 2);
    std::memcpy(local.data + i * sizeof value, &value, sizeof value);
  }
  if (!t.f16() && !cut.empty()) std::memcpy(local.data, cut.data(), cut.size());
  local.grad_stretches = t.grads().stretches(rank_);
  local.grad =
      memory_.allocate(elements_of(local.grad_stretches) * element_bytes(local.grad_dtype));
  for (const MatrixPart& part : t.parts) {
    muonrt_part_t& p = local.parts.emplace_back();
    muonrt_part_init(&p);
    p.name = part.name.empty() ? nullptr : part.name.c_str();
    (part.columns ? p.cols : p.rows) = part.runs.data();
    (part.columns ? p.n_cols : p.n_rows) = std::ssize(part.runs);
    p.lr_factor = part.lr_factor;
    if (part.normuon_axis && t.config->normuon) p.normuon_axis = bound_axis(*part.normuon_axis);
  }
  muonrt_param_t& p = params_.emplace_back(param());
  p.name = t.entry->name.c_str();
  p.group =
      static_cast<int32_t>(std::lower_bound(used_.begin(), used_.end(), t.rule) - used_.begin());
  p.ndim = static_cast<int32_t>(t.entry->shape.size());
  p.shape = t.entry->shape.data();
  p.dtype = t.half() ? MUONRT_DTYPE_BF16 : MUONRT_DTYPE_F32;
  p.grad_dtype = local.grad_dtype == "BF16" ? MUONRT_DTYPE_BF16 : MUONRT_DTYPE_F32;
  p.layout = t.layout->c();
  p.grad_layout = t.grad_layout ? t.grad_layout->c() : nullptr;
  p.data = local.data;
  p.grad = local.grad;
  p.master_kind =
      t.half() ? t.config->master_kind.value_or(MUONRT_MASTER_AUTO) : MUONRT_MASTER_NONE;
  p.view = t.stack() ? MUONRT_VIEW_STACK : t.flatten() ? MUONRT_VIEW_FLATTEN : MUONRT_VIEW_NONE;
  if (!t.adamw() && (t.config->batch_dims || t.config->row_dims)) {
    p.view = MUONRT_VIEW_NONE;
    p.batch_dims = t.batch_dims();
    p.row_dims = t.row_dims();
  }
  p.transposed = t.transposed();
  p.parts = local.parts.empty() ? nullptr : local.parts.data();
  p.n_parts = std::ssize(local.parts);
  p.qk_clip = rules_[static_cast<size_t>(p.group)].qk_clip();
  rules_[static_cast<size_t>(p.group)].set_exchange(p);
}

void StepSession::make_optimizer(Comm& comm, const RunDevice& where) {
  OptimizerOptions o = bound_options(config_, used_);
  set_device(o, where, rank_);
  std::vector<muonrt_group_t> groups;
  for (const BoundRule& rule : rules_) groups.push_back(rule.group(0));
  optimizer_ = std::make_unique<Optimizer>(comm, o.linked(), groups, params_);
}

const void* StepSession::data(const StepTensor& tensor) {
  Local& local = locals_[static_cast<size_t>(tensor.index)];
  if (!tensor.f16()) return local.data;
  local.rounded.resize(
      static_cast<size_t>(elements_of(tensor.layout->stretches(rank_)) * element_bytes("F16")));
  for (size_t i = 0; i * 2 < local.rounded.size(); ++i) {
    float value;
    std::memcpy(&value, local.data + i * sizeof value, sizeof value);
    const f16 rounded = to_f16(value);
    if (std::isfinite(value) && !std::isfinite(to_f32(rounded)))
      throw std::runtime_error("param " + shown(tensor.entry->name) + ": a value is " +
                               std::to_string(value) +
                               " after the steps, but F16 holds at most 65504; store the parameter "
                               "as BF16 or F32");
    std::memcpy(local.rounded.data() + i * 2, &rounded, 2);
  }
  return local.rounded.data();
}

void StepSession::load(const std::string& folder, const TensorModel& params, bool partial) {
  const bool rounds = std::any_of(locals_.begin(), locals_.end(),
                                  [](const Local& local) { return local.tensor->f16(); });
  muonrt_load_options_t options;
  muonrt_load_options_init(&options);
  // If the file contains F16 values, load the parameters. They are rounded and compared below.
  options.without_params = rounds ? 0 : 1;
  options.partial = partial ? 1 : 0;
  // First set the groups as in the saved step. Notes then mention a setting only if opt.json has
  // changed it.
  set_groups(std::max<int64_t>(saved_steps(folder) - 1, 0));
  optimizer_->load(folder, &options);
  for (const Local& local : locals_) {
    const StepTensor& t = *local.tensor;
    if (!rounds) return;
    const auto cut = cut_tensor(params, *t.entry, t.layout->stretches(rank_));
    if (!cut.empty() && std::memcmp(cut.data(), data(t), cut.size()) != 0)
      throw std::runtime_error(folder + ": the values of param " + shown(t.entry->name) +
                               " differ from those at the time of the save; pass the --params that "
                               "belong to this checkpoint");
  }
}

std::vector<std::string> StepSession::inactive() const {
  std::vector<std::string> out;
  for (const int64_t index : inactive_)
    out.push_back(locals_[static_cast<size_t>(index)].tensor->entry->name);
  return out;
}

void StepSession::load_gradient(const TensorModel& grads, Local& local) {
  const StepTensor& t = *local.tensor;
  if (local.grad_stretches.empty()) return;
  const TensorEntry& entry = grads.at(gradient_name(grads, t, t.grads().partial_grad(rank_)));
  const auto cut = cut_tensor(grads, entry, local.grad_stretches);
  if (entry.dtype == local.grad_dtype) {
    if (!cut.empty()) std::memcpy(local.grad, cut.data(), cut.size());
    return;
  }
  const auto bytes = static_cast<size_t>(element_bytes(entry.dtype));
  for (size_t i = 0; i < cut.size() / bytes; ++i) {
    const float value = element_as_float(entry.dtype, cut.data() + i * bytes);
    std::memcpy(local.grad + i * sizeof value, &value, sizeof value);
  }
}

/// Sets the groups for a step. Steps are counted from 0.
void StepSession::set_groups(int64_t step) {
  for (size_t g = 0; g < rules_.size(); ++g)
    if (!rules_[g].constant())
      optimizer_->set_group(static_cast<int32_t>(g), rules_[g].group(step));
}

muonrt_step_report_t StepSession::step(const TensorModel& grads, const std::vector<float>& logits) {
  set_groups(optimizer_->steps());
  inactive_.clear();
  for (Local& local : locals_) {
    if (has_gradient(grads, *local.tensor)) {
      load_gradient(grads, local);
    } else {
      inactive_.push_back(local.tensor->index);
    }
  }
  muonrt_step_args_t args;
  muonrt_step_args_init(&args);
  args.inactive_params = inactive_.data();
  args.n_inactive_params = std::ssize(inactive_);
  // All rates are 1, because lr_factor contains the learning rate of each rule.
  const std::vector<double> rates(rules_.size(), 1.0);
  args.group_lrs = rates.data();
  args.n_group_lrs = static_cast<int32_t>(rates.size());
  if (!logits.empty()) {
    const auto bytes = std::ssize(logits) * int64_t{sizeof(float)};
    if (!logits_) logits_ = reinterpret_cast<float*>(memory_.allocate(bytes));
    std::memcpy(logits_, logits.data(), static_cast<size_t>(bytes));
    args.qk_logits = logits_;
    args.n_qk_logits = std::ssize(logits);
  }
  if (config_.grad_scale_inv) args.grad_scale_inv = *config_.grad_scale_inv;
  return optimizer_->step(args);
}

}  // namespace muonrt::tool
