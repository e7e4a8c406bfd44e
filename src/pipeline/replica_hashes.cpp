#include "pipeline/replica_hashes.hpp"

#include "backend/health.hpp"
#include "backend/ops.hpp"

namespace muonrt {

ReplicaHashes::ReplicaHashes(Device& device, const std::vector<ParamSpec>& params, int rank,
                             int world)
    : device_(&device), params_(&params), rank_(rank) {
  hashes_ = Buffer(device, bytes(std::ssize(params)));
  host_hashes_ = Buffer::shared(device, hashes_.bytes());
  all_.resize(static_cast<size_t>(world) * kReplicated);
}

void ReplicaHashes::clear(Stream& stream) {
  if (hashes_.data()) device_->ops().fill(stream, hashes_.data(), 0, hashes_.bytes());
}

void ReplicaHashes::finish(Stream& stream) {
  if (hashes_.data())
    device_->ops().copy(stream, host_hashes_.data(), hashes_.data(), hashes_.bytes());
}

// find() may run after a vote and calls this function, so this function must not allocate.
ReplicaHashes::Holders ReplicaHashes::holders(int64_t param, Replicated kind, int rank) const {
  const ParamSpec& spec = (*params_)[static_cast<size_t>(param)];
  if (kind == Replicated::kGradient)
    return {grad_layout(spec).first_equal_holder(rank), grad_layout(spec).full_replicas()};
  const int64_t shard = spec.layout.shard_index(rank);
  return {shard < 0 ? -1 : spec.layout.rank_of(0, shard), spec.layout.replicas()};
}

void ReplicaHashes::add(Stream& stream, int64_t param, Replicated kind, const void* memory,
                        int64_t bytes) {
  if (!memory || bytes == 0) return;
  device_->ops().hash_memory(
      stream, memory, bytes,
      hashes_.as<uint64_t>() + param * kReplicated + static_cast<int64_t>(kind));
}

void ReplicaHashes::add_weights(Stream& stream, const ParamView& v, int64_t param) {
  if ((*params_)[static_cast<size_t>(param)].layout.replicas() < 2) return;
  const auto of = [&](Replicated kind, const void* memory, int64_t size) {
    add(stream, param, kind, memory, v.numel * size);
  };
  of(Replicated::kData, v.param, size_of(v.param_dtype));
  of(Replicated::kMaster, v.master, 4);
  of(Replicated::kRemainder, v.remainder, 2);
  of(Replicated::kMomentum, v.momentum, size_of(v.momentum_dtype));
  of(Replicated::kVariance, v.variance, 4);
}

void ReplicaHashes::add_gradient(Stream& stream, const ParamView& v, int64_t param) {
  const Holders group = holders(param, Replicated::kGradient, rank_);
  if (group.first >= 0 && group.count > 1)
    add(stream, param, Replicated::kGradient, v.grad, v.grads() * size_of(v.grad_dtype));
}

int64_t ReplicaHashes::weight_word(int64_t param) const {
  return term(param, Replicated::kData, Replicated::kVariance);
}

int64_t ReplicaHashes::gradient_word(int64_t param) const {
  return term(param, Replicated::kGradient, Replicated::kGradient);
}

// The parameter and the shard are mixed into the hash, so that differences in two parameters or
// shards do not cancel in the sum.
int64_t ReplicaHashes::term(int64_t param, Replicated first, Replicated last) const {
  const Holders group = holders(param, first, rank_);
  if (group.first < 0 || group.count < 2) return 0;
  uint64_t hash = splitmix64(static_cast<uint64_t>(param)) ^ static_cast<uint64_t>(group.first);
  for (auto kind = static_cast<int64_t>(first); kind <= static_cast<int64_t>(last); ++kind)
    hash = splitmix64(hash) ^ host_hashes_.as<uint64_t>()[param * kReplicated + kind];
  hash = splitmix64(hash);
  const auto others = static_cast<uint64_t>(group.count - 1);
  return static_cast<int64_t>(group.first == rank_ ? others * hash : 0 - hash);
}

ReplicaDifference ReplicaHashes::find(Comm& comm, int64_t param) const {
  comm.allgather(host_hashes_.as<int64_t>() + param * kReplicated, all_.data(), kReplicated * 8);
  const auto at = [&](int32_t rank, int32_t kind) {
    return all_[static_cast<size_t>(rank) * kReplicated + static_cast<size_t>(kind)];
  };
  ReplicaDifference out;
  for (int32_t rank = 0; rank < comm.size(); ++rank) {
    for (int32_t kind = 0; kind < kReplicated; ++kind) {
      const int first = holders(param, static_cast<Replicated>(kind), rank).first;
      if (first < 0 || at(rank, kind) == at(first, kind)) continue;
      if (out.param < 0) {
        out = {param, rank, first, static_cast<Replicated>(kind)};
      } else if (static_cast<Replicated>(kind) == out.kind && first == out.reference) {
        const auto next = static_cast<size_t>(out.more++);
        if (next < out.others.size()) out.others[next] = rank;
      }
    }
  }
  MUONRT_CHECK_INTERNAL(out.param >= 0, "hashes of replicas differ in their sum, but not in one");
  return out;
}

}  // namespace muonrt
