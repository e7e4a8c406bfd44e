#include "layout/layout.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "command/command.hpp"
#include "command/info/layout_picture.hpp"
#include "command/validators.hpp"
#include "layout/parse.hpp"
#include "layout/strategies.hpp"
#include "muonrt/layout.h"
#include "opt_json/output_file.hpp"
#include "show/fit.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  LayoutText text;
  int world = 0;  // number of ranks; 0: the largest rank in the mesh + 1
  std::string picture;
  bool json = false;
};

constexpr int kMaxRanks = 1 << 20;

int world_of(const Layout& layout, int asked) {
  const auto& ranks = layout.mesh().ranks();
  const int last = *std::max_element(ranks.begin(), ranks.end());
  if (last >= kMaxRanks)
    throw std::runtime_error(
        fmt::format("--rank-array or --mesh: rank {} is too large for a table; stay below {}", last,
                    kMaxRanks));
  if (asked != 0 && asked <= last)
    throw std::runtime_error(fmt::format("--world is {}, but the mesh has rank {}; give {} or more",
                                         asked, last, last + 1));
  return std::max(asked, last + 1);
}

Json json_runs(const Runs& runs) {
  Json out = Json::array();
  for (const Run& r : runs) out.push_back({r.begin, r.end});
  return out;
}

/// Returns the flat range inside the local tensor after the cuts, as a list. If the range is empty,
/// the list is empty.
Runs flat_runs(const Layout& layout, int rank) {
  const auto [begin, end] = layout.flat_range(rank);
  return begin < end ? Runs{{begin, end}} : Runs{};
}

Json json_rank(const Layout& layout, int rank) {
  Json out;
  out["rank"] = rank;
  const auto coords = layout.mesh().coords(rank);
  out["coords"] = coords ? Json(*coords) : Json();
  // Flat ranges count the elements of the local tensor that remains after the cuts.
  if (layout.product_form() || !layout.cuts().empty()) {
    Json dims = Json::array();
    for (int d = 0; d < layout.dims(); ++d) {
      dims.push_back(json_runs(layout.runs_before_flat(rank, d)));
    }
    out["dims"] = std::move(dims);
  }
  if (!layout.product_form()) out["flat"] = json_runs(flat_runs(layout, rank));
  out["numel"] = layout.local_numel(rank);
  return out;
}

std::string json_of(const Layout& layout, int world) {
  Json out;
  out["shape"] = layout.shape();
  out["mesh"] = Json::object();
  for (int k = 0; k < layout.mesh().dims(); ++k) {
    const auto i = static_cast<size_t>(k);
    out["mesh"][layout.mesh().names()[i]] = layout.mesh().shape()[i];
  }
  out["ranks"] = Json::array();
  for (int rank = 0; rank < world; ++rank) out["ranks"].push_back(json_rank(layout, rank));
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, " x "));
}

std::string runs_text(const Runs& runs) {
  constexpr size_t kMost = 6;
  std::string out;
  for (size_t i = 0; i < runs.size() && i < kMost; ++i) {
    out += fmt::format("{}[{},{})", i > 0 ? " " : "", runs[i].begin, runs[i].end);
  }
  if (runs.size() > kMost) out += fmt::format(" and {} more", runs.size() - kMost);
  return out.empty() ? "-" : out;
}

std::string table_of(const Layout& layout, int world) {
  constexpr auto kLeft = Table::Align::kLeft;
  const bool flat = !layout.product_form();
  std::vector<Table::Column> columns = {
      {"rank", "rank"}, {"coords", "coords", kLeft}, {"shape", "local shape", kLeft}};
  const bool dims = !flat || !layout.cuts().empty();
  for (int d = 0; dims && d < layout.dims(); ++d) {
    columns.push_back({fmt::format("dim{}", d), fmt::format("indices of dim {}", d), kLeft});
  }
  if (flat) columns.push_back({"flat", dims ? "of these, flat" : "flat elements", kLeft});
  columns.push_back({"numel", "elements"});
  Table table(columns);
  for (int rank = 0; rank < world; ++rank) {
    const auto coords = layout.mesh().coords(rank);
    std::vector<Cell> row = {cell::count(rank),
                             cell::word(coords ? fmt::format("{}", fmt::join(*coords, " ")) : "-"),
                             cell::word(shape_text(layout.local_shape(rank)))};
    for (int d = 0; dims && d < layout.dims(); ++d) {
      row.push_back(cell::word(runs_text(layout.runs_before_flat(rank, d))));
    }
    if (flat) row.push_back(cell::word(runs_text(flat_runs(layout, rank))));
    row.push_back(cell::grouped(layout.local_numel(rank)));
    table.add(std::move(row));
  }
  return fmt::format("{}{} over {}: {}\n\n", shape_text(layout.shape()),
                     layout.partial_dims().empty() ? "" : ", partial,", layout.mesh().describe(),
                     layout.describe()) +
         table.text();
}

