#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "show/table.hpp"

namespace muonrt::tool {

/// A row of the output of --compare (a strategy), or of a comparison of meshes.
struct ComparisonRow {
  std::string name;
  std::string assumption;                                     // a sentence; empty for a mesh
  double step = 0;                                            // seconds
  double products = 0, exchange = 0, exposed = 0, local = 0;  // of the rank with the most work
  int64_t memory_bytes = 0;                                   // maximum over the ranks
  int64_t sent_bytes = 0;                                     // maximum over the ranks
};

/// @param first  the heading of the column of names.
Table comparison_table(const std::string& first, const std::vector<ComparisonRow>& rows);

/// Returns a line "name: assumption" for each row.
std::string assumptions_of(const std::vector<ComparisonRow>& rows);

/// Returns the JSON text {"rows": [...], "assumptions": {...}}. For meshes, omits "assumptions".
std::string comparison_json(const std::string& first, const std::vector<ComparisonRow>& rows);

}  // namespace muonrt::tool
