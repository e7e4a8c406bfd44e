#pragma once

// Random layouts of every kind for the property tests.

#include <rapidcheck.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "layout/blocks.hpp"
#include "unit/layout/layout_naive.hpp"

namespace random_layout {

using muonrt::Layout;
using naive::List;

/// Returns a number in [low, high]. All numbers are equally likely, even in the first case of a
/// test, for which rapidcheck prefers small numbers.
inline int64_t pick(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<int64_t>(low, high + 1));
}

template <class Items>
void shuffle(Items& items) {
  std::mt19937 random(static_cast<unsigned>(pick(0, 1 << 20)));
  std::shuffle(items.begin(), items.end(), random);
}

/// Returns a mesh of up to 48 ranks in random order. Some rank numbers may be missing.
inline std::shared_ptr<const muonrt::Mesh> random_mesh() {
  List shape;
  const int64_t dims = pick(1, 5);
  int64_t size = 1;
  for (int64_t k = 0; k < dims; ++k) {
    shape.push_back(std::min(pick(1, 5), std::max<int64_t>(1, 48 / size)));
    size *= shape.back();
  }
  std::vector<int32_t> ranks(static_cast<size_t>(size + pick(0, 5)));
  std::iota(ranks.begin(), ranks.end(), static_cast<int32_t>(pick(0, 3)));
  shuffle(ranks);
  ranks.resize(static_cast<size_t>(size));
  return std::make_shared<const muonrt::Mesh>(shape, std::vector<std::string>{}, ranks);
}

/// Returns cuts over the given mesh dimensions. The dimensions are in random order, and a cut may
/// use several of them as one flattened dimension.
inline std::vector<muonrt::Cut> random_cuts(std::vector<int> mesh_dims, int tensor_dims) {
  std::vector<muonrt::Cut> out;
  shuffle(mesh_dims);
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

/// Returns shards + 1 bounds from 0 to n.
inline List random_bounds(int64_t shards, int64_t n) {
  List out = {0, n};
  for (int64_t i = 1; i < shards; ++i) out.push_back(pick(0, n));
  std::sort(out.begin(), out.end());
  return out;
}

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

/// Returns one range for each shard. Together the ranges cover [0, n); the shards are in random
/// order.
inline Ranges random_ranges(int64_t shards, int64_t n) {
  const List bounds = random_bounds(shards, n);
  Ranges out;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) out.emplace_back(bounds[i], bounds[i + 1]);
  shuffle(out);
  return out;
}

/// Returns ranges that divide the local tensors of `cuts` over the mesh dimensions `last`. The
/// division is the same for all local tensors, or random for each of them.
inline Ranges random_flat(const Layout& cuts, const std::vector<int>& last) {
  const List& mesh = cuts.mesh().shape();
  const std::vector<int> cutting = cuts.shard_dims();
  std::vector<int> shard = cutting;
  shard.insert(shard.end(), last.begin(), last.end());
  std::sort(shard.begin(), shard.end());
  std::map<int64_t, Ranges> tilings;
  std::set<size_t> sizes;
  Ranges out(static_cast<size_t>(naive::count_of(mesh, shard)));
  for (const List& coords : naive::all_coords(mesh)) {
    const int64_t outer = naive::index_of(mesh, coords, cutting);
    const List held = naive::held_at(cuts, coords);
    sizes.insert(held.size());
    if (!tilings.count(outer))
      tilings[outer] = random_ranges(naive::count_of(mesh, last), std::ssize(held));
    out[static_cast<size_t>(naive::index_of(mesh, coords, shard))] =
        tilings[outer][static_cast<size_t>(naive::index_of(mesh, coords, last))];
  }
  return sizes.size() == 1 && pick(0, 1) == 0 ? tilings.begin()->second : out;
}

inline Layout draw(const std::shared_ptr<const muonrt::Mesh>& mesh, const List& shape) {
  const auto dims = static_cast<int>(shape.size());
  const auto kind = static_cast<Layout::Kind>(pick(0, 3));
  std::vector<int> cutting, partial, last;  // mesh dims
  for (int k = 0; k < mesh->dims(); ++k) {
    const int64_t role = pick(0, 5);
    if (role <= 2 && dims > 0) cutting.push_back(k);
    if (role == 3) partial.push_back(k);
    if (role >= 4 && kind != Layout::Kind::kCuts) last.push_back(k);
  }
  shuffle(last);
  const std::vector<muonrt::Cut> cuts = random_cuts(cutting, dims);
  const Layout plain = Layout::from_cuts(mesh, shape, cuts, partial);
  if (last.empty()) return plain;
  if (kind == Layout::Kind::kFlat)
    return Layout::with_flat(mesh, shape, cuts, last, random_flat(plain, last), partial);
  const int64_t shards = naive::count_of(mesh->shape(), last);
  for (int d = 0; d < dims && kind == Layout::Kind::kRowBounds; ++d) {
    const auto cuts_d = [&](const muonrt::Cut& c) { return c.tensor_dim == d; };
    if (std::any_of(cuts.begin(), cuts.end(), cuts_d)) continue;
    return Layout::with_row_bounds(mesh, shape, cuts, last, d,
                                   random_bounds(shards, shape[static_cast<size_t>(d)]), partial);
  }
  return Layout::with_owner(mesh, shape, last, pick(0, shards - 1), cuts, partial);
}

inline Layout draw(int64_t dims_low = 0, int64_t dims_high = 3) {
  const int64_t dims = pick(dims_low, dims_high);
  List shape;
  for (int64_t d = 0; d < dims; ++d) shape.push_back(pick(0, dims > 3 ? 4 : dims == 3 ? 6 : 10));
  return draw(random_mesh(), shape);
}

/// Writes the row-major matrix index of every local offset to `out`, or -1 if no block contains the
/// offset. Returns false if the blocks overlap, are not in ascending order, or exceed the buffer.
inline bool read_blocks(const std::vector<muonrt::Block>& blocks, int64_t cols, List& out) {
  int64_t before = -1;
  for (const muonrt::Block& b : blocks) {
    if (b.rows < 1 || b.cols < 1 || b.local_offset <= before) return false;
    before = b.local_offset;
    for (int64_t i = 0; i < b.rows; ++i) {
      for (int64_t j = 0; j < b.cols; ++j) {
        const int64_t at = b.local_offset + i * b.local_ld + j;
        if (at < 0 || at >= std::ssize(out) || out[static_cast<size_t>(at)] != -1) return false;
        out[static_cast<size_t>(at)] = (b.row + i) * cols + b.col + j;
      }
    }
  }
  return true;
}

}  // namespace random_layout
