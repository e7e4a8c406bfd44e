#pragma once

// Random layouts of every kind for the property tests, each with what the slow way says of it.

#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include "layout/blocks.hpp"
#include "unit/layout_naive.hpp"

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
  std::vector<naive::Step> steps;
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
inline std::vector<naive::Step> random_steps(std::vector<int> mesh_dims, int tensor_dims) {
  std::vector<naive::Step> out;
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

/// slots + 1 bounds from 0 to n.
inline List random_bounds(int64_t slots, int64_t n) {
  List out = {0, n};
  for (int64_t i = 1; i < slots; ++i) out.push_back(pick(0, n));
  std::sort(out.begin(), out.end());
  return out;
}

/// One range for each slot, tiling [0, n), in random order of the slots.
inline std::vector<std::pair<int64_t, int64_t>> random_ranges(int64_t slots, int64_t n) {
  const List bounds = random_bounds(slots, n);
  std::vector<std::pair<int64_t, int64_t>> out;
  for (int64_t i = 0; i < slots; ++i) {
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

inline Case random_case(int64_t dims_low = 0, int64_t dims_high = 3) {
  Case out;
  out.mesh = random_mesh();
  const auto dims = static_cast<int>(pick(dims_low, dims_high));
  for (int d = 0; d < dims; ++d) out.shape.push_back(pick(0, dims == 3 ? 6 : 10));
  auto kind = static_cast<Layout::Kind>(pick(0, 3));
  if (dims == 0 && kind == Layout::Kind::kRowBounds) kind = Layout::Kind::kFlat;
  Roles roles = random_roles(out.mesh, dims == 0, kind);
  if (roles.last.empty()) kind = Layout::Kind::kCuts;
  out.steps = random_steps(roles.cut, dims);
  const auto mesh = std::make_shared<const muonrt::Mesh>(out.mesh, std::vector<std::string>{},
                                                         random_ranks(naive::size_of(out.mesh)));
  const std::vector<List> coords = naive::all_coords(out.mesh);
  const int64_t slots = naive::count_of(out.mesh, roles.last);

  int bounded = -1;
  for (int d = 0; d < dims && kind == Layout::Kind::kRowBounds; ++d) {
    const auto cuts_d = [&](const naive::Step& s) { return s.tensor_dim == d; };
    if (std::none_of(out.steps.begin(), out.steps.end(), cuts_d)) bounded = d;
  }
  if (bounded < 0 && kind == Layout::Kind::kRowBounds) kind = Layout::Kind::kOwner;
  const List bounds =
      bounded < 0 ? List{} : random_bounds(slots, out.shape[static_cast<size_t>(bounded)]);
  const int64_t owner = pick(0, slots - 1);

  std::vector<List> before;  // per position, before flat ranges
  for (const List& at : coords) {
    const int64_t slot = naive::slot_of(out.mesh, at, roles.last);
    std::vector<List> lists;
    for (int d = 0; d < dims; ++d) {
      List list = naive::indices(out.shape[static_cast<size_t>(d)], d, out.mesh, at, out.steps);
      if (d == bounded) {
        const auto s = static_cast<size_t>(slot);
        list = List(list.begin() + bounds[s], list.begin() + bounds[s + 1]);
      }
      lists.push_back(std::move(list));
    }
    before.push_back(naive::elements(out.shape, lists));
    if (kind == Layout::Kind::kOwner && slot != owner) before.back().clear();
  }

  std::vector<std::pair<int64_t, int64_t>> ranges;
  if (kind == Layout::Kind::kFlat) {
    // for each combination of the cutting dims its own tiling, unless one serves them all
    ranges.resize(static_cast<size_t>(naive::count_of(out.mesh, roles.shard)));
    std::map<int64_t, std::vector<std::pair<int64_t, int64_t>>> tilings;
    for (size_t p = 0; p < coords.size(); ++p) {
      const int64_t outer = naive::slot_of(out.mesh, coords[p], roles.cut);
      if (!tilings.count(outer)) tilings[outer] = random_ranges(slots, std::ssize(before[p]));
      ranges[static_cast<size_t>(naive::slot_of(out.mesh, coords[p], roles.shard))] =
          tilings[outer][static_cast<size_t>(naive::slot_of(out.mesh, coords[p], roles.last))];
    }
    const bool one_size = std::all_of(before.begin(), before.end(),
                                      [&](const List& b) { return b.size() == before[0].size(); });
    if (one_size && pick(0, 1) == 0) ranges = tilings.begin()->second;
  }
  for (size_t p = 0; p < coords.size(); ++p) {
    List held = before[p];
    if (kind == Layout::Kind::kFlat) {
      const bool by_slot = std::ssize(ranges) == slots;
      const auto& dims_of = by_slot ? roles.last : roles.shard;
      const auto range = ranges[static_cast<size_t>(naive::slot_of(out.mesh, coords[p], dims_of))];
      held = List(held.begin() + range.first, held.begin() + range.second);
    }
    out.held[mesh->ranks()[p]] = std::move(held);
  }

  const auto cuts = naive::cuts(out.steps);
  switch (kind) {
    case Layout::Kind::kCuts:
      out.layout = Layout::from_cuts(mesh, out.shape, cuts, roles.partial);
      break;
    case Layout::Kind::kRowBounds:
      out.layout = Layout::with_row_bounds(mesh, out.shape, cuts, roles.last, bounded, bounds,
                                           roles.partial);
      break;
    case Layout::Kind::kOwner:
      out.layout = Layout::with_owner(mesh, out.shape, roles.last, owner, cuts, roles.partial);
      break;
    case Layout::Kind::kFlat:
      out.layout = Layout::with_flat(mesh, out.shape, cuts, roles.last, ranges, roles.partial);
      break;
  }
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
