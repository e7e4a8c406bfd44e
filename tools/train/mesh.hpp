#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"

namespace muonrt::train {

/// The mesh of a run. Its dimensions have names from muonrt/strategies.h, which determine the
/// placements of the parameters. tp shards dimension 1 of matrices and replicates vectors. On every
/// mesh, even along tp, each rank computes a different share of the batch.
class TrainMesh {
 public:
  /// @param text  for example "dp=2,fsdp=2". If it is empty, an even number of at least 4 ranks
  ///     forms dp=2,fsdp=ranks/2, and any other number forms one dimension. Throws
  ///     std::runtime_error if the text cannot be parsed, if a name is unknown, or if the size is
  ///     not `ranks`.
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
