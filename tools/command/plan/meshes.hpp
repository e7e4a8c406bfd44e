#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command/plan/models.hpp"
#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// A mesh that is given as text, such as "dp=16,fsdp=8,tp=4". Ranks 0, 1, 2, ... fill it in
/// row-major order.
class TextMesh {
 public:
  /// Throws a std::runtime_error that names the option and the invalid part of the text.
  TextMesh(const std::string& text, const std::string& option);

  muonrt_mesh_t c() const;
  int64_t size() const;
  int dims() const { return static_cast<int>(sizes_.size()); }
  const std::string& name(int d) const { return names_[static_cast<size_t>(d)]; }
  int64_t size(int d) const { return sizes_[static_cast<size_t>(d)]; }
  bool has(const std::string& name) const;
  void prepend(const std::string& name, int64_t size);
  std::string text() const;

 private:
  std::vector<std::string> names_;
  std::vector<int64_t> sizes_;
  mutable std::vector<const char*> name_pointers_;
};

/// The two meshes of a plan over the same ranks: one for expert stacks, and one for all other
/// tensors. If the mesh of the experts has fewer ranks, the remaining ranks hold replicas.
class PlanMeshes {
 public:
  /// Throws std::runtime_error with both sizes if the number of ranks of `experts` does not divide
  /// that of `mesh`, or if only `mesh` has ranks with partial gradients.
  /// @param experts  the mesh of experts; if empty, they have the same mesh as all other tensors.
  PlanMeshes(const std::string& mesh, const std::string& experts);

  int32_t world() const { return static_cast<int32_t>(dense_.size()); }
  const TextMesh& of(const ModelTensor& tensor) const { return tensor.stack() ? experts_ : dense_; }
  /// Returns the placements of muonrt_placements_for_tensor(). If the model is a list of shapes, TP
  /// instead shards the columns.
  std::vector<muonrt_placement_t> placements(const ModelTensor& tensor) const;
  std::string text() const;

 private:
  TextMesh dense_, experts_;
};

}  // namespace muonrt::tool
