#pragma once

#include <cstdint>

#include "backend/host_device.hpp"
#include "base/dtype.hpp"

namespace muonrt {

/// Where the f32 value of a weight is stored. For kMaster and kRemainder the parameter is a rounded
/// copy of this value.
enum class WeightForm : int32_t {
  kParamOnly = 0,  // the parameter
  kMaster = 1,     // a separate f32 array
  kRemainder = 2,  // a bf16 parameter and 16 more bits (backend/weight_bits.hpp)
  kStochastic = 3  // a bf16 parameter, rounded stochastically when written
};

/// One parameter on this rank, as the elementwise ops see it. Or the state that this rank keeps for
/// all holders of a parameter (OwnerState), whose gradient is a sum of partial gradients. The table
/// is in memory that the device reads. The optimizer rewrites `grad`, `active` and `clip_only`
/// before a step, never during one.
struct ParamView {
  void* param = nullptr;          // local_numel elements of param_dtype
  const void* grad = nullptr;     // grads() elements of grad_dtype
  float* master = nullptr;        // kMaster: f32 master weights, else null
  void* momentum = nullptr;       // Muon momentum, or AdamW first moment; null: not on this rank
  float* variance = nullptr;      // AdamW second moment
  uint16_t* remainder = nullptr;  // kRemainder: the lower half of each weight's bits
  /// QK-clip: factor of the new weights for each row of the whole tensor, or null.
  const float* row_factors = nullptr;
  int64_t numel = 0;        // local elements
  int64_t grad_numel = -1;  // local elements of the gradient if it has its own layout; else -1
  DType param_dtype = DType::kF32;
  DType grad_dtype = DType::kF32;
  DType momentum_dtype = DType::kF32;  // AdamW: f32
  WeightForm form = WeightForm::kParamOnly;
  int32_t group = 0;
  int32_t active = 1;       // 0: parameter and state do not change in this step
  int32_t clip_only = 0;    // 1: inactive, but gradient clipping reads its gradient
  float grad_scale = 1.0f;  // multiplies the gradient on reading, in this step
  int32_t scalars = 0;      // index into the step's AdamScalars (AdamW only)
  // The random bits for kStochastic and bf16 momentum depend on seed, step, key and the index of
  // the element in the whole tensor.
  uint64_t seed = 0, step = 0;
  uint32_t key = 0;  // the parameter's index, or its index when it was saved
  // kMaster: 1 if the caller has rounded the weights, up or down; 0 if a commit has.
  int32_t rounded_by_caller = 1;
  MUONRT_HOST_DEVICE int64_t grads() const { return grad_numel < 0 ? numel : grad_numel; }
};

/// A group's scalars in one step. Muon: W <- W (1 - decay) - rate * scale * O, where decay and
/// scale include the factors of the ShardBlock.
struct MuonScalars {
  float momentum = 0.95f;
  int32_t heavy_ball = 0;  // 0: EMA
  int32_t nesterov = 1;
  float rate = 0.0f;        // learning rate x the group's factor
  float decay = 0.0f;       // computed according to the kind of decay
  float grad_scale = 1.0f;  // multiplies every gradient on reading
  int32_t cautious = 0;     // 1: no decay if update and weight differ in sign
  float normuon_beta2 = 0.95f;
  // Bias corrections of the gradient and of the momentum in the direction; 1: none.
  float gradient_correction = 1.0f, momentum_correction = 1.0f;
};

/// The scalars of an AdamW parameter in one step. The update is rate * (m * correction1 +
/// gradient_weight * g) / (sqrt(v * correction2) + eps).
struct AdamScalars {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float rate = 0.0f, decay = 0.0f;
  // 1 / (1 - beta1^t); folded: multiplied by sqrt(1 - beta2^t); Nesterov: beta1 / (1 - beta1^(t+1))
  float correction1 = 1.0f;
  float correction2 = 1.0f;  // 1 / (1 - beta2^t); folded: 1
  float grad_scale = 1.0f;
  int32_t cautious = 0;
  float gradient_weight = 0.0f;  // Nesterov: (1 - beta1) / (1 - beta1^t)
};

/// What the ops found on this rank in a step. A step starts with the values below.
struct Findings {
  int64_t nonfinite = 0;     // 1 if any gradient or direction was not finite
  int64_t first_param = -1;  // lowest index of a parameter with such a value, or -1
  // Lowest index of a parameter that was not finite in f32 already. If it differs from
  // `first_param`, that parameter's direction overflowed only in the message's dtype.
  int64_t first_in_f32 = -1;
  // Lowest index of a parameter whose weights are not its master weights rounded, or -1.
  int64_t first_stale = -1;
  int64_t wrote_nonfinite = 0;  // 1 if a commit wrote a weight that is not finite
  int64_t zero_matrices = 0;    // matrices that were all zero
  int64_t failed = 0;           // 1 if one of the caller's callbacks returned an error
  int64_t factor = 0;           // bits of the gradient factor, exclusive or those of the factor
                                // without device scalars; must be equal on all ranks
  // If the step compares replicas: this rank's terms of sums that are 0 if all replicas are equal.
  int64_t gradient_replicas = 0, weight_replicas = 0;
};

/// The vote of one rank, or the element-wise sum of all ranks' votes; see vote_passes.
struct Vote {
  int64_t consent = 0;         // 1: this rank accepts the step
  int64_t fingerprint = 0;     // hash of step number and arguments
  int64_t nonfinite = 0;       // 1: this rank rejects the step only because of a non-finite value
  int64_t orthogonalized = 0;  // matrices
  int64_t zero_matrices = 0;
  // Findings::factor (32 bits): its lower 16 bits in the lower half of `factor`, its upper 16 bits
  // in the upper half, and the square of each. The sums do not wrap up to 65,536 ranks.
  int64_t factor = 0, lower_square = 0, upper_square = 0;
  int64_t gradient_replicas = 0, weight_replicas = 0;  // as in Findings

