#include "layout/parse.hpp"

#include <algorithm>
#include <charconv>

#include "base/error.hpp"

namespace muonrt {

namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

/// Splits a text at the separators that are outside parentheses, and trims the items. An empty text
/// has no items.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  if (trim(text).empty()) return out;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(') ++depth;
    if (text[i] == ')') --depth;
    if (text[i] != separator || depth > 0) continue;
    out.push_back(trim(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  out.push_back(trim(text.substr(begin)));
  return out;
}

/// Parses all of `text` as an integer. Returns false if it is not an integer or does not fit into
/// 64 bits.
bool read_number(std::string_view text, int64_t& out) {
  const auto end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, out);
  return result.ec == std::errc() && result.ptr == end;
}

int64_t number(std::string_view item, std::string_view what, std::string_view context) {
  int64_t out = 0;
  MUONRT_REQUIRE(read_number(item, out), Status::kInvalidArgument, what, " '", context, "': '",
                 item, "' is not an integer of 64 bits; write digits");
  return out;
}

/// Parses a number that must fit into 32 bits, such as a rank or a tensor dim.
int32_t small_number(std::string_view item, std::string_view what, std::string_view context) {
  const int64_t out = number(item, what, context);
  MUONRT_REQUIRE(out >= INT32_MIN && out <= INT32_MAX, Status::kInvalidArgument, what, " '",
                 context, "': '", item, "' does not fit into 32 bits; write a smaller number");
  return static_cast<int32_t>(out);
}

/// The names of a placement that has arguments: its short form, and the form that DTensor prints.
struct PlacementForm {
  std::string_view head;
  PlacementKind kind;
};
constexpr PlacementForm kForms[] = {{"S(", PlacementKind::kShard},
                                    {"Shard(", PlacementKind::kShard},
                                    {"SS(", PlacementKind::kStridedShard},
                                    {"_S(", PlacementKind::kStridedShard},
                                    {"StridedShard(", PlacementKind::kStridedShard},
                                    {"_StridedShard(", PlacementKind::kStridedShard}};

std::string_view without(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

Placement parse_placement(std::string_view item, std::string_view context) {
  for (const char* replicated : {"R", "Replicate()"})
    if (item == replicated) return {PlacementKind::kReplicate, 0, 1};
  for (const char* partial : {"P", "P(sum)", "Partial()", "Partial(sum)"})
    if (item == partial) return {PlacementKind::kPartial, 0, 1};
  const auto* const form = std::find_if(std::begin(kForms), std::end(kForms), [&](const auto& f) {
    return item.starts_with(f.head) && item.ends_with(')');
  });
  MUONRT_REQUIRE(form != std::end(kForms), Status::kInvalidArgument, "placements '", context,
                 "': '", item,
                 "' is not a placement; write S(dim), SS(dim,split), R or P, or as DTensor prints "
                 "them");
  const bool strided = form->kind == PlacementKind::kStridedShard;
  const size_t open = form->head.size();
  const auto inside = split(item.substr(open, item.size() - open - 1), ',');
  MUONRT_REQUIRE(inside.size() == (strided ? 2u : 1u), Status::kInvalidArgument, "placements '",
                 context, "': '", item, "' has ", inside.size(), " numbers; write ",
                 strided ? "SS(dim,split)" : "S(dim)");
  Placement out{form->kind, 0, 1};
  out.tensor_dim = small_number(without(inside[0], "dim="), "placements", context);
  if (strided)
    out.split_factor =
        number(without(without(inside[1], "sf="), "split_factor="), "placements", context);
  MUONRT_REQUIRE(out.split_factor >= 1, Status::kInvalidArgument, "placements '", context, "': '",
                 item, "' has the split factor ", out.split_factor, "; write 1 or more");
  return out;
}

/// Splits "dims:rest" and stores "rest" in `text`. If "dims:" is missing, returns the mesh dims
/// that are used neither by a cut nor by `partial`.
std::vector<int> leading_dims(std::string_view& text, const Mesh& mesh,
                              const std::vector<Cut>& cuts, const std::vector<int>& partial) {
  const auto colon = text.find(':');
  if (colon != std::string_view::npos) {
    const std::vector<int> out = parse_mesh_dims(text.substr(0, colon), mesh);
    text.remove_prefix(colon + 1);
    return out;
  }
  std::vector<int> taken = partial, out;
  for (const Cut& c : cuts) taken.insert(taken.end(), c.mesh_dims.begin(), c.mesh_dims.end());
  for (int k = 0; k < mesh.dims(); ++k) {
    if (std::find(taken.begin(), taken.end(), k) == taken.end()) out.push_back(k);
  }
  return out;
}

void check_choice(const LayoutText& t) {
  const int last = !t.row_bounds.empty() + !t.owner.empty() + !t.flat.empty();
  MUONRT_REQUIRE(
      last <= 1, Status::kInvalidArgument,
      "layout: more than one of row bounds, owner and flat ranges is set, but each would be "
      "the innermost cut; set only one");
  MUONRT_REQUIRE(
      t.placements.empty() || (last == 0 && t.cuts.empty() && t.partial.empty()),
      Status::kInvalidArgument,
      "layout: placements are set together with cuts, row bounds, an owner, flat ranges or "
      "partial dims; set either placements or the others");
  MUONRT_REQUIRE(
      !t.placements.empty() || (t.reading.empty() && t.flat_dims.empty()), Status::kInvalidArgument,
      "layout: a reading or FSDP mesh dims are set without placements, but apply only to "
      "placements; leave them out");
}

}  // namespace

std::vector<int64_t> parse_list(std::string_view text, std::string_view what) {
  std::vector<int64_t> out;
  for (const auto item : split(text, ',')) out.push_back(number(item, what, text));
  return out;
}

Mesh parse_mesh(std::string_view text, std::string_view rank_array) {
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  for (const auto item : split(text, ',')) {
    const auto equals = item.find('=');
    MUONRT_REQUIRE(equals != std::string_view::npos && equals > 0, Status::kInvalidArgument,
                   "mesh '", text, "': '", item, "' is not a mesh dim; write name=size");
    names.emplace_back(trim(item.substr(0, equals)));
    MUONRT_REQUIRE(names.back().find_first_of("*:=()") == std::string::npos,
                   Status::kInvalidArgument, "mesh '", text, "': the name '", names.back(),
                   "' contains a separator (one of * : = ( )); use letters and digits");
    shape.push_back(number(trim(item.substr(equals + 1)), "mesh", text));
  }
  std::vector<int32_t> ranks;
  for (const auto item : split(rank_array, ',')) {
    ranks.push_back(small_number(item, "rank array", rank_array));
  }
  return Mesh(std::move(shape), std::move(names), std::move(ranks));
}

std::vector<Placement> parse_placements(std::string_view text) {
  std::string_view items = trim(text);
  if (items.starts_with('(') || items.starts_with('[')) {
    const char close = items.front() == '(' ? ')' : ']';
    MUONRT_REQUIRE(items.size() >= 2 && items.back() == close, Status::kInvalidArgument,
                   "placements '", text, "': the closing '", close,
                   "' is missing; write (Shard(dim=0), Replicate())");
    items = trim(items.substr(1, items.size() - 2));
    // A tuple with one item may end with a comma.
    if (items.ends_with(',')) items.remove_suffix(1);
  }
  std::vector<Placement> out;
  for (const auto item : split(items, ',')) out.push_back(parse_placement(item, text));
  return out;
}

std::vector<int> parse_mesh_dims(std::string_view text, const Mesh& mesh) {
  std::vector<int> out;
  for (const auto name : split(text, '*')) out.push_back(mesh.dim_of(name));
  return out;
}

std::vector<Cut> parse_cuts(std::string_view text, const Mesh& mesh) {
  std::vector<Cut> out;
  for (const auto item : split(text, ',')) {
    const auto fields = split(item, ':');
    MUONRT_REQUIRE(fields.size() >= 2 && fields.size() <= 4, Status::kInvalidArgument, "cuts '",
                   text, "': '", item, "' has ", fields.size(),
                   " fields; write mesh_dims:tensor_dim, optionally with :split_factor:unit");
    Cut c{parse_mesh_dims(fields[0], mesh), small_number(fields[1], "cuts", text), 1, 1};
    if (fields.size() > 2) c.split_factor = number(fields[2], "cuts", text);
    if (fields.size() > 3) c.unit = number(fields[3], "cuts", text);
    out.push_back(std::move(c));
  }
  return out;
}

std::vector<std::pair<int64_t, int64_t>> parse_ranges(std::string_view text) {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const auto item : split(text, ',')) {
    const auto dash = item.find('-');
    MUONRT_REQUIRE(dash != std::string_view::npos, Status::kInvalidArgument, "flat ranges '", text,
                   "': '", item, "' is not a range; write begin-end");
    out.emplace_back(number(trim(item.substr(0, dash)), "flat ranges", text),
                     number(trim(item.substr(dash + 1)), "flat ranges", text));
  }
  return out;
}

