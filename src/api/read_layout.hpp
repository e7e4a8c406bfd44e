#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "layout/layout.hpp"
#include "muonrt/layout.h"

namespace muonrt::api {

/// Converts C layouts. Layouts with equal meshes share one Mesh, and equal layouts share their
/// memory.
class LayoutReader {
 public:
  explicit LayoutReader(int world) : world_(world) {}
  /// @param layout  may be null: replicated over all ranks.
  /// @param who     "param 'wq'", for messages.
  /// Errors: INVALID_ARGUMENT.
  Layout read(const muonrt_layout_t* layout, int32_t ndim, const int64_t* shape,
              const std::string& who);
  /// @param given  may be null: all ranks, one dimension "world".
  std::shared_ptr<const Mesh> mesh(const muonrt_mesh_t* given, const std::string& who);

 private:
  int world_;
  std::vector<std::shared_ptr<const Mesh>> meshes_;
  std::unordered_map<uint64_t, Layout> layouts_;  // by hash
};

}  // namespace muonrt::api
