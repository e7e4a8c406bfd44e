#include "layout/layout.hpp"

#include <algorithm>
#include <numeric>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace muonrt {

namespace {

// Limits memory, because a strided cut creates one run for each group.
constexpr int64_t kMaxGroups = int64_t{1} << 24;

int64_t checked_numel(const std::vector<int64_t>& shape) {
  int64_t out = 1;
  bool empty = false;
  for (size_t d = 0; d < shape.size(); ++d) {
    MUONRT_REQUIRE(shape[d] >= 0, Status::kInvalidArgument, "shape ", shape, ": dim ", d,
                   " is negative; give the global shape");
    empty = empty || shape[d] == 0;
    out = checked_mul(out, std::max<int64_t>(shape[d], 1));
  }
  return empty ? 0 : out;
}

}  // namespace

Layout::Layout() {
  static const Layout scalar(std::make_shared<const Mesh>(), {}, {}, std::monostate{}, {});
  d_ = scalar.d_;
}

Layout::Layout(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape, std::vector<Cut> cuts,
               Last last, std::vector<int> partial_mesh_dims) {
  MUONRT_REQUIRE(mesh != nullptr, Status::kInvalidArgument,
                 "layout: the mesh is missing; pass a mesh (for one rank a mesh without dims)");
  const auto made = std::make_shared<Definition>();
  d_ = made;  // set before the checks below, which read d_
  Definition& d = *made;
  d.numel = checked_numel(shape);
  d.mesh = std::move(mesh);
  d.tensor_shape = shape;
  d.shape = std::move(shape);
  d.first.resize(d.shape.size() + 1);
  std::iota(d.first.begin(), d.first.end(), 0);
  d.cuts = std::move(cuts);
  d.last = std::move(last);
  d.partial_dims = std::move(partial_mesh_dims);
  std::vector<bool> used(static_cast<size_t>(d.mesh->dims()));
  for (const Cut& c : d.cuts) take_mesh_dims(c.mesh_dims, "a cut", used);
  if (const auto* r = std::get_if<RowBounds>(&d.last)) {
    take_mesh_dims(r->mesh_dims, "row bounds", used);
  } else if (const auto* o = std::get_if<Owner>(&d.last)) {
    take_mesh_dims(o->mesh_dims, "an owner", used);
  } else if (const auto* f = std::get_if<FlatRanges>(&d.last)) {
    take_mesh_dims(f->mesh_dims, "flat ranges", used);
  }
  for (int k = 0; k < d.mesh->dims(); ++k) {
    (used[static_cast<size_t>(k)] ? d.shard_dims : d.replica_dims).push_back(k);
  }
  if (!d.partial_dims.empty()) take_mesh_dims(d.partial_dims, "partial", used);
  std::sort(d.partial_dims.begin(), d.partial_dims.end());
  check_cuts(d);
  check_row_bounds(d);
  if (const auto* o = std::get_if<Owner>(&d.last)) {
    const int64_t shards = d.mesh->count_over(o->mesh_dims);
    MUONRT_REQUIRE(o->shard >= 0 && o->shard < shards, Status::kInvalidArgument, "owner: shard ",
                   o->shard, " does not exist; give 0 to ", shards - 1);
  }
  check_flat();
}

Layout Layout::from_cuts(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                         std::vector<Cut> cuts, std::vector<int> partial_mesh_dims) {
  return {std::move(mesh), std::move(shape), std::move(cuts), std::monostate{},
          std::move(partial_mesh_dims)};
}

Layout Layout::with_row_bounds(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                               std::vector<Cut> cuts_before, std::vector<int> mesh_dims,
                               int tensor_dim, std::vector<int64_t> bounds,
                               std::vector<int> partial_mesh_dims) {
  return {std::move(mesh), std::move(shape), std::move(cuts_before),
          RowBounds{std::move(mesh_dims), tensor_dim, std::move(bounds)},
          std::move(partial_mesh_dims)};
}

Layout Layout::with_owner(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                          std::vector<int> mesh_dims, int64_t shard, std::vector<Cut> cuts_before,
                          std::vector<int> partial_mesh_dims) {
  return {std::move(mesh), std::move(shape), std::move(cuts_before),
          Owner{std::move(mesh_dims), shard}, std::move(partial_mesh_dims)};
}