Reading parse_reading(std::string_view text) {
  MUONRT_REQUIRE(text == "literal" || text == "ordered", Status::kInvalidArgument, "reading '",
                 text, "' is unknown; write literal or ordered");
  return text == "literal" ? Reading::kLiteral : Reading::kOrdered;
}

Layout layout_from_text(const LayoutText& t) {
  check_choice(t);
  auto mesh = std::make_shared<const Mesh>(parse_mesh(t.mesh, t.rank_array));
  std::vector<int64_t> shape = parse_list(t.shape, "shape");
  if (!t.placements.empty()) {
    return Layout::from_placements(mesh, shape, parse_placements(t.placements),
                                   parse_reading(t.reading.empty() ? "literal" : t.reading),
                                   parse_mesh_dims(t.flat_dims, *mesh));
  }
  const std::vector<Cut> cuts = parse_cuts(t.cuts, *mesh);
  const std::vector<int> partial = parse_mesh_dims(t.partial, *mesh);
  if (!t.row_bounds.empty()) {
    std::string_view rest = t.row_bounds;
    const std::vector<int> dims = leading_dims(rest, *mesh, cuts, partial);
    const auto fields = split(rest, ':');
    MUONRT_REQUIRE(fields.size() == 1 || fields.size() == 2, Status::kInvalidArgument,
                   "row bounds '", t.row_bounds, "' have ", fields.size() + 1,
                   " fields; write bounds, mesh_dims:bounds or mesh_dims:tensor_dim:bounds");
    const int tensor_dim =
        fields.size() == 2 ? small_number(fields[0], "row bounds", t.row_bounds) : 0;
    return Layout::with_row_bounds(mesh, shape, cuts, dims, tensor_dim,
                                   parse_list(fields.back(), "row bounds"), partial);
  }
  if (!t.owner.empty()) {
    std::string_view rest = t.owner;
    const std::vector<int> dims = leading_dims(rest, *mesh, cuts, partial);
    return Layout::with_owner(mesh, shape, dims, number(trim(rest), "owner", t.owner), cuts,
                              partial);
  }
  if (!t.flat.empty()) {
    std::string_view rest = t.flat;
    const std::vector<int> dims = leading_dims(rest, *mesh, cuts, partial);
    return Layout::with_flat(mesh, shape, cuts, dims, parse_ranges(rest), partial);
  }
  return Layout::from_cuts(mesh, shape, cuts, partial);
}

}  // namespace muonrt
