#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layout/layout.hpp"

namespace muonrt {

// Parsers for the text forms of layouts on the command line. The parsers ignore blanks between
// tokens. Every error is INVALID_ARGUMENT; its message quotes the wrong part and shows the expected
// form.

/// Parses a list such as "4096,2048". An empty text means an empty list.
/// @param what  Name of the text in error messages.
std::vector<int64_t> parse_list(std::string_view text, std::string_view what);

/// Parses a mesh such as "dp=3,tp=2" with an optional rank array such as "5,4,3,2,1,0". An empty
/// text means one rank without dims.
Mesh parse_mesh(std::string_view text, std::string_view rank_array = {});

/// Parses placements in the short form, such as "S(0),SS(0,2),R,P", or in the forms that DTensor
/// prints, such as "(Shard(dim=0), Replicate())", "[_StridedShard(dim=0, sf=2), Partial(sum)]" or
/// "_S(0, 2)".
std::vector<Placement> parse_placements(std::string_view text);

/// Parses cuts, outermost first, such as "tp:0:2,dp*cp:0:1:64". A cut consists of mesh dims, a
/// tensor dim, and optionally a split factor and a unit. Mesh dims that act as one flattened dim
/// are joined with *.
std::vector<Cut> parse_cuts(std::string_view text, const Mesh& mesh);

/// Parses "dp*cp" into the mesh dims with these names, in this order.
std::vector<int> parse_mesh_dims(std::string_view text, const Mesh& mesh);

/// Parses ranges. For example, "0-5,5-9" becomes [0, 5), [5, 9).
std::vector<std::pair<int64_t, int64_t>> parse_ranges(std::string_view text);

/// Parses "literal" or "ordered".
Reading parse_reading(std::string_view text);

/// A layout as text. It has either `placements`, or `cuts` and at most one of the last three
/// fields.
struct LayoutText {
  std::string shape;       // "7"
  std::string mesh;        // "dp=3,tp=2"
  std::string rank_array;  // "5,4,3,2,1,0"; "" means 0, 1, 2, ...
  std::string placements;  // "SS(0,2),S(0)"
  std::string reading;     // "ordered"; "" means "literal"
  std::string flat_dims;   // FSDP mesh dims for the ordered reading: "dp_shard*cp"
  std::string cuts;
  std::string partial;  // partial mesh dims: "dp*cp"; with placements, use P there instead
  // The next three fields apply to the mesh dims before the colon. Without a colon, they apply to
  // all mesh dims that neither a cut nor `partial` names.
  std::string row_bounds;  // "0,3,3,7", "dp:0,3,3,7", or with a tensor dim "dp:1:0,3,3,7"
  std::string owner;       // "2", "dp:2"
  std::string flat;        // "0-5,5-9", "dp:0-5,5-9"
};

/// Creates the layout that the texts describe. Errors: any error of the parsers above and of the
/// functions that make a Layout.
Layout layout_from_text(const LayoutText& text);

}  // namespace muonrt