Layout Layout::with_flat(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                         std::vector<Cut> cuts_before, std::vector<int> mesh_dims,
                         std::vector<std::pair<int64_t, int64_t>> ranges,
                         std::vector<int> partial_mesh_dims) {
  return {std::move(mesh), std::move(shape), std::move(cuts_before),
          FlatRanges{std::move(mesh_dims), std::move(ranges)}, std::move(partial_mesh_dims)};
}

Layout Layout::from_placements(std::shared_ptr<const Mesh> mesh, std::vector<int64_t> shape,
                               const std::vector<Placement>& placements, Reading reading,
                               const std::vector<int>& flat_dims) {
  MUONRT_REQUIRE(mesh != nullptr, Status::kInvalidArgument,
                 "layout: the mesh is missing; pass a mesh (for one rank a mesh without dims)");
  std::vector<Cut> cuts =
      cuts_from_placements(*mesh, static_cast<int>(shape.size()), placements, reading, flat_dims);
  return from_cuts(std::move(mesh), std::move(shape), std::move(cuts),
                   muonrt::partial_dims(placements));
}

Layout Layout::viewed(int batch_dims, int row_dims) const {
  const int dims = static_cast<int>(d_->tensor_shape.size());
  MUONRT_REQUIRE(
      batch_dims >= 0 && row_dims >= 1 && batch_dims < dims && row_dims < dims - batch_dims,
      Status::kInvalidArgument, "layout of shape ", d_->tensor_shape, ": ", batch_dims,
      " dims of a stack and ", row_dims, " of rows leave no columns; give smaller numbers");
  std::vector<int> first = {0, batch_dims + row_dims, dims};
  if (batch_dims > 0) first.insert(first.begin() + 1, batch_dims);
  return with_dims(std::move(first));
}

Layout Layout::as_matrix() const {
  return dims() > 2 ? with_dims({0, d_->first[1], d_->first.back()}) : *this;
}

Layout Layout::with_dims(std::vector<int> first) const {
  auto made = std::make_shared<Definition>(*d_);
  made->shape.assign(first.size() - 1, 1);
  for (size_t d = 0; d < made->shape.size(); ++d) {
    for (int t = first[d]; t < first[d + 1]; ++t)
      made->shape[d] *= d_->tensor_shape[static_cast<size_t>(t)];
  }
  made->first = std::move(first);
  return Layout(std::move(made));
}

void Layout::take_mesh_dims(const std::vector<int>& dims, const char* what,
                            std::vector<bool>& used) const {
  MUONRT_REQUIRE(!dims.empty(), Status::kInvalidArgument, "layout: ", what,
                 " names no mesh dim; name the mesh dims it acts over");
  for (const int k : dims) {
    MUONRT_REQUIRE(k >= 0 && k < d_->mesh->dims(), Status::kInvalidArgument, "layout: ", what,
                   " names mesh dim ", k, ", which does not exist in the mesh ",
                   d_->mesh->describe(), "; give 0 to ", d_->mesh->dims() - 1);
    MUONRT_REQUIRE(!used[static_cast<size_t>(k)], Status::kInvalidArgument, "layout: ", what,
                   " names mesh dim '", d_->mesh->names()[static_cast<size_t>(k)],
                   "', which is already in use; name it "
                   "once");
    used[static_cast<size_t>(k)] = true;
  }
}

void Layout::check_cuts(Definition& definition) const {
  const int dims = static_cast<int>(d_->tensor_shape.size());
  std::vector<int64_t> groups(d_->tensor_shape.size(), 1);
  for (Cut& c : definition.cuts) {
    c.tensor_dim = normalized_dim(c.tensor_dim, dims);
    MUONRT_REQUIRE(c.split_factor >= 1, Status::kInvalidArgument, "layout: a cut of tensor dim ",
                   c.tensor_dim, " has split factor ", c.split_factor,
                   ", but must be at least 1; use 1 for a contiguous shard");
    MUONRT_REQUIRE(c.unit >= 1, Status::kInvalidArgument, "layout: a cut of tensor dim ",
                   c.tensor_dim, " has unit ", c.unit,
                   ", but must be at least 1; use 1 to cut between any two rows");
    const auto d = static_cast<size_t>(c.tensor_dim);
    const int64_t most = std::min(c.split_factor, std::max<int64_t>(d_->tensor_shape[d], 1));
    MUONRT_REQUIRE(most <= kMaxGroups / groups[d], Status::kInvalidArgument,
                   "layout: the cuts of tensor dim ", d, " make more than ", kMaxGroups,
                   " groups, because split factors multiply; use smaller split factors");
    groups[d] *= most;
  }
}

