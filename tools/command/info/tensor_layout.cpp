#include "command/info/tensor_layout.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "layout/parse.hpp"
#include "layout/strategies.hpp"

namespace muonrt::tool {

namespace {

/// Returns the bounds of `parts` uneven ranges of [0, size), some of which are empty. The bounds
/// depend on `seed`.
std::vector<int64_t> uneven_bounds(int64_t size, int64_t parts, size_t seed) {
  std::vector<int64_t> out = {0};
  int64_t sum = 0, total = 0;
  const auto weight = [&](int64_t i) {
    return (static_cast<int64_t>(seed) * 3 + i * 7 + i * i) % 5;
  };
  for (int64_t i = 0; i < parts; ++i) total += weight(i);
  for (int64_t i = 0; i < parts; ++i) {
    sum += weight(i);
    out.push_back(i + 1 == parts ? size : size * sum / std::max<int64_t>(1, total));
  }
  return out;
}

/// Replaces placements of dimensions that the tensor does not have with R, and omits cuts of these
/// dimensions.
std::string fitting_placements(const std::string& text, size_t dims) {
  std::vector<Placement> list = parse_placements(text);
  for (Placement& p : list) {
    if (p.kind != PlacementKind::kReplicate && p.tensor_dim >= static_cast<int>(dims)) p = {};
  }
  return to_text(list);
}

std::string fitting_cuts(const std::string& text, size_t dims) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    const auto dim = static_cast<size_t>(std::stoi(item.substr(item.find(':') + 1)));
    if (dim < dims) out += (out.empty() ? "" : ",") + item;
    at = end + 1;
  }
  return out;
}

/// Returns one range for each rank of the mesh. Every local tensor that the cuts produce is divided
/// among the ranks along the mesh dimensions `free`, in descending order if the seed is odd.
std::string flat_text(const Layout& before, const std::vector<int>& free, size_t seed) {
  const Mesh& mesh = before.mesh();
  const int64_t shards = mesh.count_over(free);
  std::string out;
  for (int64_t position = 0; position < mesh.size(); ++position) {
    int64_t shard = 0;
    for (const int k : free) {
      shard = shard * mesh.shape()[static_cast<size_t>(k)] + mesh.coord(position, k);
    }
    if (seed % 2 == 1) shard = shards - 1 - shard;
    const int64_t numel = before.local_numel(mesh.ranks()[static_cast<size_t>(position)]);
    const auto bounds = uneven_bounds(numel, shards, seed);
    out += fmt::format("{}{}-{}", position > 0 ? "," : "", bounds[static_cast<size_t>(shard)],
                       bounds[static_cast<size_t>(shard) + 1]);
  }
  return out;
}

LayoutText text_of(const LayoutWords& words, const ModelTensor& tensor, size_t index) {
  const size_t dims = tensor.shape.size();
  LayoutText text;
  text.shape = fmt::format("{}", fmt::join(tensor.shape, ","));
  text.mesh = words.mesh;
  text.rank_array = words.rank_array;
  const std::string& placements =
      tensor.stack() && !words.stack.empty() ? words.stack : words.placements;
  if (!placements.empty()) {
    text.placements = fitting_placements(placements, dims);
    text.reading = words.reading;
    // With FSDP, a scalar has no dimension to shard.
    if (text.placements.find('S') != std::string::npos) text.flat_dims = words.flat_dims;
  } else {
    text.cuts = fitting_cuts(words.cuts, dims);
  }
  if (words.last.empty() || dims == 0) return text;
  const Layout before = layout_from_text(text);
  std::vector<int> free;
  for (const int k : before.replica_dims()) free.push_back(k);
  const int64_t shards = before.mesh().count_over(free);
  if (words.last == "row-bounds") {
    text.row_bounds =
        fmt::format("{}", fmt::join(uneven_bounds(tensor.shape[0], shards, index), ","));
  } else if (words.last == "owner") {
    text.owner = fmt::format("{}", static_cast<int64_t>(index) % shards);
  } else {
    text.flat = flat_text(before, free, index);
  }
  return text;
}

LayoutText text_of(const ExactWords& words) {
  LayoutText text;
  text.shape = fmt::format("{}", fmt::join(words.shape, ","));
  text.mesh = words.mesh;
  text.placements = words.placements;
  text.reading = words.reading;
  text.cuts = words.cuts;
  text.row_bounds = words.row_bounds;
  text.owner = words.owner;
  text.flat = words.flat;
  return text;
}

std::vector<int32_t> narrow(const std::vector<int>& dims) { return {dims.begin(), dims.end()}; }

}  // namespace

int64_t mesh_ranks(const std::string& mesh) { return parse_mesh(mesh).size(); }
void check_mesh_names(const std::string& mesh) {
  placements_from_names(parse_mesh(mesh), -1, false);
}

struct TensorLayout::Inside {
  explicit Inside(const LayoutText& text);
  void take_placements(const LayoutText& text);
  void take_cuts();
  void take_last();

