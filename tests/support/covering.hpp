#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <tuple>
#include <vector>

/// Pairwise covering arrays: a small number of rows in which every pair of levels of any two
/// factors occurs.
namespace covering {

/// Builds the rows greedily from `seed`; the result is the same on every machine.
/// @param levels  Number of levels of each factor.
inline std::vector<std::vector<int>> pairwise(const std::vector<int>& levels, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::set<std::tuple<size_t, size_t, int, int>> open;
  for (size_t i = 0; i < levels.size(); ++i) {
    for (size_t j = i + 1; j < levels.size(); ++j) {
      for (int a = 0; a < levels[i]; ++a) {
        for (int b = 0; b < levels[j]; ++b) open.insert({i, j, a, b});
      }
    }
  }
  const auto gain = [&](const std::vector<int>& row) {
    size_t found = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      for (size_t j = i + 1; j < row.size(); ++j) found += open.count({i, j, row[i], row[j]});
    }
    return found;
  };
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    std::vector<int> best;
    size_t best_gain = 0;
    for (int attempt = 0; attempt < 60; ++attempt) {
      std::vector<int> row(levels.size());
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = static_cast<int>(random() % static_cast<uint64_t>(levels[i]));
      }
      if (attempt % 2 == 0) {  // Every second candidate contains a pair that is still missing.
        const auto& [i, j, a, b] = *open.begin();
        row[i] = a;
        row[j] = b;
      }
      if (const size_t g = gain(row); g > best_gain) {
        best = row;
        best_gain = g;
      }
    }
    if (best.empty()) continue;
    for (size_t i = 0; i < best.size(); ++i) {
      for (size_t j = i + 1; j < best.size(); ++j) open.erase({i, j, best[i], best[j]});
    }
    rows.push_back(best);
  }
  return rows;
}

}  // namespace covering
