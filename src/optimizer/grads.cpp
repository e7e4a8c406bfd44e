#include "optimizer/intervals.hpp"
#include "optimizer/optimizer.hpp"

// Gradients that are bound after creation: they are read while steps write.

namespace muonrt {

// Ascending and apart from one another, so that one look finds what a gradient would overlap.
void Optimizer::list_written() {
  const auto add = [&](const void* data, int64_t numel, DType dtype, const char* what, size_t i) {
    if (data && numel > 0)
      written_.push_back(interval_of(data, numel, dtype, what, settings_.params[i].name));
  };
  for (size_t i = 0; i < settings_.params.size(); ++i) {
    const ParamView& view = params_[i];
    add(view.param, view.numel, view.param_dtype, "data", i);
  }
  for (const StatePart& part : state_.parts())
    add(part.data, part.numel, part.dtype, name_of(part.kind), static_cast<size_t>(part.param));
  std::sort(written_.begin(), written_.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
}

void Optimizer::check_grad(int64_t param, const void* grad) const {
  check_param(param);
  const ParamView& view = params_[param];
  const Interval given = interval_of(grad, view.grads(), view.grad_dtype, "grad",
                                     settings_.params[static_cast<size_t>(param)].name);
  const auto behind =
      std::upper_bound(written_.begin(), written_.end(), given.begin,
                       [](uintptr_t begin, const Interval& other) { return begin < other.end; });
  if (grad && behind != written_.end()) require_apart(given, *behind);
  require_reach(param, "grad", grad);
}

void Optimizer::set_grad(int64_t param, const void* grad) {
  check_grad(param, grad);
  params_[param].grad = grad;
}

}  // namespace muonrt
