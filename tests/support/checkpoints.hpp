#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "state/publisher.hpp"
#include "support/resumed.hpp"

/// Functions for small checkpoints and the files in their folders.
namespace resumed {

/// Returns a small case: two ranks, and one parameter of each kind.
inline world::Case small(int64_t rows = 6) {
  world::Case c = world::on_mesh({2});
  c.settings.groups = world::default_groups();
  c.settings.groups[0].normuon_axis = NormuonAxis::kRows;
  c.params.push_back(world::matrix("w", {rows, 5}, {{PlacementKind::kShard, 0, 1}}));
  c.params.push_back(world::matrix("b", {11}, {{PlacementKind::kReplicate, 0, 1}}));
  c.params.back().role = Role::kAdamW;
  c.params.back().dtype = DType::kBF16;
  c.steps = 3;
  return c;
}

inline std::string problem_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    return cat(status_name(e.status()), " ", e.message());
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

inline std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void put(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

/// Returns the names of the files in the folder, sorted, without the lock file.
inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename() != kLockName) out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace resumed
