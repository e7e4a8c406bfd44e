#pragma once

#include <cstdint>

#include "backend/host_device.hpp"
#include "base/dtype.hpp"

namespace muonrt {

/// Selects where the f32 value of a weight is stored. With kMaster and kRemainder, the parameter
/// itself contains a rounded copy of this value.
enum class WeightForm : int32_t {
  kParamOnly = 0,  // in the parameter
  kMaster = 1,     // in a separate f32 array
  kRemainder = 2,  // in a bf16 parameter and 16 additional bits (backend/weight_bits.hpp)
  kStochastic = 3  // in a bf16 parameter, which is rounded stochastically when it is written
};

/// One parameter of this rank, in the form that the elementwise ops need. An entry may also
/// describe state that this rank stores for all holders of a parameter (OwnerState); its gradient
/// is then a sum of partial gradients. The table is in memory that the device can read. The
/// optimizer may change `grad`, `active` and `clip_only` between steps, but not during a step.
struct ParamView {
  void* param = nullptr;          // local elements in param_dtype
  const void* grad = nullptr;     // grads() elements in grad_dtype
  float* master = nullptr;        // kMaster: f32 master weights; otherwise null
  void* momentum = nullptr;       // Muon momentum or AdamW first moment; null if not on this rank
  float* variance = nullptr;      // AdamW second moment
  uint16_t* remainder = nullptr;  // kRemainder: the lower half of the bits of each weight
  /// QK-clip: one factor for each row of the whole tensor, by which the new weights are multiplied.
  /// Null if QK-clip does not apply to the parameter.
  const float* row_factors = nullptr;
  int64_t numel = 0;  // number of local elements
  /// Number of local elements of the gradient if it has its own layout; otherwise -1.
  int64_t grad_numel = -1;
  DType param_dtype = DType::kF32;
  DType grad_dtype = DType::kF32;
  DType momentum_dtype = DType::kF32;  // f32 for AdamW
  WeightForm form = WeightForm::kParamOnly;
  int32_t group = 0;
  int32_t active = 1;  // if 0, parameter and state do not change in this step
  /// If 1, the parameter is inactive, but gradient clipping reads its gradient.
  int32_t clip_only = 0;
  float grad_scale = 1.0f;  // multiplies the gradient when it is read in this step
  int32_t scalars = 0;      // index into the step's AdamScalars (AdamW only)
  // The random bits for kStochastic weights and for bf16 momentum depend only on seed, step, key
  // and the index of the element in the whole tensor.
  uint64_t seed = 0, step = 0;
  uint32_t key = 0;  // the parameter's index; after loading, its index when it was saved
  // kMaster: 1 if the caller rounded the weights (up or down); 0 if a commit rounded them.
  int32_t rounded_by_caller = 1;
  MUONRT_HOST_DEVICE int64_t grads() const { return grad_numel < 0 ? numel : grad_numel; }
};

/// The scalars of a group in one step. Muon computes W <- W (1 - decay) - rate * scale * O, where
/// decay and scale include the factors of the ShardBlock.
struct MuonScalars {
  float momentum = 0.95f;
  int32_t heavy_ball = 0;  // if 0, the momentum is an exponential moving average
  int32_t nesterov = 1;
  float rate = 0.0f;        // learning rate times the group's factor
  float decay = 0.0f;       // depends on the kind of decay
  float grad_scale = 1.0f;  // multiplies every gradient when it is read
  int32_t cautious = 0;     // if 1, a weight does not decay if its update has the opposite sign
  float normuon_beta2 = 0.95f;
  // Bias corrections of the gradient and of the momentum in the direction. 1 means no correction.
  float gradient_correction = 1.0f, momentum_correction = 1.0f;
};

/// The scalars of an AdamW parameter in one step. The update is
/// rate * (m * correction1 + gradient_weight * g) / (sqrt(v * correction2) + eps).
struct AdamScalars {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float rate = 0.0f, decay = 0.0f;
  // Usually 1 / (1 - beta1^t). With folded corrections, this value is also multiplied by sqrt(1 -
  // beta2^t). With Nesterov, it is beta1 / (1 - beta1^(t+1)) instead.
  float correction1 = 1.0f;
  float correction2 = 1.0f;  // 1 / (1 - beta2^t), or 1 with folded corrections
  float grad_scale = 1.0f;
  int32_t cautious = 0;
  float gradient_weight = 0.0f;  // used only with Nesterov: (1 - beta1) / (1 - beta1^t)
};

/// The findings of the ops on this rank in a step. A step starts with the default values.
struct Findings {
  int64_t nonfinite = 0;     // 1 if a gradient or direction was non-finite
  int64_t first_param = -1;  // lowest index among the parameters with such a value, or -1
  // Lowest index among the parameters with a value that was non-finite even in f32, or -1. If it
  // differs from `first_param`, the direction of `first_param` was finite in f32 and overflowed
  // only in the message's dtype.
  int64_t first_in_f32 = -1;
  // Lowest index among the parameters whose weights differ from the rounded master weights, or -1.
  int64_t first_stale = -1;
  int64_t wrote_nonfinite = 0;  // 1 if a commit wrote a non-finite weight
  int64_t zero_matrices = 0;    // number of matrices that were all zero
  int64_t failed = 0;           // 1 if a caller-supplied callback returned an error
  /// Bits of the gradient factor XOR bits of the factor without device scalars. Must be equal on
  /// all ranks.
  int64_t factor = 0;
  // This rank's terms of two sums over all ranks. Each sum is 0 if all replicas are equal. Used
  // only if the step compares replicas.
  int64_t gradient_replicas = 0, weight_replicas = 0;
};

/// The vote of one rank, or the element-wise sum of all ranks' votes. See vote_passes().
struct Vote {
  int64_t consent = 0;      // 1 if this rank accepts the step
  int64_t fingerprint = 0;  // hash of step number and arguments
  /// 1 if this rank rejects the step only because of a non-finite value.
  int64_t nonfinite = 0;
  int64_t orthogonalized = 0;  // number of matrices
  int64_t zero_matrices = 0;
  // The 32 bits of Findings::factor, in a form whose sums show whether all ranks have the same
  // bits. The lower half of `factor` contains the lower 16 bits, and the upper half the upper 16
  // bits. The other two fields are the squares of these two 16-bit values. The sums do not wrap for
  // up to 65,536 ranks.
  int64_t factor = 0, lower_square = 0, upper_square = 0;
  int64_t gradient_replicas = 0, weight_replicas = 0;  // the same as in Findings

