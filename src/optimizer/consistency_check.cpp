#include "optimizer/consistency_check.hpp"

#include <algorithm>

#include "backend/health.hpp"
#include "base/hash.hpp"

namespace muonrt {

namespace {

int64_t wrapped_sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

const char* name_of(Replicated kind) {
  switch (kind) {
    case Replicated::kData:
      return "weights";
    case Replicated::kMaster:
      return "master weights";
    case Replicated::kRemainder:
      return "remainder";
    case Replicated::kMomentum:
      return "momentum";
    case Replicated::kVariance:
      return "variance";
    case Replicated::kGradient:
      return "gradient";
  }
  return "state";
}

std::string ranks_of(const ReplicaDifference& d) {
  std::string out = cat(d.more == 0 ? "rank " : "ranks ", d.rank);
  const int64_t named = std::min(d.more, std::ssize(d.others));
  for (int64_t i = 0; i < named; ++i) out += cat(", ", d.others[static_cast<size_t>(i)]);
  if (d.more > named) out += cat(" and ", d.more - named, " more");
  return out;
}

}  // namespace

std::vector<int64_t> consistency_check_bytes(const Plan& plan, const OptimizerSettings& settings) {
  const int64_t count = std::ssize(plan.problem().params);
  const bool replicas = settings.replica_check != ReplicaCheck::kOff;
  const int64_t lists = FiniteCheck::bytes(count) + (replicas ? ReplicaHashes::bytes(count) : 0);
  return std::vector<int64_t>(static_cast<size_t>(plan.problem().options.world), 2 * lists);
}

ConsistencyCheck::ConsistencyCheck(Device& device, const OptimizerSettings& settings,
                                   const State& state, const Plan& plan, int rank, int world)
    : when_(settings.replica_check),
      finite_(device, settings, state),
      due_(settings.params.size()),
      now_(settings.params.size(), 0),
      by_rank_(static_cast<size_t>(world)) {
  if (when_ != ReplicaCheck::kOff)
    hashes_ = ReplicaHashes(device, plan.problem().params, rank, world);
  schedule_all();
}

void ConsistencyCheck::schedule_all() {
  const uint8_t replicas = when_ == ReplicaCheck::kOff ? 0 : kWeights | kGradient;
  std::fill(due_.begin(), due_.end(), static_cast<uint8_t>(kLocal | kRounding | replicas));
}

void ConsistencyCheck::schedule_weights(int64_t param) {
  schedule_local(param);
  if (when_ != ReplicaCheck::kOff) due_[static_cast<size_t>(param)] |= kWeights;
}

void ConsistencyCheck::schedule_local(int64_t param) {
  due_[static_cast<size_t>(param)] |= kLocal | kRounding;
}

void ConsistencyCheck::run_before_step(Pipeline& pipeline, const OptimizerSettings& settings,
                                       ParamView* params, StepInputs& inputs) {
  Hash compared;
  bool any = false;
  finite_.require_finite(pipeline, settings, params, due_, kLocal);
  for (size_t i = 0; i < due_.size(); ++i) {
    now_[i] = due_[i];
    if (!params[i].active) now_[i] &= static_cast<uint8_t>(~(kGradient | kRounding));
    params[i].rounded_by_caller = (due_[i] & kRounding) != 0;
    const int replicas = now_[i] & (kWeights | kGradient);
    compared.value(int64_t{replicas});
    any = any || replicas != 0;
  }
  if (!any) return;
  inputs.fingerprint ^= static_cast<int64_t>(compared.digest());
  pipeline.run_between_steps([&](Stream& stream) {
    hashes_.clear(stream);
    for (size_t i = 0; i < now_.size(); ++i) {
      const auto param = static_cast<int64_t>(i);
      if (now_[i] & kWeights) hashes_.add_weights(stream, params[i], param);
      if (now_[i] & kGradient) hashes_.add_gradient(stream, params[i], param);
    }
    hashes_.finish(stream);
  });
  for (size_t i = 0; i < now_.size(); ++i) {
    const auto param = static_cast<int64_t>(i);
    inputs.weight_replicas = wrapped_sum(inputs.weight_replicas, hashes_.weight_word(param));
    inputs.gradient_replicas = wrapped_sum(inputs.gradient_replicas, hashes_.gradient_word(param));
  }
}

void ConsistencyCheck::on_commit(bool wrote_nonfinite) {
  const bool always = when_ == ReplicaCheck::kEvery;
  for (size_t i = 0; i < due_.size(); ++i) {
    due_[i] &= static_cast<uint8_t>(~(always ? now_[i] & (kLocal | kRounding) : now_[i]));
    if (wrote_nonfinite) schedule_local(static_cast<int64_t>(i));
  }
}

const char* ConsistencyCheck::described(int64_t param) const {
  switch (now_[static_cast<size_t>(param)] & (kWeights | kGradient)) {
    case kWeights:
      return "weights";
    case kGradient:
      return "gradient";
    case kWeights | kGradient:
      return "weights and gradient";
    default:
      return "nothing";
  }
}

// Every rank has a term for each parameter. If the replicas of a parameter are equal, its terms add
// up to 0 over all ranks. Bisection finds the first parameter whose replicas differ: each round
// gathers from every rank the sum of its terms for the first n parameters.
int64_t ConsistencyCheck::find_param(Comm& comm, bool gradients) {
  int64_t equal = 0, different = std::ssize(now_);
  while (different - equal > 1) {
    const int64_t middle = equal + (different - equal) / 2;
    int64_t own = 0, sum = 0;
    for (int64_t i = 0; i < middle; ++i)
      own = wrapped_sum(own, gradients ? hashes_.gradient_word(i) : hashes_.weight_word(i));
    comm.allgather(&own, by_rank_.data(), sizeof own);
    for (const int64_t term : by_rank_) sum = wrapped_sum(sum, term);
    (sum == 0 ? equal : different) = middle;
  }
  return equal;
}

std::optional<Error> ConsistencyCheck::find_replica_mismatch(Comm& comm,
                                                             const OptimizerSettings& settings,
                                                             const Vote& vote_sum) {
  if (vote_sum.gradient_replicas == 0 && vote_sum.weight_replicas == 0) return std::nullopt;
  const ReplicaDifference found =
      hashes_.find(comm, find_param(comm, vote_sum.gradient_replicas != 0));
  const bool gradient = found.kind == Replicated::kGradient;
  const bool many = found.kind == Replicated::kData || found.kind == Replicated::kMaster;
  return error_with_message(Status::kMismatch, [&] {
    return cat("param '", settings.params[static_cast<size_t>(found.param)].name, "': its ",
               name_of(found.kind), " on ", ranks_of(found), many ? " differ" : " differs",
               " from rank ", found.reference,
               gradient ? ", but gradients of one shard must be equal; reduce the gradient over "
                          "these ranks, or "
                          "declare it as partial"
                        : ", but replicas of a shard must be equal; copy it from one of the ranks "
                          "to the others",
               "; replica_check sets when this is compared");
  });
}

}  // namespace muonrt
