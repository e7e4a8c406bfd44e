// Fuzzes the meshes of `muonrt plan`. The first two lines of the input are the meshes. Any bytes
// must give ranks with placements, or an error.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "command/plan/meshes.hpp"
#include "fuzz/target.hpp"

namespace {

/// Computes the placements of a tensor. If the mesh was accepted, an error must name a dimension.
void place(const muonrt::tool::PlanMeshes& meshes, const muonrt::tool::ModelTensor& tensor) {
  const auto placements = meshes.placements(tensor);
  if (static_cast<int>(placements.size()) != meshes.of(tensor).dims()) std::abort();
}

}  // namespace

int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t first = text.find('\n');
  const std::string mesh = text.substr(0, first);
  const std::string rest = first == std::string::npos ? "" : text.substr(first + 1);
  try {
    const muonrt::tool::PlanMeshes meshes(mesh, rest.substr(0, rest.find('\n')));
    if (meshes.world() < 1) std::abort();
    const muonrt::tool::ModelTensor dense{"model.layers.0.mlp.up_proj.weight", {12, 8}, true};
    muonrt::tool::ModelTensor experts{"model.layers.0.mlp.experts.up_proj", {4, 12, 8}, true};
    if (meshes.of(dense).size() != meshes.of(experts).size()) std::abort();
    experts.named = true;
    place(meshes, dense);
    place(meshes, experts);
  } catch (const std::runtime_error&) {
  }
  return 0;
}
