#pragma once

// Random layouts of every kind for the property tests, each with what the slow way says of it.

#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include "layout/blocks.hpp"
#include "unit/layout/layout_naive.hpp"

namespace random_layout {

using muonrt::Layout;
using naive::List;

/// A number in [low, high], all equally likely from the first case on.
inline int64_t pick(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(low, high + 1));
}

struct Case {
  Layout layout;
  List shape, mesh;
  std::vector<muonrt::Cut> cuts;
  std::map<int, List> held;  // rank -> row-major numbers of its elements, in local order
};

inline std::vector<int32_t> random_ranks(int64_t size) {
  std::vector<int32_t> all(static_cast<size_t>(size + pick(0, 5)));
  std::iota(all.begin(), all.end(), static_cast<int32_t>(pick(0, 3)));
  std::mt19937 random(static_cast<unsigned>(pick(0, 1 << 20)));
  std::shuffle(all.begin(), all.end(), random);
  all.resize(static_cast<size_t>(size));
  return all;
}

inline List random_mesh() {
  List out;
  const int64_t dims = pick(1, 5);
  int64_t size = 1;
  for (int64_t k = 0; k < dims; ++k) {
    out.push_back(std::min(pick(1, 5), std::max<int64_t>(1, 48 / size)));
    size *= out.back();
  }
  return out;
}

/// Cuts by the given mesh dims in random order, some of them flattened into one.
inline std::vector<muonrt::Cut> random_cuts(std::vector<int> mesh_dims, int tensor_dims) {
  std::vector<muonrt::Cut> out;
  std::mt19937 random(static_cast<unsigned>(pick(0, 1 << 20)));
  std::shuffle(mesh_dims.begin(), mesh_dims.end(), random);
  for (const int k : mesh_dims) {
    if (!out.empty() && pick(0, 3) == 0) {
      out.back().mesh_dims.push_back(k);
      continue;
    }
    const int64_t factor = pick(0, 1) == 0 ? 1 : pick(1, 6),
                  unit = pick(0, 3) == 0 ? pick(1, 3) : 1;
    out.push_back({{k}, static_cast<int>(pick(0, tensor_dims - 1)), factor, unit});
  }
  return out;
}

/// shards + 1 bounds from 0 to n.
inline List random_bounds(int64_t shards, int64_t n) {
  List out = {0, n};
  for (int64_t i = 1; i < shards; ++i) out.push_back(pick(0, n));
  std::sort(out.begin(), out.end());
  return out;
}

/// One range for each shard, tiling [0, n), in random order of the shards.
inline std::vector<std::pair<int64_t, int64_t>> random_ranges(int64_t shards, int64_t n) {
  const List bounds = random_bounds(shards, n);
  std::vector<std::pair<int64_t, int64_t>> out;
  for (int64_t i = 0; i < shards; ++i) {
    out.emplace_back(bounds[static_cast<size_t>(i)], bounds[static_cast<size_t>(i) + 1]);
  }
  std::mt19937 random(static_cast<unsigned>(pick(0, 1 << 20)));
  std::shuffle(out.begin(), out.end(), random);
  return out;
}

struct Roles {
  std::vector<int> cut, last, partial, shard;  // mesh dims
};

inline Roles random_roles(const List& mesh, bool scalar, Layout::Kind kind) {
  Roles out;
  for (int k = 0; k < static_cast<int>(mesh.size()); ++k) {
    const int64_t role = pick(0, 5);
    if (role <= 2 && !scalar) out.cut.push_back(k);
    if (role == 3) out.partial.push_back(k);
    if (role >= 4 && kind != Layout::Kind::kCuts) out.last.push_back(k);
  }
  out.shard = out.cut;
  out.shard.insert(out.shard.end(), out.last.begin(), out.last.end());
  std::sort(out.shard.begin(), out.shard.end());
  std::mt19937 random(static_cast<unsigned>(pick(0, 1 << 20)));
  std::shuffle(out.last.begin(), out.last.end(), random);
  return out;
}

/// What the last step of a layout is, and the numbers that it takes.
struct LastStep {
  Layout::Kind kind = Layout::Kind::kCuts;
  std::vector<int> mesh_dims;
  int tensor_dim = -1;  // of row bounds
  List bounds;
  int64_t owner = 0;
  std::vector<std::pair<int64_t, int64_t>> ranges;
};

/// All but the flat ranges, which need to know what the cuts leave.
inline LastStep random_last(const Case& c, Layout::Kind kind, const Roles& roles) {
  LastStep out{roles.last.empty() ? Layout::Kind::kCuts : kind, roles.last, -1, {}, 0, {}};
  const int64_t shards = naive::count_of(c.mesh, roles.last);
  out.owner = pick(0, shards - 1);
  if (out.kind != Layout::Kind::kRowBounds) return out;
  for (int d = 0; d < static_cast<int>(c.shape.size()); ++d) {
    const auto cuts_d = [&](const muonrt::Cut& s) { return s.tensor_dim == d; };
    if (std::none_of(c.cuts.begin(), c.cuts.end(), cuts_d)) out.tensor_dim = d;
  }
  if (out.tensor_dim < 0) {
    out.kind = Layout::Kind::kOwner;
  } else {
    out.bounds = random_bounds(shards, c.shape[static_cast<size_t>(out.tensor_dim)]);
  }
  return out;
}

