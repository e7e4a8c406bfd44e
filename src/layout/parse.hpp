#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layout/layout.hpp"

namespace muonrt {

// The text forms of layouts for the command line. Blanks between tokens are ignored. Every error is
// INVALID_ARGUMENT, with the part that is wrong and the expected form.

/// Parses "4096,2048"; "" is an empty list. @param what  names the text in errors.
std::vector<int64_t> parse_list(std::string_view text, std::string_view what);

/// Parses "dp=3,tp=2" and an optional rank array "5,4,3,2,1,0"; "" is one rank without dims.
Mesh parse_mesh(std::string_view text, std::string_view rank_array = {});

/// Parses "S(0),SS(0,2),R,P", or what a DTensor prints: "(Shard(dim=0), Replicate())",
/// "[_StridedShard(dim=0, sf=2), Partial(sum)]", "_S(0, 2)".
std::vector<Placement> parse_placements(std::string_view text);

/// Parses cuts, outermost first: "tp:0:2,dp*cp:0:1:64". A cut has mesh dims (joined by * if they
/// cut as one), a tensor dim, and optionally a split factor and a unit.
std::vector<Cut> parse_cuts(std::string_view text, const Mesh& mesh);

/// Parses "dp*cp" into the mesh dims with these names, in this order.
std::vector<int> parse_mesh_dims(std::string_view text, const Mesh& mesh);

/// Parses "0-5,5-9" into [0, 5), [5, 9).
std::vector<std::pair<int64_t, int64_t>> parse_ranges(std::string_view text);

/// Parses "literal" or "ordered".
Reading parse_reading(std::string_view text);

/// A layout as text: `placements`, or `cuts` and at most one of the last three fields.
struct LayoutText {
  std::string shape;       // "7"
  std::string mesh;        // "dp=3,tp=2"
  std::string rank_array;  // "" : 0, 1, 2, ...
  std::string placements;  // "SS(0,2),S(0)"
  std::string reading;     // "" : literal
  std::string flat_dims;   // FSDP mesh dims of the ordered reading, "dp_shard*cp"
  std::string cuts;
  std::string partial;  // partial mesh dims, "dp*cp" (with placements: write P)
  // Over the mesh dims that neither a cut nor `partial` names, unless prefixed by "dims:".
  std::string row_bounds;  // "0,3,3,7", "dp:0,3,3,7", or with the tensor dim "dp:1:0,3,3,7"
  std::string owner;       // "2", "dp:2"
  std::string flat;        // "0-5,5-9", "dp:0-5,5-9"
};

/// Errors: as the parsers and the constructors of Layout.
Layout layout_from_text(const LayoutText& text);

}  // namespace muonrt
