// Draws the mixed job list of symmetric products: left the tiles of the first matrix by kind of
// job, right the work of every block, one bar each, in order.

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "cuda/symmetric/job_list.hpp"
#include "show/chart.hpp"

using namespace muonrt::cuda;
using muonrt::tool::Panel, muonrt::tool::Chart, muonrt::tool::Style;

namespace {

constexpr double kSide = 400;

Style style_of(JobKind kind) {
  switch (kind) {
    case JobKind::kPair:
      return {"#4477aa"};
    case JobKind::kWide:
      return {"#ccbb44"};
    case JobKind::kSquare:
      return {"#ee6677"};
    case JobKind::kMedium:  // of no mixed list
      break;
  }
  return {"#000000"};
}

Panel tiles(const JobList& list, const SymmetricShape& shape) {
  const auto cells = static_cast<double>(cells_of(shape.n));
  Panel panel{"tiles of the first matrix",
              kSide,
              kSide,
              {"column of tiles", 0, cells},
              {"row of tiles", cells, 0}};
  for (const TileJob& job : list.jobs) {
    if (job.matrix != 0) continue;
    const int width = job.kind == JobKind::kSquare ? 1 : 2;
    Style style = style_of(job.kind);
    const double row = job.row;
    panel.boxes.push_back(
        {style, static_cast<double>(job.col), row, static_cast<double>(width), 1});
    style.opacity = 0.25;
    for (int c = job.col; c < job.col + width; ++c) {
      if (stored_as(job.row, c) == Stored::kBoth)
        panel.boxes.push_back({style, row, static_cast<double>(c), 1, 1});
    }
  }
  return panel;
}

Panel bars(const JobList& list, const SymmetricShape& shape, int blocks) {
  Panel panel{"work of each block, first job at the bottom",
              480,
              kSide,
              {"block", 0, static_cast<double>(blocks)},
              {"share of the longest", 0, 1}};
  const auto longest = static_cast<double>(makespan_of(list, {&shape, 1}));
  for (int b = 0; b < blocks; ++b) {
    const auto block = static_cast<size_t>(b);
    double y = 0;
    for (int32_t i = list.first[block]; i < list.first[block + 1]; ++i) {
      const TileJob& job = list.jobs[static_cast<size_t>(i)];
      const double share = static_cast<double>(cost_of(job, {&shape, 1})) / longest;
      panel.boxes.push_back({style_of(job.kind), static_cast<double>(b), y, 1, share});
      y += share;
    }
  }
  return panel;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  int64_t numbers[3] = {};
  for (size_t i = 0; i < 3 && i < words.size(); ++i) numbers[i] = std::atoll(words[i].c_str());
  const auto [n, batch, blocks] = numbers;
  if (words.size() != 3 || n < 1 || n > 100000 || batch < 1 || blocks < 2 || blocks % 2 != 0) {
    std::cerr << "usage: muonrt_jobs_picture N BATCH BLOCKS   (BLOCKS even)\n";
    return 2;
  }
  const SymmetricShape shape{n, n, batch};
  const JobList list = mixed_jobs({&shape, 1}, static_cast<int>(blocks));
  const int used = static_cast<int>(list.first.size()) - 1;
  Style mirrored = style_of(JobKind::kPair);
  mirrored.opacity = 0.25;
  const std::string side = std::to_string(n);
  std::cout << Chart{"C = A A^T, " + side + " x " + side + ", " + std::to_string(batch) +
                         " in the batch, " + std::to_string(used) + " blocks",
                     "",
                     {tiles(list, shape), bars(list, shape, used)},
                     {{style_of(JobKind::kPair), "pair: two blocks, 256 x 256, columns shared"},
                      {style_of(JobKind::kWide), "wide: 128 x 256"},
                      {style_of(JobKind::kSquare), "square: 128 x 128"},
                      {mirrored, "pale: the mirrored store"}}}
                   .svg();
  return 0;
}
