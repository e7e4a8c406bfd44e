#include "optimizer/finite_check.hpp"

#include <algorithm>

namespace muonrt {

namespace {

// Each parameter has one tally for its data, one for each kind of state, and one for its gradient.
constexpr int64_t kGradient = 6, kTallies = 7;
constexpr int64_t kMaxElements = int64_t{1} << 30;  // maximum number of elements in one tally
constexpr int64_t kBatch = 64;  // number of parameters that are checked at the same time

int64_t of(StateKind kind) { return 1 + static_cast<int64_t>(kind); }

[[noreturn]] void throw_nonfinite(const ParamSettings& p, int64_t tally, int64_t count) {
  const auto kind = static_cast<StateKind>(tally - 1);
  const char* const what = tally == 0                      ? "data"
                           : kind == StateKind::kRemainder ? "data with its remainder"
                                                           : name_of(kind);
  const bool weights = tally == 0 || kind == StateKind::kMaster || kind == StateKind::kRemainder;
  throw Error(
      Status::kInvalidArgument,
      cat("param '", p.name, "': its ", what, " is not finite: ", count,
          " elements are infinite or NaN, because it was loaded like this, or the rate, decay or "
          "gradient of a committed step was too large; ",
          weights ? "load the weights again and call muonrt_optimizer_reset_masters()"
                  : "load it again, or fill it with zeros"));
}

}  // namespace

int64_t FiniteCheck::bytes(int64_t params) {
  return std::min(params, kBatch) * kTallies * static_cast<int64_t>(sizeof(Tally));
}

FiniteCheck::FiniteCheck(Device& device, const OptimizerSettings& settings, const State& state)
    : device_(&device), state_(&state), found_(settings.params.size()) {
  tallies_ = Buffer(device, bytes(std::ssize(settings.params)));
  host_tallies_ = Buffer::shared(device, tallies_.bytes());
}

void FiniteCheck::require_finite(Pipeline& pipeline, const OptimizerSettings& settings,
                                 const ParamView* params, const std::vector<uint8_t>& due,
                                 uint8_t bit) {
  const auto is_due = [&](int64_t param) { return (due[static_cast<size_t>(param)] & bit) != 0; };
  const int64_t count = std::ssize(due);
  for (int64_t first = 0; first < count; first += kBatch) {
    const int64_t end = std::min(first + kBatch, count);
    int64_t i = first;
    while (i < end && !is_due(i)) ++i;
    if (i < end) check(pipeline, settings, params, is_due, first, end);
  }
}

void FiniteCheck::check(Pipeline& pipeline, const OptimizerSettings& settings,
                        const ParamView* params, FunctionRef<bool(int64_t)> is_due, int64_t first,
                        int64_t end) {
  Ops& ops = device_->ops();
  pipeline.run_between_steps([&](Stream& stream) {
    const auto add = [&](int64_t param, int64_t tally, void* data, DType dtype, int64_t numel,
                         const uint16_t* low) {
      for (int64_t at = 0; data && at < numel; at += kMaxElements) {
        const int64_t n = std::min(kMaxElements, numel - at);
        ops.tally(stream, {static_cast<char*>(data) + at * size_of(dtype), dtype, 1, n, n, 1, n},
                  low ? low + at : nullptr,
                  tallies_.as<Tally>() + (param - first) * kTallies + tally);
      }
    };
    ops.fill(stream, tallies_.data(), 0, tallies_.bytes());
    for (int64_t i = first; i < end; ++i) {
      const ParamView& p = params[i];
      if (!is_due(i)) continue;
      add(i, 0, p.param, p.param_dtype, p.numel, nullptr);
      if (p.active) add(i, kGradient, const_cast<void*>(p.grad), p.grad_dtype, p.grads(), nullptr);
    }
    for (const StateEntry& entry : state_->entries_of(first, end)) {
      if (!is_due(entry.param)) continue;
      const bool low = entry.kind == StateKind::kRemainder;
      add(entry.param, of(entry.kind), low ? params[entry.param].param : entry.data, entry.dtype,
          entry.numel, low ? static_cast<const uint16_t*>(entry.data) : nullptr);
    }
    ops.copy(stream, host_tallies_.data(), tallies_.data(), tallies_.bytes());
  });
  for (int64_t i = first; i < end; ++i) {
    const Tally* const tallies = host_tallies_.as<Tally>() + (i - first) * kTallies;
    for (int64_t k = 0; k < kGradient; ++k)
      if (tallies[k].nonfinite > 0)
        throw_nonfinite(settings.params[static_cast<size_t>(i)], k, tallies[k].nonfinite);
    if (found_.empty() || !is_due(i)) continue;
    const WeightForm form = params[i].form;
    found_[static_cast<size_t>(i)] = {
        tallies[form == WeightForm::kMaster      ? of(StateKind::kMaster)
                : form == WeightForm::kRemainder ? of(StateKind::kRemainder)
                                                 : 0],
        tallies[kGradient].largest != 0};
  }
}

}  // namespace muonrt