void Layout::check_row_bounds(Definition& definition) const {
  auto* r = std::get_if<RowBounds>(&definition.last);
  if (r == nullptr) return;
  r->tensor_dim = normalized_dim(r->tensor_dim, static_cast<int>(d_->tensor_shape.size()));
  const std::vector<int64_t>& b = r->bounds;
  const int64_t shards = d_->mesh->count_over(r->mesh_dims);
  MUONRT_REQUIRE(std::ssize(b) == shards + 1, Status::kInvalidArgument, "row bounds: ", b.size(),
                 " values for ", shards, " shards; give ", shards + 1,
                 " (shard i holds [bounds[i], bounds[i + 1]))");
  MUONRT_REQUIRE(b.front() == 0 && std::is_sorted(b.begin(), b.end()), Status::kInvalidArgument,
                 "row bounds do not ascend from 0; give the start of every shard's rows, then the "
                 "number of rows");
  const std::vector<int> dims = dims_of_cuts();
  for (int64_t i = 0; i < d_->mesh->count_over(dims); ++i) {
    const int64_t rows = list_length_after_cuts(d_->mesh->offset_over(dims, i), r->tensor_dim);
    MUONRT_REQUIRE(
        b.back() == rows, Status::kInvalidArgument, "row bounds end at ", b.back(),
        ", but tensor dim ", r->tensor_dim, " has ", rows,
        " indices after the cuts; end with that number (flat ranges can differ between ranks)");
  }
}

void Layout::check_flat() const {
  const auto* f = std::get_if<FlatRanges>(&d_->last);
  if (f == nullptr) return;
  const int64_t shards = d_->mesh->count_over(f->mesh_dims), all = shard_count();
  MUONRT_REQUIRE(std::ssize(f->ranges) == shards || std::ssize(f->ranges) == all,
                 Status::kInvalidArgument, "flat ranges: ", f->ranges.size(), " ranges for ",
                 shards, " shards; give one for each shard",
                 shards == all ? "" : " (or for each shard of the shard group)");
  const std::vector<int> outer = dims_of_cuts();
  for (int64_t i = 0; i < d_->mesh->count_over(outer); ++i) {
    const int64_t base = d_->mesh->offset_over(outer, i);
    std::vector<std::pair<int64_t, int64_t>> held;
    for (int64_t s = 0; s < shards; ++s) {
      const auto range = flat_range_at(base + d_->mesh->offset_over(f->mesh_dims, s));
      MUONRT_REQUIRE(range.first >= 0 && range.first <= range.second, Status::kInvalidArgument,
                     "flat ranges: [", range.first, ", ", range.second, ") of shard ", s,
                     " is invalid; use 0 <= begin <= end");
      if (range.first < range.second) held.push_back(range);
    }
    std::sort(held.begin(), held.end());
    int64_t at = 0;
    for (const auto& range : held) {
      MUONRT_REQUIRE(range.first == at, Status::kInvalidArgument, "flat ranges: [", range.first,
                     ", ", range.second, range.first < at ? ") overlaps" : ") leaves a gap after",
                     " the range that ends at ", at, "; hold every element exactly once");
      at = range.second;
    }
    const int64_t numel = numel_before_flat(base);
    MUONRT_REQUIRE(at == numel, Status::kInvalidArgument, "flat ranges end at ", at,
                   ", but the local tensor has ", numel,
                   " elements; hold every element exactly once");
  }
}

std::vector<int> Layout::dims_of_cuts() const {
  std::vector<int> out;
  for (const Cut& c : d_->cuts) out.insert(out.end(), c.mesh_dims.begin(), c.mesh_dims.end());
  return out;
}

}  // namespace muonrt
