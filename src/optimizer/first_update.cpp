#include "optimizer/first_update.hpp"

#include <algorithm>
#include <cmath>

#include "backend/health.hpp"

namespace muonrt {

namespace {

// For each parameter, the ranks exchange two values: the sum of the squares of its weights, as
// kTallyLimbs numbers (see Tally), and the number of ranks where its gradient has a nonzero value.
constexpr int64_t kGradients = kTallyLimbs, kParamWords = kTallyLimbs + 1;
constexpr int64_t kGathered = 64;  // number of parameters that are gathered together

/// Returns the mean of the squares of the update for a learning rate of 1. All singular values of
/// an orthogonalized matrix are 1, so the sum of the squares of its elements equals its short side.
double mean_square_update(const ParamSpec& spec) {
  const auto& shape = spec.layout.shape();
  const int64_t rows = shape[shape.size() - 2], cols = shape.back();
  const auto squares = [](double scale, int64_t r, int64_t c) {
    return scale * scale * static_cast<double>(std::min(r, c));
  };
  double sum = spec.parts.empty() ? squares(spec.update_scale, rows, cols) : 0.0;
  for (const MatrixPart& part : spec.parts)
    sum += squares(part.update_scale, length(part.rows), length(part.cols));
  return sum / (static_cast<double>(rows) * static_cast<double>(cols));
}

}  // namespace

FirstUpdate::FirstUpdate(const Plan& plan, int world) : plan_(&plan) {
  const std::vector<ParamSpec>& params = plan.problem().params;
  for (size_t i = 0; i < params.size(); ++i)
    if (params[i].role == Role::kMuon) params_.push_back(static_cast<int32_t>(i));
  due_ = !params_.empty();
  words_.resize(params_.size() * kParamWords);
  by_rank_.resize(static_cast<size_t>(world) * kParamWords *
                  std::min(params_.size(), size_t{kGathered}));
}

void FirstUpdate::fill(int64_t index, const FiniteCheck& check, int rank) {
  const int32_t param = params_[static_cast<size_t>(index)];
  int64_t* const words = words_.data() + index * kParamWords;
  words[kGradients] = check.has_gradient(param);
  const Layout& layout = plan_->problem().params[static_cast<size_t>(param)].layout;
  if (layout.replica_index(rank) != 0) return;
  // The carries have made every limb smaller than 2^32, so adding a limb over all ranks cannot
  // overflow.
  const Tally& weights = check.weights(param);
  uint64_t carry = 0;
  for (int64_t l = 0; l < kTallyLimbs; ++l) {
    const uint64_t limb = static_cast<uint64_t>(weights.limbs[l]) + carry;
    carry = l + 1 < kTallyLimbs ? limb >> 32 : 0;
    words[l] = static_cast<int64_t>(limb - (carry << 32));
  }
}

void FirstUpdate::add_weights(Comm& comm, const FiniteCheck* check) {
  const int64_t count = std::ssize(params_);
  std::fill(words_.begin(), words_.end(), 0);
  for (int64_t i = 0; check && i < count; ++i) fill(i, *check, comm.rank());
  if (comm.size() == 1) return;
  for (int64_t first = 0; first < count; first += kGathered) {
    int64_t* const own = words_.data() + first * kParamWords;
    const int64_t n = std::min(kGathered, count - first) * kParamWords;
    comm.allgather(own, by_rank_.data(), n * 8);
    std::fill(own, own + n, 0);
    for (int64_t i = 0; i < comm.size() * n; ++i) own[i % n] += by_rank_[static_cast<size_t>(i)];
  }
}

LargeUpdate FirstUpdate::on_commit(const OptimizerSettings& settings, const StepArgs& args,
                                   const ParamView* params) {
  due_ = false;
  LargeUpdate out;
  for (size_t i = 0; i < params_.size(); ++i) {
    const int32_t param = params_[i];
    const int64_t* const words = words_.data() + static_cast<int64_t>(i) * kParamWords;
    const double squares = sum_of_squares(words);
    if (!params[param].active || words[kGradients] == 0 || !(squares > 0)) continue;
    const ParamSpec& spec = plan_->problem().params[static_cast<size_t>(param)];
    const double rate = args.lr_of(spec.group) * group_of(settings, param).lr_factor;
    const double weight = squares / static_cast<double>(spec.layout.numel());
    const double ratio = rate * std::sqrt(mean_square_update(spec) / weight);
    if (ratio > kLimit && ratio > out.ratio) out = {param, ratio};
  }
  words_ = by_rank_ = {};
  return out;
}

}  // namespace muonrt
