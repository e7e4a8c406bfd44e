#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "layout/layout.hpp"
#include "muonrt/layout.h"

namespace muonrt::api {

/// Converts C layouts. Layouts with equal meshes share the Mesh object, and equal layouts share
/// their memory.
class LayoutReader {
 public:
  explicit LayoutReader(int world) : world_(world) {}
  /// @param layout  Null means that the tensor is replicated over all ranks.
  /// @param who     Name of the tensor for messages, for example "param 'wq'".
  /// Errors: INVALID_ARGUMENT if the layout is invalid.
  Layout read(const muonrt_layout_t* layout, int32_t ndim, const int64_t* shape,
              const std::string& who);
  /// @param given  Null means a mesh of all ranks with one dimension "world".
  std::shared_ptr<const Mesh> mesh(const muonrt_mesh_t* given, const std::string& who);

 private:
  int world_;
  std::vector<std::shared_ptr<const Mesh>> meshes_;
  std::unordered_map<uint64_t, Layout> layouts_;  // keys are hashes
};

}  // namespace muonrt::api
