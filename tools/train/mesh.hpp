#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"

namespace muonrt::train {

/// The mesh of a run. The name of a mesh dimension determines the placement of parameters:
///   fsdp, shard         shards dimension 0 of every parameter
///   tp                  shards dimension 1 of matrices and replicates vectors
///   dp, replicate, ...  any other name replicates
/// On every mesh each rank computes its own share of the batch.
class TrainMesh {
 public:
  /// @param text  "dp=2,fsdp=2"; empty: fsdp over all ranks, with dp=2 before it if at least two
  ///              ranks are left for fsdp (4 ranks: dp=2,fsdp=2).
  /// Throws std::runtime_error if the text cannot be parsed, or if the size is not `ranks`.
  TrainMesh(const std::string& text, int ranks);

  const std::string& text() const { return text_; }
  int ranks() const { return ranks_; }
  const muonrt_mesh_t& c_mesh() const { return mesh_; }
  /// Placements of a parameter with `dims` dimensions, one for each mesh dimension.
  std::vector<muonrt_placement_t> placements(int dims) const;

  TrainMesh(const TrainMesh&) = delete;
  TrainMesh& operator=(const TrainMesh&) = delete;

 private:
  enum class Kind { kReplicate, kRows, kColumns };

  std::string text_;
  int ranks_;
  std::vector<std::string> names_;
  std::vector<const char*> name_pointers_;
  std::vector<int64_t> shape_;
  std::vector<Kind> kinds_;
  muonrt_mesh_t mesh_;
};

}  // namespace muonrt::train
