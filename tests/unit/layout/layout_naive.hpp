#pragma once

// A naive model of layouts: it cuts explicit index lists step by step. It shares no code with
// src/layout, so tests can compare the closed forms in src/layout with this model.

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "layout/layout.hpp"

namespace naive {

using List = std::vector<int64_t>;

inline List iota(int64_t n) {
  List out;
  for (int64_t i = 0; i < n; ++i) out.push_back(i);
  return out;
}

/// Returns `n` ranges of ceil(size / n) items. The last ranges may be shorter or empty.
template <class Item>
std::vector<std::vector<Item>> chunk(const std::vector<Item>& list, int64_t n) {
  const auto size = static_cast<int64_t>(list.size());
  std::vector<std::vector<Item>> out(static_cast<size_t>(n));
  int64_t at = 0;
  for (auto& part : out) {
    const int64_t want = (size + n - 1) / n;
    for (int64_t k = 0; k < want && at < size; ++k) part.push_back(list[static_cast<size_t>(at++)]);
  }
  return out;
}

/// Returns part `i` of `n`. The list consists of blocks of `unit` indices, which are divided into
/// `f` groups. The part consists of range `i` from each group.
inline List cut(const List& list, int64_t f, int64_t n, int64_t i, int64_t unit) {
  std::vector<List> blocks;
  for (size_t p = 0; p < list.size(); ++p) {
    if (p % static_cast<size_t>(unit) == 0) blocks.emplace_back();
    blocks.back().push_back(list[p]);
  }
  List out;
  for (const auto& group : chunk(blocks, f)) {
    const auto parts = chunk(group, n);
    for (const List& block : parts[static_cast<size_t>(i)])
      out.insert(out.end(), block.begin(), block.end());
  }
  return out;
}

/// Returns the coordinates of every position of a mesh.
inline std::vector<List> all_coords(const List& mesh) {
  std::vector<List> out = {{}};
  for (const int64_t size : mesh) {
    std::vector<List> next;
    for (const List& outer : out) {
      for (int64_t c = 0; c < size; ++c) {
        next.push_back(outer);
        next.back().push_back(c);
      }
    }
    out = std::move(next);
  }
  return out;
}

inline int64_t index_of(const List& mesh, const List& coords, const std::vector<int>& dims) {
  int64_t out = 0;
  for (const int k : dims) {
    out = out * mesh[static_cast<size_t>(k)] + coords[static_cast<size_t>(k)];
  }
  return out;
}

inline int64_t count_of(const List& mesh, const std::vector<int>& dims) {
  int64_t out = 1;
  for (const int k : dims) out *= mesh[static_cast<size_t>(k)];
  return out;
}

/// Returns the row-major global indices of a product of lists, in local order.
inline List elements(const List& shape, const std::vector<List>& lists) {
  List out = {0};
  for (size_t d = 0; d < shape.size(); ++d) {
    List next;
    for (const int64_t base : out) {
      for (const int64_t i : lists[d]) next.push_back(base * shape[d] + i);
    }
    out = std::move(next);
  }
  return out;
}

template <class Number>
List range(const List& list, Number begin, Number end) {
  return List(list.begin() + begin, list.begin() + end);
}

/// Returns the indices of the elements that the rank at `coords` holds, for a layout that is not a
/// view.
inline List held_at(const muonrt::Layout& layout, const List& coords) {
  using Kind = muonrt::Layout::Kind;
  const List &mesh = layout.mesh().shape(), &shape = layout.shape();
  std::vector<List> lists;
  for (size_t d = 0; d < shape.size(); ++d) {
    List list = iota(shape[d]);
    for (const muonrt::Cut& c : layout.cuts()) {
      if (c.tensor_dim != static_cast<int>(d)) continue;
      list = cut(list, c.split_factor, count_of(mesh, c.mesh_dims),
                 index_of(mesh, coords, c.mesh_dims), c.unit);
    }
    if (layout.kind() == Kind::kRowBounds &&
        layout.row_bounds().tensor_dim == static_cast<int>(d)) {
      const auto shard = index_of(mesh, coords, layout.row_bounds().mesh_dims);
      const int64_t* const bound = layout.row_bounds().bounds.data() + shard;
      list = range(list, bound[0], bound[1]);
    }
    lists.push_back(std::move(list));
  }
  const List out = elements(shape, lists);
  if (layout.kind() == Kind::kOwner) {
    const muonrt::Owner& owner = layout.owner();
    return index_of(mesh, coords, owner.mesh_dims) == owner.shard ? out : List{};
  }
  if (layout.kind() != Kind::kFlat) return out;
  const muonrt::FlatRanges& flat = layout.flat();
  std::vector<int> dims = flat.mesh_dims;
  if (std::ssize(flat.ranges) != count_of(mesh, dims)) {
    std::set<int> cutting(dims.begin(), dims.end());
    for (const muonrt::Cut& c : layout.cuts())
      cutting.insert(c.mesh_dims.begin(), c.mesh_dims.end());
    dims.assign(cutting.begin(), cutting.end());
  }
  const auto [begin, end] = flat.ranges[static_cast<size_t>(index_of(mesh, coords, dims))];
  return range(out, begin, end);
}

/// For each rank of the mesh, the row-major indices of its elements, in local order.
using Held = std::map<int, List>;
inline Held held(const muonrt::Layout& layout) {
  Held out;
  const std::vector<List> coords = all_coords(layout.mesh().shape());
  for (size_t p = 0; p < coords.size(); ++p)
    out[layout.mesh().ranks()[p]] = held_at(layout, coords[p]);
  return out;
}

inline List expand(const muonrt::Runs& runs) {
  List out;
  for (const muonrt::Run& run : runs) {
    for (int64_t i = run.begin; i < run.end; ++i) out.push_back(i);
  }
  return out;
}

}  // namespace naive
