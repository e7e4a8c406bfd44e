#include "state/extent.hpp"

#include <algorithm>

namespace muonrt {

namespace {

bool is_whole(const Runs& runs, int64_t size) {
  return size == 0 || (runs.size() == 1 && runs[0] == Run{0, size});
}

/// Adds a stretch for the elements of [element, element + count) that are in the extent. `local` is
/// the index of the first of these elements in the product.
void add(std::vector<Stretch>& out, const Extent& extent, int64_t element, int64_t local,
         int64_t count) {
  const int64_t low = std::max(local, extent.begin), high = std::min(local + count, extent.end);
  if (low >= high) return;
  const Stretch s = {element + low - local, low - extent.begin, high - low};
  if (!out.empty() && out.back().element + out.back().count == s.element)
    out.back().count += s.count;
  else
    out.push_back(s);
}

}  // namespace

int64_t Extent::product() const {
  int64_t out = 1;
  for (const Runs& list : runs) out *= length(list);
  return out;
}

Extent Extent::part(int64_t first, int64_t last) const {
  return {shape, runs, begin + first, begin + last};
}

int64_t Extent::count_before(int64_t element) const {
  int64_t inner = product(), width = 1, out = 0;
  for (const int64_t size : shape) width *= size;
  if (element >= width) return inner;
  for (size_t d = 0; d < shape.size(); ++d) {
    inner /= length(runs[d]);
    width /= shape[d];
    const int64_t index = element / width;
    element %= width;
    int64_t smaller = 0;
    bool held = false;
    for (const Run& run : runs[d]) {
      if (run.begin > index) break;
      smaller += std::min(run.end, index) - run.begin;
      held = index < run.end;
    }
    out += smaller * inner;
    if (!held) break;
  }
  return out;
}

Extent Extent::between(int64_t low, int64_t high) const {
  Extent out = *this;
  out.begin = std::clamp(count_before(low), begin, end);
  out.end = std::clamp(count_before(high), begin, end);
  return out;
}

std::vector<Stretch> Extent::stretches() const {
  std::vector<Stretch> out;
  if (begin >= end) return out;
  // The complete trailing dimensions form contiguous blocks, so each run of the dimension before
  // them forms a stretch.
  size_t last = shape.size();
  int64_t block = 1;
  while (last > 0 && is_whole(runs[last - 1], shape[last - 1])) block *= shape[--last];
  if (last == 0) {
    add(out, *this, 0, 0, block);
    return out;
  }
  const size_t dim = last - 1;
  // Number of elements for each combination of indices of the outer dimensions.
  const int64_t rows = length(runs[dim]) * block;
  const int64_t width = shape[dim] * block;
  // Iterates over the outer dimensions, beginning at `begin`. `run` and `index` are the current run
  // and index of each dimension.
  std::vector<size_t> run(dim, 0);
  std::vector<int64_t> index(dim);
  int64_t local = begin / rows * rows, number = begin / rows;
  for (size_t d = dim; d-- > 0;) {
    const int64_t count = length(runs[d]);
    int64_t position = number % count;
    number /= count;
    while (position >= runs[d][run[d]].end - runs[d][run[d]].begin) {
      position -= runs[d][run[d]].end - runs[d][run[d]].begin;
      ++run[d];
    }
    index[d] = runs[d][run[d]].begin + position;
  }
  for (; local < end; local += rows) {
    int64_t base = 0, at = local;
    for (size_t d = 0; d < dim; ++d) base = base * shape[d] + index[d];
    for (const Run& r : runs[dim]) {
      const int64_t count = (r.end - r.begin) * block;
      add(out, *this, base * width + r.begin * block, at, count);
      at += count;
    }
    size_t d = dim;
    while (d-- > 0) {
      if (++index[d] < runs[d][run[d]].end) break;
      run[d] = run[d] + 1 < runs[d].size() ? run[d] + 1 : 0;
      index[d] = runs[d][run[d]].begin;
      if (run[d] != 0) break;
    }
  }
  return out;
}

int64_t Extent::element_at(int64_t local) const {
  return part(local, local + 1).stretches().front().element;
}

Extent whole_extent(int64_t numel) { return {{numel}, {whole(numel)}, 0, numel}; }

Extent local_extent(const Layout& layout, int rank) {
  Extent out;
  out.shape = layout.shape();
  for (int d = 0; d < layout.dims(); ++d) out.runs.push_back(layout.runs_before_flat(rank, d));
  std::tie(out.begin, out.end) = layout.flat_range(rank);
  return out;
}

std::vector<Overlap> overlaps(const Extent& a, const Extent& b) {
  std::vector<Overlap> out;
  if (a.begin >= a.end || b.begin >= b.end) return out;
  if (a.shape == b.shape) {
    for (size_t d = 0; d < a.shape.size(); ++d)
      if (intersect(a.runs[d], b.runs[d]).empty()) return out;
  }
  // Compares only the range where both extents have elements, which is fast if one extent is small
  // and the other is large.
  const int64_t first = std::max(a.element_at(0), b.element_at(0));
  const int64_t last = std::min(a.element_at(a.numel() - 1), b.element_at(b.numel() - 1));
  if (first > last) return out;
  const Extent of_a = a.between(first, last + 1), of_b = b.between(first, last + 1);
  const int64_t skipped_a = of_a.begin - a.begin, skipped_b = of_b.begin - b.begin;
  const auto x = of_a.stretches(), y = of_b.stretches();
  for (size_t i = 0, k = 0; i < x.size() && k < y.size();) {
    const int64_t x_end = x[i].element + x[i].count, y_end = y[k].element + y[k].count;
    const int64_t low = std::max(x[i].element, y[k].element), high = std::min(x_end, y_end);
    if (low < high)
      out.push_back({low, skipped_a + x[i].local + low - x[i].element,
                     skipped_b + y[k].local + low - y[k].element, high - low});
    (x_end < y_end ? i : k) += 1;
  }
  return out;
}

const char* problem_of(const Extent& extent, int64_t numel) {
  if (extent.shape.size() != extent.runs.size() || extent.shape.size() > 8)
    return "its shard does not have one list of runs for each dimension";
  int64_t all = 1;
  for (size_t d = 0; d < extent.shape.size(); ++d) {
    if (extent.shape[d] <= 0 || __builtin_mul_overflow(all, extent.shape[d], &all))
      return "the shape of its shard is invalid";
    int64_t at = -1;
    for (const Run& run : extent.runs[d]) {
      if (run.begin <= at || run.begin >= run.end || run.end > extent.shape[d])
        return "the runs of its shard are not ascending, or not inside the shape";
      at = run.end;
    }
    if (at <= 0) return "its shard has no runs";
  }
  if (all != numel) return "the shape of its shard does not match the tensor";
  if (extent.begin < 0 || extent.begin >= extent.end || extent.end > extent.product())
    return "the range of its shard is invalid";
  return nullptr;
}

}  // namespace muonrt
