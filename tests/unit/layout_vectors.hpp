#pragma once

// The worked examples of layouts, written out by hand, to the index.

#include <string>
#include <vector>

#include "unit/layout_naive.hpp"

namespace vectors {

/// One worked example. `table` lists the ranks in mesh order, separated by '|'; within a rank the
/// dims, separated by 'x'; within a dim the indices, '-' for none, '*' for all.
struct Vector {
  std::string name;
  naive::List shape, mesh;
  std::vector<naive::Step> steps;  // outermost first
  std::string table;
  std::string placements;           // that say the same; "" if none do
  std::string reading = "literal";  // how to read them
  std::vector<int> flat_dims = {};  // FSDP dims of the ordered reading
};

inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == separator) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

/// table[rank][dim] = indices
inline std::vector<std::vector<naive::List>> table_of(const Vector& v) {
  std::vector<std::vector<naive::List>> out;
  for (const std::string& rank : split(v.table, '|')) {
    out.emplace_back();
    const std::vector<std::string> dims = split(rank, 'x');
    for (size_t d = 0; d < dims.size(); ++d) {
      naive::List& list = out.back().emplace_back();
      for (const std::string& word : split(dims[d], ' ')) {
        if (word == "*") list = naive::iota(v.shape[d]);
        if (word != "" && word != "-" && word != "*") list.push_back(std::stoll(word));
      }
    }
  }
  return out;
}

