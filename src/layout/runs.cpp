#include "layout/runs.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "base/error.hpp"

namespace muonrt {

namespace {

void add_run(Runs& out, int64_t begin, int64_t end) {
  if (begin >= end) return;
  if (!out.empty() && out.back().end == begin) {
    out.back().end = end;
  } else {
    out.push_back({begin, end});
  }
}

/// Collects the indices at intervals of positions in a list. Successive calls must pass ascending
/// intervals.
class Picker {
 public:
  explicit Picker(const Runs& list) : list_(list) {}

  void pick(int64_t begin, int64_t end, Runs& out) {
    while (begin < end && run_ < list_.size()) {
      const Run& run = list_[run_];
      const int64_t size = run.end - run.begin;
      if (begin - passed_ < size) {
        const int64_t stop = std::min(end - passed_, size);
        add_run(out, run.begin + (begin - passed_), run.begin + stop);
        begin = passed_ + stop;
        if (stop < size) return;
      }
      passed_ += size;
      ++run_;
    }
  }

 private:
  const Runs& list_;
  size_t run_ = 0;
  int64_t passed_ = 0;  // number of positions before list_[run_]
};

/// Describes a cut in units of blocks instead of indices. Nothing overflows, because no value
/// exceeds the number of blocks.
struct Blocks {
  int64_t count;       // number of blocks in the list
  int64_t group_size;  // blocks in a full group; the first group is always full

  Blocks(int64_t size, int64_t split_factor, int64_t unit)
      : count(ceil_div(size, unit)), group_size(ceil_div(count, split_factor)) {}
  int64_t groups() const { return count == 0 ? 0 : ceil_div(count, group_size); }
  int64_t start_of(int64_t j) const { return j * group_size; }
  int64_t size_of(int64_t j) const { return std::min(group_size, count - j * group_size); }
};

/// Divides [0, size) into `parts` ranges of equal size, rounded up, and returns range `index`.
Run chunk(int64_t size, int64_t parts, int64_t index) {
  const int64_t width = ceil_div(size, parts);
  if (width == 0 || index >= ceil_div(size, width)) return {size, size};
  return {index * width, index * width + std::min(width, size - index * width)};
}

int64_t size_of(Run run) { return run.end - run.begin; }

void check_cut(int64_t parts, int64_t split_factor, int64_t unit) {
  MUONRT_REQUIRE(parts >= 1, Status::kInvalidArgument, "cut: parts is ", parts,
                 ", but must be at least 1; use the size of the mesh dims that cut");
  MUONRT_REQUIRE(split_factor >= 1, Status::kInvalidArgument, "cut: split factor is ", split_factor,
                 ", but must be at least 1; use 1 for a contiguous shard");
  MUONRT_REQUIRE(unit >= 1, Status::kInvalidArgument, "cut: unit is ", unit,
                 ", but must be at least 1; use 1 to cut between any two rows");
}

void check_index(int64_t index, int64_t parts) {
  MUONRT_REQUIRE(index >= 0 && index < parts, Status::kInvalidArgument, "cut: part ", index, " of ",
                 parts, " does not exist; give 0 to ", parts - 1);
}

}  // namespace

int64_t length(const Runs& list) {
  int64_t out = 0;
  for (const Run& run : list) out += size_of(run);
  return out;
}

Runs whole(int64_t n) {
  if (n <= 0) return {};
  return {{0, n}};
}

Runs cut(const Runs& list, int64_t parts, int64_t index, int64_t split_factor, int64_t unit) {
  check_cut(parts, split_factor, unit);
  check_index(index, parts);
  if (parts == 1) return list;
  const int64_t size = length(list);
  const Blocks blocks(size, split_factor, unit);
  if (blocks.group_size == 1) return index == 0 ? list : Runs{};
  Runs out;
  Picker picker(list);
  for (int64_t j = 0; j < blocks.groups(); ++j) {
    const Run part = chunk(blocks.size_of(j), parts, index);
    if (part.begin == part.end) continue;
    const int64_t begin = blocks.start_of(j) + part.begin, end = blocks.start_of(j) + part.end;
    picker.pick(begin * unit, end == blocks.count ? size : end * unit, out);
  }
  return out;
}

int64_t cut_length(int64_t size, int64_t parts, int64_t index, int64_t split_factor, int64_t unit) {
  check_cut(parts, split_factor, unit);
  check_index(index, parts);
  const Blocks blocks(size, split_factor, unit);
  if (blocks.count == 0) return 0;
  const int64_t last = blocks.groups() - 1;
  const Run part = chunk(blocks.size_of(last), parts, index);
  const int64_t before = last * size_of(chunk(blocks.group_size, parts, index));
  if (part.begin == part.end || part.end < blocks.size_of(last)) {
    return (before + size_of(part)) * unit;
  }
  // The size of the last block of the list.
  const int64_t short_block = size - (blocks.count - 1) * unit;
  return (before + size_of(part) - 1) * unit + short_block;
}

CutSpot locate_in_cut(int64_t size, int64_t at, int64_t parts, int64_t split_factor, int64_t unit) {
  check_cut(parts, split_factor, unit);
  MUONRT_REQUIRE(at >= 0 && at < size, Status::kInvalidArgument, "cut: position ", at,
                 " is outside a list of ", size, " indices; give 0 to ", size - 1);
  const Blocks blocks(size, split_factor, unit);
  const int64_t block = at / unit, j = block / blocks.group_size;
  const int64_t in_group = block - blocks.start_of(j);
  const int64_t width = ceil_div(blocks.size_of(j), parts);
  const int64_t part = in_group / width;
  const int64_t before = j * size_of(chunk(blocks.group_size, parts, part));
  return {part, (before + in_group - part * width) * unit + at % unit};
}

Runs slice(const Runs& list, int64_t begin, int64_t end) {
  Runs out;
  Picker(list).pick(std::max<int64_t>(begin, 0), end, out);
  return out;
}

Runs intersect(const Runs& a, const Runs& b) {
  Runs out;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    add_run(out, std::max(a[i].begin, b[j].begin), std::min(a[i].end, b[j].end));
    a[i].end < b[j].end ? ++i : ++j;
  }
  return out;
}

int64_t position_of(const Runs& list, int64_t index) {
  int64_t passed = 0;
  for (const Run& run : list) {
    if (index < run.begin) return -1;
    if (index < run.end) return passed + index - run.begin;
    passed += size_of(run);
  }
  return -1;
}

Runs flatten(const Runs& outer, const Runs& inner, int64_t inner_size) {
  Runs out;
  const bool all = inner.size() == 1 && inner[0] == Run{0, inner_size};
  for (const Run& run : outer) {
    if (all) {
      add_run(out, run.begin * inner_size, run.end * inner_size);
      continue;
    }
    for (int64_t o = run.begin; o < run.end; ++o) {
      for (const Run& i : inner) add_run(out, o * inner_size + i.begin, o * inner_size + i.end);
    }
  }
  return out;
}

std::string to_text(const Runs& list) {
  if (list.empty()) return "-";
  std::string out;
  for (const Run& run : list) {
    if (!out.empty()) out += ' ';
    out += cat('[', run.begin, ", ", run.end, ')');
  }
  return out;
}

}  // namespace muonrt
