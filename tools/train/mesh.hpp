#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"

namespace muonrt::train {

/// The mesh of a run. The names of its dimensions are defined in muonrt/strategies.h and determine
/// the placements of the parameters. tp shards dimension 1 of matrices and replicates vectors. On
/// every mesh, each rank computes a different share of the batch.
class TrainMesh {
 public:
  /// @param text  for example "dp=2,fsdp=2". If empty, the mesh is fsdp over all ranks, with dp=2
  ///     before it if at least two ranks are left for fsdp (4 ranks: dp=2,fsdp=2).
  /// Throws std::runtime_error if the text cannot be parsed, if a name is unknown, or if the size
  /// is not `ranks`.
  TrainMesh(const std::string& text, int ranks);

  const std::string& text() const { return text_; }
  int ranks() const { return ranks_; }
  const muonrt_mesh_t& c_mesh() const { return mesh_; }
  /// Returns the placements of a parameter with `dims` dimensions, one for each mesh dimension.
  std::vector<muonrt_placement_t> placements(int dims) const;

  TrainMesh(const TrainMesh&) = delete;
  TrainMesh& operator=(const TrainMesh&) = delete;

 private:
  std::string text_;
  int ranks_;
  std::vector<std::string> names_;
  std::vector<const char*> name_pointers_;
  std::vector<int64_t> shape_;
  muonrt_mesh_t mesh_;
};

}  // namespace muonrt::train