  constexpr void set_factor(int64_t bits) {
    const int64_t lower = bits & 0xffff, upper = bits >> 16 & 0xffff;
    factor = upper << 32 | lower;
    lower_square = lower * lower;
    upper_square = upper * upper;
  }
};
constexpr int64_t kVoteWords = sizeof(Vote) / sizeof(int64_t);

/// Returns whether the factor was equal on all ranks. For n ranks with values x, the difference n
/// (sum x^2) - (sum x)^2 is the sum of the squared differences of all pairs, so it is 0 only if all
/// x are equal. For 16-bit values, it is below 2^64.
constexpr bool same_factors(const Vote& sum, int64_t world) {
  const auto n = static_cast<uint64_t>(world), both = static_cast<uint64_t>(sum.factor);
  const uint64_t lower = both & 0xffffffffu, upper = both >> 32;
  return n * static_cast<uint64_t>(sum.lower_square) == lower * lower &&
         n * static_cast<uint64_t>(sum.upper_square) == upper * upper;
}
/// Returns whether each of the `world` ranks accepted the step with the same fingerprint and
/// factor, and no replicas differ. The initial vote sum and the vote sum of an earlier step never
/// pass. Sums wrap around, as in the reduction.
constexpr bool vote_passes(const Vote& sum, int64_t world, int64_t fingerprint) {
  return sum.consent == world &&
         static_cast<uint64_t>(sum.fingerprint) ==
             static_cast<uint64_t>(world) * static_cast<uint64_t>(fingerprint) &&
         same_factors(sum, world) && sum.gradient_replicas == 0 && sum.weight_replicas == 0;
}
/// Returns a vote sum that never passes. The vote sum has this value before the reduction.
inline Vote rejecting_vote_sum() { return Vote{.consent = -1, .fingerprint = -1}; }

}  // namespace muonrt