inline std::vector<Vector> all() {
  return {
      {"E1", {5}, {4}, {{{0}, 0}}, "0 1|2 3|4|-", "S(0)"},
      {"E2", {9}, {8}, {{{0}, 0}}, "0 1|2 3|4 5|6 7|8|-|-|-", "S(0)"},
      {"E3",
       {7, 2},
       {2, 3},
       {{{1}, 0}},
       "0 1 2 x 0 1|3 4 5 x 0 1|6 x 0 1|0 1 2 x 0 1|3 4 5 x 0 1|6 x 0 1",
       "R,S(0)"},
      {"E4a", {5}, {2, 2}, {{{0}, 0}, {{1}, 0}}, "0 1|2|3|4", "S(0),S(0)"},
      {"E4b", {5}, {2, 2}, {{{0, 1}, 0}}, "0 1|2 3|4|-", "S(0),S(0)", "ordered", {0, 1}},
      {"E4c literal",
       {10},
       {2, 2, 2},
       {{{0}, 0, 2}, {{1}, 0, 2}, {{2}, 0}},
       "0 1|5 6|2|7|3|8|4|9",
       "SS(0,2),SS(0,2),S(0)"},
      {"E4c physical",
       {10},
       {2, 2, 2},
       {{{2}, 0}, {{0, 1}, 0}},
       "0 1|5 6|2 3|7 8|4|9|-|-",
       "SS(0,2),SS(0,2),S(0)",
       "ordered",
       {0, 1}},
      {"E5", {8}, {2, 2}, {{{0}, 0, 2}, {{1}, 0}}, "0 1|4 5|2 3|6 7", "SS(0,2),S(0)"},
      {"E5 ordered",
       {8},
       {2, 2},
       {{{1}, 0}, {{0}, 0}},
       "0 1|4 5|2 3|6 7",
       "SS(0,2),S(0)",
       "ordered"},
      {"E5 plain", {8}, {2, 2}, {{{0}, 0}, {{1}, 0}}, "0 1|2 3|4 5|6 7", "S(0),S(0)"},
      {"E6a", {6}, {2, 2}, {{{0}, 0, 2}, {{1}, 0}}, "0 1|3 4|2|5", "SS(0,2),S(0)"},
      {"E6a ordered", {6}, {2, 2}, {{{1}, 0}, {{0}, 0}}, "0 1|3 4|2|5", "SS(0,2),S(0)", "ordered"},
      {"E6b", {5}, {2, 2}, {{{0}, 0, 2}, {{1}, 0}}, "0 1|3|2|4", "SS(0,2),S(0)"},
      {"E6b ordered",
       {5},
       {2, 2},
       {{{1}, 0}, {{0}, 0}},
       "0 1|3|2|4",
       "SS(0,2),S(0)",
       "ordered",
       {0}},
      {"E7 literal", {7}, {3, 2}, {{{0}, 0, 2}, {{1}, 0}}, "0 1|4|2 3|5|6|-", "SS(0,2),S(0)"},
      {"E7 physical",
       {7},
       {3, 2},
       {{{1}, 0}, {{0}, 0}},
       "0 1|4|2 3|5|-|6",
       "SS(0,2),S(0)",
       "ordered",
       {0}},
      {"E8", {16}, {4}, {{{0}, 0, 4}}, "0 4 8 12|1 5 9 13|2 6 10 14|3 7 11 15", "SS(0,4)"},
      {"E9",
       {16},
       {2, 2},
       {{{0}, 0}, {{1}, 0, 2}},
       "0 1 4 5|2 3 6 7|8 9 12 13|10 11 14 15",
       "S(0),SS(0,2)"},
      {"E10a",
       {16},
       {2, 2, 2},
       {{{0}, 0, 4}, {{1}, 0, 2}, {{2}, 0}},
       "0 1|8 9|4 5|12 13|2 3|10 11|6 7|14 15",
       "SS(0,4),SS(0,2),S(0)"},
      {"E10b literal",
       {9},
       {2, 2, 2},
       {{{0}, 0, 4}, {{1}, 0, 2}, {{2}, 0}},
       "0 1|4 6|3|7|2|8|5|-",
       "SS(0,4),SS(0,2),S(0)"},
      {"E10b ordered",
       {9},
       {2, 2, 2},
       {{{2}, 0}, {{1}, 0}, {{0}, 0}},
       "0 1|5|3|7|2|6|4|8",
       "SS(0,4),SS(0,2),S(0)",
       "ordered"},
      {"E10c literal",
       {11},
       {2, 2, 2},
       {{{0}, 0, 4}, {{1}, 0, 2}, {{2}, 0}},
       "0 1|6 7|3 4|9|2|8|5|10",
       "SS(0,4),SS(0,2),S(0)"},
      {"E10c ordered",
       {11},
       {2, 2, 2},
       {{{2}, 0}, {{1}, 0}, {{0}, 0}},
       "0 1|6 7|3 4|9|2|8|5|10",
       "SS(0,4),SS(0,2),S(0)",
       "ordered"},
      {"E10d literal",
       {9},
       {2, 3, 2},
       {{{0}, 0, 6}, {{1}, 0, 2}, {{2}, 0}},
       "0|6|2|8|4|-|1|5|3|7|-|-",
       "SS(0,6),SS(0,2),S(0)"},
      {"E10d ordered",
       {9},
       {2, 3, 2},
       {{{2}, 0}, {{1}, 0}, {{0}, 0}},
       "0|5|2|7|4|-|1|6|3|8|-|-",
       "SS(0,6),SS(0,2),S(0)",
       "ordered"},
      {"E11",
       {8},
       {2, 2, 2},
       {{{0}, 0, 2}, {{1}, 0, 2}, {{2}, 0}},
       "0|4|1|5|2|6|3|7",
       "SS(0,2),SS(0,2),S(0)"},
      {"E11 ordered",
       {8},
       {2, 2, 2},
       {{{2}, 0}, {{0}, 0}, {{1}, 0}},
       "0|4|1|5|2|6|3|7",
       "SS(0,2),SS(0,2),S(0)",
       "ordered"},
      {"E12",
       {5, 6},
       {2, 2, 2},
       {{{1}, 0}, {{2}, 1}},
       "0 1 2 x 0 1 2|0 1 2 x 3 4 5|3 4 x 0 1 2|3 4 x 3 4 5|"
       "0 1 2 x 0 1 2|0 1 2 x 3 4 5|3 4 x 0 1 2|3 4 x 3 4 5",
       "R,S(0),S(1)"},
      {"E13",
       {8, 4, 6},
       {3, 2},
       {{{0}, 0, 2}, {{1}, 0}},
       "0 1 x * x *|4 5 x * x *|2 3 x * x *|6 7 x * x *|- x * x *|- x * x *",
       "SS(0,2),S(0)"},
      {"E14",
       {4, 8, 6},
       {2, 2, 2},
       {{{0}, 1, 2}, {{1}, 0}, {{2}, 1}},
       "0 1 x 0 1 x *|0 1 x 4 5 x *|2 3 x 0 1 x *|2 3 x 4 5 x *|"
       "0 1 x 2 3 x *|0 1 x 6 7 x *|2 3 x 2 3 x *|2 3 x 6 7 x *",
       "SS(1,2),S(0),S(1)"},
      {"E15a", {3}, {2, 4}, {{{0}, 0, 4}, {{1}, 0}}, "0|1|2|-|-|-|-|-", "SS(0,4),S(0)"},
      {"E15b", {2}, {2, 3}, {{{0}, 0}, {{1}, 0}}, "0|-|-|1|-|-", "S(0),S(0)"},
      {"E16a", {8}, {2}, {{{0}, 0, 2}}, "0 1 4 5|2 3 6 7", "SS(0,2)"},
      {"E16b",
       {8},
       {2, 2},
       {{{1}, 0, 2}, {{0}, 0}},
       "0 1|2 3|4 5|6 7",
       "S(0),SS(0,2)",
       "ordered",
       {0}},
      {"E17", {12}, {4}, {{{0}, 0}}, "0 1 2|3 4 5|6 7 8|9 10 11", "S(0)"},
      {"blocks of two rows", {10}, {3}, {{{0}, 0, 1, 2}}, "0 1 2 3|4 5 6 7|8 9", ""},
      {"gated, heads of two rows",
       {16},
       {2},
       {{{0}, 0, 2, 2}},
       "0 1 2 3 8 9 10 11|4 5 6 7 12 13 14 15",
       ""},
  };
}

/// The mesh of a vector with another rank array: no iota, gaps, not starting at 0.
inline std::vector<int32_t> scattered_ranks(int64_t size) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < size; ++i) out.push_back(static_cast<int32_t>(5 + 3 * (size - 1 - i)));
  for (size_t i = 2; i < out.size(); i += 3) std::swap(out[i], out[i - 2]);
  return out;
}

}  // namespace vectors