/// Returns a note if the other reading of the placements would give a different layout, otherwise
/// "".
std::string note_on_readings(const LayoutText& text, const Layout& layout) {
  if (text.placements.empty()) return "";
  const bool literal = text.reading.empty() || text.reading == "literal";
  LayoutText other = text;
  other.reading = literal ? "ordered" : "literal";
  if (!literal) other.flat_dims.clear();
  try {
    const Layout read = layout_from_text(other);
    if (read == layout) return "";
    std::vector<int> ranks;
    for (const int rank : layout.mesh().ranks()) {
      bool equal = true;
      for (int d = 0; d < layout.dims(); ++d) {
        equal = equal && read.runs(rank, d) == layout.runs(rank, d);
      }
      if (!equal) ranks.push_back(rank);
    }
    std::sort(ranks.begin(), ranks.end());
    return fmt::format(
        "The two readings differ: read as '{}', rank{} {} would hold other elements. "
        "distribute_tensor uses the literal reading; FSDP2 leaves the ordered one in a buffer that "
        "was cut before.\n",
        other.reading, ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
  } catch (const std::exception&) {
    return literal ? "Only the literal reading exists: the split factors encode no order of cuts.\n"
                   : "";
  }
}

/// Returns the placements that follow from the names of the mesh dimensions. Used if the options
/// give no placements, cuts or shards.
std::string placements_by_names(const LayoutText& text) {
  const auto dims = std::ssize(parse_list(text.shape, "shape"));
  const Mesh mesh = parse_mesh(text.mesh, text.rank_array);
  const auto named = placements_from_names(mesh, dims > 1 ? 1 : -1, /*expert=*/false);
  return to_text(dims > 0 ? named : std::vector<Placement>(named.size()));
}

int run(const Arguments& arguments) {
  LayoutText text = arguments.text;
  std::replace(text.flat_dims.begin(), text.flat_dims.end(), ',', '*');
  std::ranges::replace_if(
      text.shape, [](char c) { return c == 'x' || c == 'X'; }, ',');
  if ((text.placements + text.cuts + text.partial + text.row_bounds + text.owner + text.flat)
          .empty())
    text.placements = placements_by_names(text);
  const Layout layout = layout_from_text(text);
  const auto at_most = [](const char* option, int dims) {
    if (dims > MUONRT_MAX_DIMS)
      throw std::runtime_error(
          fmt::format("{} has {} dimensions, but an optimizer takes {} at most", option, dims,
                      MUONRT_MAX_DIMS));
  };
  at_most("--shape", layout.dims());
  at_most("--mesh", layout.mesh().dims());
  const int world = world_of(layout, arguments.world);
  const std::string note = note_on_readings(text, layout);
  if (!arguments.picture.empty()) write_text_file(arguments.picture, layout_picture(layout));
  if (arguments.json) {
    fmt::print("{}", json_of(layout, world));
    fmt::print(stderr, "{}", note);
  } else {
    print_fitted(table_of(layout, world) + (note.empty() ? "" : "\n") + note);
  }
  return 0;
}

}  // namespace

void add_layout(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("layout", "which indices of a tensor every rank holds");
  auto a = std::make_shared<Arguments>();
  LayoutText& t = a->text;
  command->add_option("--shape", t.shape, "sizes of the tensor: 4096x2048, or 4096,2048")
      ->required();
  command
      ->add_option("--mesh", t.mesh,
                   "the last dimension fastest; without placements and cuts the names decide; " +
                       mesh_help("shards dimension 1", "replicates"))
      ->required();
  command->add_option("--rank-array", t.rank_array,
                      "ranks of the mesh, row-major (default: 0,1,2,...)");
  command->add_option("--world", a->world, "number of ranks (default: the mesh's largest + 1)")
      ->check(CLI::Range(1, kMaxRanks));
  command->add_option("--placements", t.placements,
                      "one for each mesh dimension: S(dim), SS(dim,split), R, P, or as DTensor "
                      "prints them (default: by the names of --mesh)");
  command->add_option("--reading", t.reading, "of the placements: literal or ordered");
  command->add_option("--flat-dims", t.flat_dims,
                      "ordered: mesh dimensions that FSDP cuts as one, last: dp_shard*cp");
  command->add_option("--cuts", t.cuts,
                      "instead of placements, outermost first: mesh dims (joined by *):tensor "
                      "dim[:split[:unit]],...");
  command->add_option("--partial", t.partial, "mesh dimensions that hold partial gradients: dp*cp");
  command->add_option("--row-bounds", t.row_bounds,
                      "[mesh dims:[tensor dim:]]0,3,3,7: shard i holds [b_i, b_i+1)");
  command->add_option("--owner", t.owner, "[mesh dims:]shard that holds the whole tensor");
  command->add_option("--flat", t.flat, "[mesh dims:]0-5,5-9: elements of every shard");
  command->add_option("--picture", a->picture, "write the matrix, ranks as colours, to this SVG")
      ->check(file_name());
  command->add_flag("--json", a->json, "print JSON");
  command->footer(
      "Example: muonrt layout --shape 7 --mesh dp=3,tp=2 --placements \"SS(0,2),S(0)\" "
      "--reading literal");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
