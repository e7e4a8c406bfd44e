// Prints the picture of a step for the documentation: two matrices on four ranks.
#include <fmt/format.h>

#include <iostream>

#include "show/chart.hpp"

int main() {
  using namespace muonrt::tool;
  constexpr int kRanks = 4, kMatrices = 2;
  constexpr double kWidth = 12, kShard = 2.4, kWholeBegin = 4.3, kWholeEnd = kWidth - kWholeBegin;

  Chart chart{"A step: the owner of a matrix orthogonalizes it",
              "two matrices of 8 rows over 4 ranks; G: gradient after momentum, U: update"};
  chart.width = 680;
  chart.height = 240;
  chart.x = {"",
             0,
             kWidth,
             {kShard / 2, kWidth / 2, kWidth - kShard / 2},
             {"1. gather", "2. orthogonalize", "3. return"}};
  chart.y = {"", kRanks, 0};
  for (int rank = 0; rank < kRanks; ++rank) {
    chart.y.ticks.push_back(rank + 0.5);
    chart.y.labels.push_back(fmt::format("rank {}", rank));
  }
  for (int m = 0; m < kMatrices; ++m) {
    const Style area{area_colour(static_cast<size_t>(m))},
        line{line_colour(static_cast<size_t>(m)), 1};
    const int owner = m * kRanks / kMatrices;
    const double middle = owner + 0.5;
    for (int rank = 0; rank < kRanks; ++rank) {
      const double height = 0.8 / kMatrices, y = rank + 0.1 + m * height, at = y + height / 2;
      const std::string rows = fmt::format("{}, rows {}-{}", m + 1, 2 * rank, 2 * rank + 1);
      chart.boxes.push_back({area, 0, y, kShard, height, "G" + rows});
      chart.boxes.push_back({area, kWidth - kShard, y, kShard, height, "U" + rows});
      chart.lines.push_back({line, {{kShard, at}, {kWholeBegin, middle}}});
      chart.lines.push_back({line, {{kWholeEnd, middle}, {kWidth - kShard, at}}});
    }
    chart.boxes.push_back({area, kWholeBegin, owner + 0.1, kWholeEnd - kWholeBegin, 0.8,
                           fmt::format("U{0} = orthogonalize(G{0})", m + 1)});
  }
  std::cout << chart.svg();
}
