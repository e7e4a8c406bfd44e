#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "show/table.hpp"

namespace muonrt::tool {

/// One row of --compare: a strategy, or a mesh.
struct ComparisonRow {
  std::string name;
  std::string assumption;                                     // a sentence; "" for a mesh
  double step = 0;                                            // seconds
  double products = 0, exchange = 0, exposed = 0, local = 0;  // of the rank with the most work
  int64_t memory_bytes = 0;                                   // of the rank that needs the most
  int64_t sent_bytes = 0;                                     // of the rank that sends the most
};

/// @param first  the heading of the names.
Table comparison_table(const std::string& first, const std::vector<ComparisonRow>& rows);

/// "name: assumption" for each, one a line.
std::string assumptions_of(const std::vector<ComparisonRow>& rows);

/// {"rows": [...], "assumptions": {...}}; meshes have no assumptions.
std::string comparison_json(const std::string& first, const std::vector<ComparisonRow>& rows);

}  // namespace muonrt::tool
