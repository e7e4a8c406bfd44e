#pragma once

// A naive model of layouts: explicit index lists, cut one by one. It shares no code with src/layout
// except the descriptions of what to cut, so the tests can compare the closed forms with it.

#include <algorithm>
#include <cstdint>
#include <string>
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

inline std::vector<List> chunk(const List& list, int64_t n) {
  const auto size = static_cast<int64_t>(list.size());
  std::vector<List> out(static_cast<size_t>(n));
  int64_t at = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t want = (size + n - 1) / n;
    for (int64_t k = 0; k < want && at < size; ++k) {
      out[static_cast<size_t>(i)].push_back(list[static_cast<size_t>(at++)]);
    }
  }
  return out;
}

inline List strided(const List& list, int64_t f, int64_t n, int64_t i) {
  List out;
  for (const List& piece : chunk(list, f)) {
    const List part = chunk(piece, n)[static_cast<size_t>(i)];
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

inline List strided_units(const List& list, int64_t f, int64_t n, int64_t i, int64_t unit) {
  std::vector<List> blocks;
  for (size_t p = 0; p < list.size(); ++p) {
    if (p % static_cast<size_t>(unit) == 0) blocks.emplace_back();
    blocks.back().push_back(list[p]);
  }
  List out;
  for (const int64_t b : strided(iota(static_cast<int64_t>(blocks.size())), f, n, i)) {
    const List& block = blocks[static_cast<size_t>(b)];
    out.insert(out.end(), block.begin(), block.end());
  }
  return out;
}

inline int64_t size_of(const List& shape) {
  int64_t out = 1;
  for (const int64_t n : shape) out *= n;
  return out;
}

/// Coordinates of every position of a mesh.
inline std::vector<List> all_coords(const List& mesh) {
  std::vector<List> out;
  for (int64_t p = 0; p < size_of(mesh); ++p) {
    List c(mesh.size());
    int64_t rest = p;
    for (size_t k = mesh.size(); k-- > 0;) {
      c[k] = rest % mesh[k];
      rest /= mesh[k];
    }
    out.push_back(c);
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

inline List indices(int64_t n, int dim, const List& mesh, const List& coords,
                    const std::vector<muonrt::Cut>& cuts) {
  List out = iota(n);
  for (const muonrt::Cut& s : cuts) {
    if (s.tensor_dim != dim) continue;
    out = strided_units(out, s.split_factor, count_of(mesh, s.mesh_dims),
                        index_of(mesh, coords, s.mesh_dims), s.unit);
  }
  return out;
}

/// Row-major global element numbers of a product of lists, in local order.
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

inline List expand(const muonrt::Runs& runs) {
  List out;
  for (const muonrt::Run& run : runs) {
    for (int64_t i = run.begin; i < run.end; ++i) out.push_back(i);
  }
  return out;
}

}  // namespace naive