/// Elements at every mesh position, before flat ranges are taken.
inline std::vector<List> elements_before_flat(const Case& c, const LastStep& last) {
  std::vector<List> out;
  for (const List& at : naive::all_coords(c.mesh)) {
    const int64_t shard = naive::index_of(c.mesh, at, last.mesh_dims);
    std::vector<List> lists;
    for (int d = 0; d < static_cast<int>(c.shape.size()); ++d) {
      List list = naive::indices(c.shape[static_cast<size_t>(d)], d, c.mesh, at, c.cuts);
      if (d == last.tensor_dim) {
        const auto s = static_cast<size_t>(shard);
        list = List(list.begin() + last.bounds[s], list.begin() + last.bounds[s + 1]);
      }
      lists.push_back(std::move(list));
    }
    out.push_back(naive::elements(c.shape, lists));
    if (last.kind == Layout::Kind::kOwner && shard != last.owner) out.back().clear();
  }
  return out;
}

/// For each combination of the cutting dims its own tiling, or one that serves them all; cuts
/// `held` down to it.
inline void take_flat_ranges(const Case& c, const Roles& roles, LastStep& last,
                             std::vector<List>& held) {
  const int64_t shards = naive::count_of(c.mesh, roles.last);
  const std::vector<List> coords = naive::all_coords(c.mesh);
  last.ranges.resize(static_cast<size_t>(naive::count_of(c.mesh, roles.shard)));
  std::map<int64_t, std::vector<std::pair<int64_t, int64_t>>> tilings;
  for (size_t p = 0; p < coords.size(); ++p) {
    const int64_t outer = naive::index_of(c.mesh, coords[p], roles.cut);
    if (!tilings.count(outer)) tilings[outer] = random_ranges(shards, std::ssize(held[p]));
    last.ranges[static_cast<size_t>(naive::index_of(c.mesh, coords[p], roles.shard))] =
        tilings[outer][static_cast<size_t>(naive::index_of(c.mesh, coords[p], roles.last))];
  }
  const bool one_size = std::all_of(held.begin(), held.end(),
                                    [&](const List& h) { return h.size() == held[0].size(); });
  if (one_size && pick(0, 1) == 0) last.ranges = tilings.begin()->second;
  const auto& range_dims = std::ssize(last.ranges) == shards ? roles.last : roles.shard;
  for (size_t p = 0; p < coords.size(); ++p) {
    const auto shard = static_cast<size_t>(naive::index_of(c.mesh, coords[p], range_dims));
    const auto [begin, end] = last.ranges[shard];
    held[p] = List(held[p].begin() + begin, held[p].begin() + end);
  }
}

inline Layout build(const Case& c, const Roles& roles, const LastStep& last,
                    std::shared_ptr<const muonrt::Mesh> mesh) {
  switch (last.kind) {
    case Layout::Kind::kCuts:
      break;
    case Layout::Kind::kRowBounds:
      return Layout::with_row_bounds(mesh, c.shape, c.cuts, last.mesh_dims, last.tensor_dim,
                                     last.bounds, roles.partial);
    case Layout::Kind::kOwner:
      return Layout::with_owner(mesh, c.shape, last.mesh_dims, last.owner, c.cuts, roles.partial);
    case Layout::Kind::kFlat:
      return Layout::with_flat(mesh, c.shape, c.cuts, last.mesh_dims, last.ranges, roles.partial);
  }
  return Layout::from_cuts(mesh, c.shape, c.cuts, roles.partial);
}

inline Case random_case(int64_t dims_low = 0, int64_t dims_high = 3) {
  Case out;
  out.mesh = random_mesh();
  const auto dims = static_cast<int>(pick(dims_low, dims_high));
  for (int d = 0; d < dims; ++d) out.shape.push_back(pick(0, dims > 3 ? 4 : dims == 3 ? 6 : 10));
  auto kind = static_cast<Layout::Kind>(pick(0, 3));
  if (dims == 0 && kind == Layout::Kind::kRowBounds) kind = Layout::Kind::kFlat;
  const Roles roles = random_roles(out.mesh, dims == 0, kind);
  out.cuts = random_cuts(roles.cut, dims);
  LastStep last = random_last(out, kind, roles);
  std::vector<List> held = elements_before_flat(out, last);
  if (last.kind == Layout::Kind::kFlat) take_flat_ranges(out, roles, last, held);
  const auto mesh = std::make_shared<const muonrt::Mesh>(out.mesh, std::vector<std::string>{},
                                                         random_ranks(naive::size_of(out.mesh)));
  for (size_t p = 0; p < held.size(); ++p) out.held[mesh->ranks()[p]] = std::move(held[p]);
  out.layout = build(out, roles, last, mesh);
  return out;
}

/// What `blocks` say of a local buffer: row-major matrix element at every local offset from
/// `first`, -1 where none lies. False if they do not ascend, overlap, or leave the buffer.
inline bool read_blocks(const std::vector<muonrt::Block>& blocks, int64_t cols, int64_t first,
                        List& out) {
  int64_t before = -1;
  for (const muonrt::Block& b : blocks) {
    if (b.rows < 1 || b.cols < 1 || b.local_offset <= before) return false;
    before = b.local_offset;
    for (int64_t i = 0; i < b.rows; ++i) {
      for (int64_t j = 0; j < b.cols; ++j) {
        const int64_t at = b.local_offset + i * b.local_ld + j - first;
        if (at < 0 || at >= std::ssize(out) || out[static_cast<size_t>(at)] != -1) return false;
        out[static_cast<size_t>(at)] = (b.row + i) * cols + b.col + j;
      }
    }
  }
  return true;
}

}  // namespace random_layout
