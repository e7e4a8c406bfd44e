#pragma once

#include <cstdint>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "train/config.hpp"
#include "train/mesh.hpp"

namespace muonrt::train {

/// Sums of numbers in fixed point: exact, so that they depend neither on the order of the addends
/// nor on how these were dealt out to ranks. Good to 6e-14.
struct Sum {
  static constexpr double kOne = 0x1p44;
  /// Each addend must be below; false for NaN. Leaves room for 2^9 addends of this size.
  static bool fits(double x) { return x < 0x1p10 && x > -0x1p10; }
  static int64_t of(double x) { return static_cast<int64_t>(x * kOne); }
  static double value(int64_t sum) { return static_cast<double>(sum) / kOne; }
};

/// A model's parameters as ranks hold them: every rank has its shards, one behind the other, and
/// nothing else between steps. Full tensors exist while they are computed with.
class Shards {
 public:
  Shards(const TrainMesh& mesh, const std::vector<ParamSpec>& specs, int rank);

  /// Elements of this rank's shards.
  int64_t local_elements() const { return pieces_[static_cast<size_t>(rank_)].elements; }
  /// Where parameter `index` begins in them.
  int64_t local_offset(int64_t index) const;
  std::vector<int64_t> local_shape(int64_t index) const;

  /// local <- its elements of full tensors (`full[i]` is parameter i).
  void extract(const float* const* full, float* local) const;
  /// full <- the shards of all ranks, replicas included. Collective.
  void gather(Comm& comm, const float* local, float* const* full);
  /// local <- its elements of the sum over all ranks of `full`, in the fixed point of Sum.
  /// Collective.
  void reduce_scatter(Comm& comm, const int64_t* const* full, float* local);

 private:
  /// Contiguous elements, in the full tensor and in a rank's shards.
  struct Stretch {
    int64_t param, full_offset, local_offset, count;
  };
  struct Piece {
    int64_t elements = 0;
    std::vector<int64_t> offsets;              // by parameter
    std::vector<std::vector<int64_t>> shapes;  // by parameter
    std::vector<Stretch> stretches;
  };
  Piece make_piece(const TrainMesh& mesh, const std::vector<ParamSpec>& specs, int rank) const;
  template <class T>
  static void pack(const Piece& piece, const T* const* full, T* out);

  int rank_, ranks_;
  std::vector<Piece> pieces_;  // by rank
  int64_t longest_ = 0;        // elements of the largest piece
  // Messages by rank, kept between calls.
  std::vector<float> gathered_;
  std::vector<std::vector<int64_t>> addends_out_, addends_in_;
};

}  // namespace muonrt::train
