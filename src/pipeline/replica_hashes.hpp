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

/// What of a parameter a replica holds, in the order in which they are compared.
enum class Replicated : int32_t { kData, kMaster, kRemainder, kMomentum, kVariance, kGradient };
constexpr int kReplicated = 6;

/// The first parameter whose replicas differ, and the lowest rank that holds something else than
/// the first replica of its shard. `param` is -1 where there is none.
struct ReplicaDifference {
  int64_t param = -1;
  int32_t rank = -1, reference = -1;
  Replicated kind = Replicated::kData;
  int64_t more = 0;  // further ranks that differ from `reference`; the first of them:
  std::array<int32_t, 7> others = {};
};

/// Hashes of what this rank holds beside other ranks. The first replica adds as often what the
/// others subtract: a sum of zero over the ranks says, but for a chance of 2^-64, that all are
/// equal.
class ReplicaHashes {
 public:
  ReplicaHashes() = default;
  /// Of one of the two lists that are kept.
  static int64_t bytes(int64_t params) { return checked_mul(params, kReplicated * 8); }
  /// Takes the memory. @param params  of the problem; they stay where they are.
  ReplicaHashes(Device& device, const std::vector<ParamSpec>& params, int rank, int world);

  /// Enqueues: no hash yet.
  void clear(Stream& stream);
  /// Enqueues the hash of the weights and their state, or of the gradient.
  void add_weights(Stream& stream, const ParamView& view, int64_t param);
  void add_gradient(Stream& stream, const ParamView& view, int64_t param);
  /// Enqueues what lets the host read them.
  void finish(Stream& stream);

  /// This rank's word in the sum, of what was added; once the stream has ended.
  int64_t weight_word(int64_t param) const;
  int64_t gradient_word(int64_t param) const;

  /// Of a parameter whose sum is not zero. Collective; costs messages, takes no memory. Errors:
  /// INTERNAL where no hash differs.
  ReplicaDifference find(Comm& comm, int64_t param) const;

 private:
  /// Ranks that hold the same: the first replica's, -1 where there is none, and how many.
  struct Holders {
    int first;
    int64_t count;
  };
  Holders holders(int64_t param, Replicated kind, int rank) const;
  void add(Stream& stream, int64_t param, Replicated kind, const void* memory, int64_t bytes);
  int64_t word(int64_t param, Replicated first, Replicated last) const;

  Device* device_ = nullptr;
  const std::vector<ParamSpec>* params_ = nullptr;
  int rank_ = 0;
  Buffer hashes_, mirror_;  // by parameter, kReplicated each; as the host reads them
  mutable std::vector<int64_t> all_;
};

}  // namespace muonrt