  Layout layout;
  std::vector<const char*> names;
  std::vector<muonrt_placement_t> placements;
  std::vector<int32_t> flat_dims, last_dims;
  std::vector<std::vector<int32_t>> cut_dims;
  std::vector<muonrt_cut_t> cuts;
  std::vector<int64_t> values;
  muonrt_mesh_t mesh;
  muonrt_layout_t c;
};

TensorLayout::Inside::Inside(const LayoutText& text) : layout(layout_from_text(text)) {
  const Mesh& m = layout.mesh();
  for (const std::string& name : m.names()) names.push_back(name.c_str());
  muonrt_mesh_init(&mesh);
  mesh.ndim = m.dims();
  mesh.shape = m.shape().data();
  mesh.names = names.data();
  mesh.ranks = m.ranks().data();
  muonrt_layout_init(&c);
  c.mesh = &mesh;
  if (!text.placements.empty()) {
    take_placements(text);
  } else {
    take_cuts();
  }
  take_last();
}

void TensorLayout::Inside::take_placements(const LayoutText& text) {
  for (const Placement& p : parse_placements(text.placements)) {
    placements.push_back({static_cast<int32_t>(p.kind), p.tensor_dim, p.split_factor});
  }
  flat_dims = narrow(parse_mesh_dims(text.flat_dims, layout.mesh()));
  c.placements = placements.data();
  c.reading = text.reading == "ordered" ? MUONRT_READING_ORDERED : MUONRT_READING_LITERAL;
  c.flat_dims = flat_dims.empty() ? nullptr : flat_dims.data();
  c.n_flat_dims = static_cast<int32_t>(flat_dims.size());
}

void TensorLayout::Inside::take_cuts() {
  for (const Cut& cut : layout.cuts()) cut_dims.push_back(narrow(cut.mesh_dims));
  for (size_t i = 0; i < cut_dims.size(); ++i) {
    const Cut& cut = layout.cuts()[i];
    cuts.push_back({cut_dims[i].data(), static_cast<int32_t>(cut_dims[i].size()), cut.tensor_dim,
                    cut.split_factor, cut.unit});
  }
  c.cuts = cuts.data();
  c.n_cuts = static_cast<int32_t>(cuts.size());
}

void TensorLayout::Inside::take_last() {
  if (layout.kind() == Layout::Kind::kRowBounds) {
    c.kind = MUONRT_LAYOUT_ROW_BOUNDS;
    c.last_dim = layout.row_bounds().tensor_dim;
    last_dims = narrow(layout.row_bounds().mesh_dims);
    values = layout.row_bounds().bounds;
  } else if (layout.kind() == Layout::Kind::kOwner) {
    c.kind = MUONRT_LAYOUT_OWNER;
    last_dims = narrow(layout.owner().mesh_dims);
    values = {layout.owner().shard};
  } else if (layout.kind() == Layout::Kind::kFlat) {
    c.kind = MUONRT_LAYOUT_FLAT;
    last_dims = narrow(layout.flat().mesh_dims);
    for (const auto& [begin, end] : layout.flat().ranges) {
      values.push_back(begin);
      values.push_back(end);
    }
  }
  c.last_dims = last_dims.empty() ? nullptr : last_dims.data();
  c.n_last_dims = static_cast<int32_t>(last_dims.size());
  c.values = values.data();
  c.n_values = static_cast<int64_t>(values.size());
}

TensorLayout::TensorLayout(const LayoutWords& words, const ModelTensor& tensor, size_t index)
    : inside_(std::make_unique<Inside>(text_of(words, tensor, index))) {}
TensorLayout::TensorLayout(const ExactWords& words)
    : inside_(std::make_unique<Inside>(text_of(words))) {}
TensorLayout::~TensorLayout() = default;
TensorLayout::TensorLayout(TensorLayout&&) noexcept = default;

const muonrt_layout_t* TensorLayout::c() const { return &inside_->c; }

bool TensorLayout::partial() const { return !inside_->layout.partial_dims().empty(); }
int64_t TensorLayout::partial_grads() const { return inside_->layout.partial_count(); }
int64_t TensorLayout::partial_grad(int rank) const { return inside_->layout.partial_index(rank); }
std::string TensorLayout::describe() const { return inside_->layout.describe(); }

std::vector<Stretch> TensorLayout::stretches(int rank) const {
  const Layout& layout = inside_->layout;
  if (!layout.holds_mesh_rank(rank) || layout.local_numel(rank) == 0) return {};
  Runs held = {{0, 1}};
  for (int d = 0; d < layout.dims(); ++d) {
    held = flatten(held, layout.runs_before_flat(rank, d), layout.shape()[static_cast<size_t>(d)]);
  }
  if (!layout.product_form()) {
    const auto [begin, end] = layout.flat_range(rank);
    held = slice(held, begin, end);
  }
  std::vector<Stretch> out;
  int64_t local = 0;
  for (const Run& run : held) {
    out.push_back({run.begin, local, run.end - run.begin});
    local += run.end - run.begin;
  }
  return out;
}

}  // namespace muonrt::tool
