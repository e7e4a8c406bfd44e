#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/comm.hpp"
#include "backend/device.hpp"
#include "backend/scalars.hpp"
#include "base/checked.hpp"
#include "plan/problem.hpp"

namespace muonrt {

/// The kinds of data of a parameter that must be equal on all replicas, in the order in which they
/// are compared.
enum class Replicated : int32_t { kData, kMaster, kRemainder, kMomentum, kVariance, kGradient };
constexpr int kReplicated = 6;

/// The first parameter whose replicas differ, or -1 in `param` if all replicas are equal.
/// `reference` is the rank of the first replica of the shard, and `rank` is the lowest rank that
/// differs from it.
struct ReplicaDifference {
  int64_t param = -1;
  int32_t rank = -1, reference = -1;
  Replicated kind = Replicated::kData;
  int64_t more = 0;                    // number of additional ranks that differ from `reference`
  std::array<int32_t, 7> others = {};  // the first of these ranks
};

/// Hashes of those shards that other ranks also hold. If a shard has r replicas, the first replica
/// adds (r - 1) times its hash to a sum over all ranks, and each other replica subtracts its own
/// hash. The sum is zero if all replicas are equal. If some differ, it is zero only with a
/// probability of 2^-64.
class ReplicaHashes {
 public:
  ReplicaHashes() = default;
  /// Returns the bytes of one list of hashes. There are two lists: one on the device and its copy
  /// on the host.
  static int64_t bytes(int64_t params) { return checked_mul(params, kReplicated * 8); }
  /// Allocates the memory.
  /// @param params  Parameters of the plan's problem. They must outlive this object.
  ReplicaHashes(Device& device, const std::vector<ParamSpec>& params, int rank, int world);

  /// Enqueues work that sets all hashes to zero.
  void clear(Stream& stream);
  /// add_weights() enqueues the hashing of a parameter's weights and state, and add_gradient() that
  /// of its gradient.
  void add_weights(Stream& stream, const ParamView& view, int64_t param);
  void add_gradient(Stream& stream, const ParamView& view, int64_t param);
  /// Enqueues the copy of the hashes to host memory.
  void finish(Stream& stream);

  /// Each of these functions returns this rank's term in the sum over all ranks. The work on the
  /// stream must be complete.
  int64_t weight_word(int64_t param) const;
  int64_t gradient_word(int64_t param) const;

  /// Finds the difference in a parameter whose sum is not zero. Collective; does not allocate.
  /// Errors: INTERNAL if all hashes are equal.
  ReplicaDifference find(Comm& comm, int64_t param) const;

 private:
  /// The replicas of the shard of `rank`: their number, and the rank of the first one, which is -1
  /// if `rank` holds no element.
  struct Holders {
    int first;
    int64_t count;
  };
  Holders holders(int64_t param, Replicated kind, int rank) const;
  void add(Stream& stream, int64_t param, Replicated kind, const void* memory, int64_t bytes);
  int64_t term(int64_t param, Replicated first, Replicated last) const;

  Device* device_ = nullptr;
  const std::vector<ParamSpec>* params_ = nullptr;
  int rank_ = 0;
  Buffer hashes_, host_hashes_;  // kReplicated for each parameter, and their copy on the host
  mutable std::vector<int64_t> all_;
};

}  // namespace muonrt
