#pragma once

#include <cstdint>

#include "backend/host_device.hpp"
#include "base/dtype.hpp"

namespace muonrt {

/// Where the f32 value of a weight is. Elsewhere than in `kPlain` and `kStochastic` the parameter
/// is a rounding of it.
enum class WeightForm : int32_t {
  kParamOnly = 0,  // the parameter
  kMaster = 1,     // an f32 array beside it
  kRemainder = 2,  // a bf16 parameter and 16 more bits (backend/weight_bits.hpp)
  kStochastic = 3  // a bf16 parameter, rounded at random when written
};

/// One parameter on this rank, as the elementwise ops see it; or what the rank keeps of one for all
/// holders (OwnerState), whose gradient is a sum of addends. The table lives in memory the device
/// reads; the optimizer rewrites `grad`, `active` and `watched` before a step, never while one is
/// running.
struct ParamView {
  void* param = nullptr;          // local_numel elements of param_dtype
  const void* grad = nullptr;     // grads() elements of grad_dtype
  float* master = nullptr;        // kMaster: f32 master weights, else null
  void* momentum = nullptr;       // Muon momentum, or AdamW first moment; null: elsewhere
  float* variance = nullptr;      // AdamW second moment
  uint16_t* remainder = nullptr;  // kRemainder: the lower half of each weight's bits
  /// By row of the whole tensor: multiplies the new weights (QK-clip), or null.
  const float* row_factors = nullptr;
  int64_t numel = 0;        // local elements
  int64_t grad_numel = -1;  // of the gradient, where it lies in another layout; else -1
  DType param_dtype = DType::kF32;
  DType grad_dtype = DType::kF32;
  DType momentum_dtype = DType::kF32;  // AdamW: f32
  WeightForm form = WeightForm::kParamOnly;
  int32_t group = 0;
  int32_t active = 1;       // 0: does not act in this step
  int32_t clip_only = 0;    // 1: nor does it, but clipping reads its gradient
  float grad_scale = 1.0f;  // multiplies the gradient on reading, in this step
  int32_t scalars = 0;      // index into the step's AdamScalars (AdamW only)
  // The random bits of kStochastic and of bf16 momentum follow from these, the element's index in
  // the whole tensor, and
  uint64_t seed = 0, step = 0;
  uint32_t key = 0;  // this: the parameter's index, or its index when it was saved
  MUONRT_HOST_DEVICE int64_t grads() const { return grad_numel < 0 ? numel : grad_numel; }
};

/// A group's numbers in one step. Muon: W <- W (1 - decay) - rate * scale * O, where decay and
/// scale carry the piece's factors.
struct MuonScalars {
  float momentum = 0.95f;
  int32_t heavy_ball = 0;  // 0: EMA
  int32_t nesterov = 1;
  float rate = 0.0f;        // learning rate x the group's factor
  float decay = 0.0f;       // as the kind of decay makes it
  float grad_scale = 1.0f;  // multiplies every gradient on reading
  int32_t cautious = 0;     // decay only where update and weight agree in sign
  float normuon_beta2 = 0.95f;
  // Bias corrections of the gradient and of the momentum in the direction; 1: none.
  float gradient_correction = 1.0f, momentum_correction = 1.0f;
};

/// An AdamW parameter's numbers in one step: the step is rate * (m * correction1 +
/// gradient_weight * g) / (sqrt(v * correction2) + eps).
struct AdamScalars {
  float beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f;
  float rate = 0.0f, decay = 0.0f;
  // 1 / (1 - beta1^t); folded: sqrt(1 - beta2^t) times that; Nesterov: beta1 / (1 - beta1^(t+1))
  float correction1 = 1.0f;
  float correction2 = 1.0f;  // 1 / (1 - beta2^t); folded: 1
  float grad_scale = 1.0f;
  int32_t cautious = 0;
  float gradient_weight = 0.0f;  // Nesterov: (1 - beta1) / (1 - beta1^t)
};

/// What the ops found on this rank in a step; as here at its start.
struct Findings {
  int64_t nonfinite = 0;     // 1 if any gradient or direction was not finite
  int64_t first_param = -1;  // lowest parameter index where it was seen, or -1
  // The lowest that was not finite in f32 already. The message's dtype alone made `first_param`'s
  // direction infinite where that is another.
  int64_t first_in_f32 = -1;
  int64_t wrote_nonfinite = 0;  // 1 if a commit wrote a weight that is not finite
  int64_t zero_matrices = 0;    // matrices that were all zero
  int64_t failed = 0;           // 1 if a function of the caller's returned an error
  int64_t factor = 0;  // what device memory makes of the gradients' factor: the bits of both,
                       // exclusive or; equal on every rank
  // Of a step that compares replicas: this rank's words in sums that are 0 where all are equal.
  int64_t gradient_replicas = 0, weight_replicas = 0;
};

/// A rank's ballot, summed over ranks word by word. Commit runs only if the sum says so.
struct Vote {
  int64_t consent = 0;         // 1: all is well
  int64_t fingerprint = 0;     // step number and every scalar of the step, hashed
  int64_t nonfinite = 0;       // 1: this rank is otherwise well, but found a non-finite value
  int64_t orthogonalized = 0;  // matrices
  int64_t zero_matrices = 0;
  // The findings' factor, 32 bits: its lower half in the lower half of `factor`, its upper half in
  // the upper one, and the square of either. Up to 65,536 ranks no sum of them wraps.
  int64_t factor = 0, lower_square = 0, upper_square = 0;
  int64_t gradient_replicas = 0, weight_replicas = 0;  // the findings'

  constexpr void set_factor(int64_t bits) {
    const int64_t lower = bits & 0xffff, upper = bits >> 16 & 0xffff;
    factor = upper << 32 | lower;
    lower_square = lower * lower;
    upper_square = upper * upper;
  }
};
constexpr int64_t kVoteWords = sizeof(Vote) / sizeof(int64_t);

/// True if every rank's factor was the same: n sum x^2 - (sum x)^2 is the sum of the squares of all
/// differences, below 2^64 for halves of 16 bits.
constexpr bool same_factors(const Vote& sum, int64_t world) {
  const auto n = static_cast<uint64_t>(world), both = static_cast<uint64_t>(sum.factor);
  const uint64_t lower = both & 0xffffffffu, upper = both >> 32;
  return n * static_cast<uint64_t>(sum.lower_square) == lower * lower &&
         n * static_cast<uint64_t>(sum.upper_square) == upper * upper;
}
/// True if every rank of `world` consented to the same stamp, with the same factor, and no replicas
/// differ. A preset or stale ballot never passes. Sums wrap, as the reduction's do.
constexpr bool vote_passes(const Vote& sum, int64_t world, int64_t fingerprint) {
  return sum.consent == world &&
         static_cast<uint64_t>(sum.fingerprint) ==
             static_cast<uint64_t>(world) * static_cast<uint64_t>(fingerprint) &&
         same_factors(sum, world) && sum.gradient_replicas == 0 && sum.weight_replicas == 0;
}
/// What a ballot box holds before the reduction arrives.
inline Vote rejecting_vote_sum() { return Vote{.consent = -1, .fingerprint = -1}; }

}  // namespace muonrt
