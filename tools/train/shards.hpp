#pragma once

#include <cstdint>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "train/config.hpp"
#include "train/mesh.hpp"

namespace muonrt::train {

/// A sum of numbers in fixed point with a resolution of 6e-14. Additions are exact, so the sum
/// depends neither on the order of the terms nor on the number of ranks.
struct Sum {
  static constexpr double kOne = 0x1p44;
  /// Returns whether x is a valid term: |x| < 1024, and not NaN. A sum can consist of 2^9 terms of
  /// this size.
  static bool fits(double x) { return x < 0x1p10 && x > -0x1p10; }
  static int64_t of(double x) { return static_cast<int64_t>(x * kOne); }
  static double value(int64_t sum) { return static_cast<double>(sum) / kOne; }
};

/// The shards of a model's parameters. Between steps, each rank holds only its shards, one after
/// the other in one buffer. Full tensors exist only while gradients are being computed.
class Shards {
 public:
  Shards(const TrainMesh& mesh, const std::vector<ParamSpec>& specs, int rank);

  /// Returns the number of elements in the shards of this rank.
  int64_t local_elements() const { return by_rank_[static_cast<size_t>(rank_)].elements; }
  /// Returns the offset of the shard of parameter `index` in the buffer.
  int64_t local_offset(int64_t index) const;
  std::vector<int64_t> local_shape(int64_t index) const;

  /// Copies this rank's elements from full tensors to `local`. `full[i]` is parameter i.
  void extract(const float* const* full, float* local) const;
  /// Gathers the shards of all ranks into full tensors. Collective.
  void gather(Comm& comm, const float* local, float* const* full);
  /// Sums `full` over all ranks in the fixed point of Sum, and stores the elements of this rank in
  /// `local`. Collective.
  void reduce_scatter(Comm& comm, const int64_t* const* full, float* local);

 private:
  /// A run of elements that are contiguous in the full tensor and in the buffer of a rank.
  struct Stretch {
    int64_t param, full_offset, local_offset, count;
  };
  struct RankShards {
    int64_t elements = 0;
    std::vector<int64_t> offsets;              // one entry for each parameter
    std::vector<std::vector<int64_t>> shapes;  // one entry for each parameter
    std::vector<Stretch> stretches;
  };
  RankShards make_rank_shards(const TrainMesh& mesh, const std::vector<ParamSpec>& specs,
                              int rank) const;
  template <class T>
  static void pack(const RankShards& shards, const T* const* full, T* out);

  int rank_, ranks_;
  std::vector<RankShards> by_rank_;  // one entry for each rank
  int64_t longest_ = 0;              // maximum number of elements on a rank
  // The messages to and from each rank. They are members, so that calls reuse their memory.
  std::vector<float> gathered_;
  std::vector<std::vector<int64_t>> partial_grads_out_, partial_grads_in_;
};

}  // namespace muonrt::train