  constexpr void set_factor(int64_t bits) {
    const int64_t lower = bits & 0xffff, upper = bits >> 16 & 0xffff;
    factor = upper << 32 | lower;
    lower_square = lower * lower;
    upper_square = upper * upper;
  }
};
constexpr int64_t kVoteWords = sizeof(Vote) / sizeof(int64_t);

/// Returns whether the factor was equal on all ranks. n sum x^2 - (sum x)^2 is the sum of the
/// squared differences of all pairs, so it is 0 only if all x are equal. It is below 2^64 for
/// 16-bit halves.
constexpr bool same_factors(const Vote& sum, int64_t world) {
  const auto n = static_cast<uint64_t>(world), both = static_cast<uint64_t>(sum.factor);
  const uint64_t lower = both & 0xffffffffu, upper = both >> 32;
  return n * static_cast<uint64_t>(sum.lower_square) == lower * lower &&
         n * static_cast<uint64_t>(sum.upper_square) == upper * upper;
}
/// Returns whether every one of the `world` ranks accepted the step with the same fingerprint and
/// factor, and no replicas differ. A preset vote sum, or one of an earlier step, never passes. Sums
/// wrap, like those of the reduction.
constexpr bool vote_passes(const Vote& sum, int64_t world, int64_t fingerprint) {
  return sum.consent == world &&
         static_cast<uint64_t>(sum.fingerprint) ==
             static_cast<uint64_t>(world) * static_cast<uint64_t>(fingerprint) &&
         same_factors(sum, world) && sum.gradient_replicas == 0 && sum.weight_replicas == 0;
}
/// Returns a vote sum that never passes: the value of the vote sum before the reduction.
inline Vote rejecting_vote_sum() { return Vote{.consent = -1, .fingerprint = -1}; }

}  // namespace muonrt
