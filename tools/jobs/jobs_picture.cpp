// Draws the mixed job list of symmetric products: left the tiles of the first matrix by kind of
// job, right the work of every block, one bar each, in order.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "cuda/symmetric/job_list.hpp"
#include "show/svg.hpp"

using namespace muonrt::cuda;

namespace svg = muonrt::tool::svg;

namespace {

constexpr int kSide = 400, kLeft = 24, kTop = 64, kBars = 480, kBarsLeft = kLeft + kSide + 40;

const char* color_of(JobKind kind) {
  switch (kind) {
    case JobKind::kPair:
      return "#4477aa";
    case JobKind::kWide:
      return "#ccbb44";
    case JobKind::kSquare:
      return "#ee6677";
    case JobKind::kMedium:  // of no mixed list
      break;
  }
  return "#000000";
}

class Picture {
 public:
  Picture(const SymmetricShape& shape, int blocks)
      : shape_(shape), list_(mixed_jobs({&shape_, 1}, blocks)) {}

  std::string draw() {
    out_ = svg::begin(kBarsLeft + kBars + kLeft, kTop + kSide + 56, 12, "#000000") +
           "<style>rect{stroke:#fff;stroke-width:.5}</style>\n";
    const auto blocks = static_cast<int>(list_.first.size()) - 1;
    text(kLeft, 24,
         "C = A A^T, " + std::to_string(shape_.n) + " x " + std::to_string(shape_.n) + ", " +
             std::to_string(shape_.count) + " in the batch, " + std::to_string(blocks) + " blocks");
    text(kLeft, 50, "tiles of the first matrix");
    text(kBarsLeft, 50, "work of each block, first job at the bottom");
    tiles();
    bars(blocks);
    legend();
    return out_ + svg::kEnd;
  }

 private:
  void text(double x, double y, const std::string& words) { out_ += svg::text(x, y, "", words); }
  void box(double x, double y, double w, double h, const char* fill, const char* opacity = "1") {
    out_ += svg::rect(x, y, w, h,
                      std::string("fill=\"") + fill + "\" fill-opacity=\"" + opacity + "\"");
  }

  void tiles() {
    const double cell = static_cast<double>(kSide) / static_cast<double>(cells_of(shape_.n));
    for (const TileJob& job : list_.jobs) {
      if (job.matrix != 0) continue;
      const int width = job.kind == JobKind::kSquare ? 1 : 2;
      box(kLeft + job.col * cell, kTop + job.row * cell, width * cell, cell, color_of(job.kind));
      for (int c = job.col; c < job.col + width; ++c)
        if (stored_as(job.row, c) == Stored::kBoth)
          box(kLeft + job.row * cell, kTop + c * cell, cell, cell, color_of(job.kind), "0.25");
    }
  }

  void bars(int blocks) {
    const double width = static_cast<double>(kBars) / blocks;
    const auto longest = static_cast<double>(makespan_of(list_, {&shape_, 1}));
    for (int b = 0; b < blocks; ++b) {
      double y = kTop + kSide;
      for (int32_t i = list_.first[static_cast<size_t>(b)];
           i < list_.first[static_cast<size_t>(b) + 1]; ++i) {
        const TileJob& job = list_.jobs[static_cast<size_t>(i)];
        const double high = kSide * static_cast<double>(cost_of(job, {&shape_, 1})) / longest;
        y -= high;
        box(kBarsLeft + b * width, y, width, high, color_of(job.kind));
      }
    }
  }

  void legend() {
    const struct {
      JobKind kind;
      const char* words;
    } entries[] = {{JobKind::kPair, "pair: two blocks, 256 x 256, columns shared"},
                   {JobKind::kWide, "wide: 128 x 256"},
                   {JobKind::kSquare, "square: 128 x 128"}};
    double x = kLeft;
    for (const auto& entry : entries) {
      box(x, kTop + kSide + 20, 14, 14, color_of(entry.kind));
      text(x + 20, kTop + kSide + 32, entry.words);
      x += 300;
    }
    text(x - 160, kTop + kSide + 32, "pale: the mirrored store");
  }

  SymmetricShape shape_;
  JobList list_;
  std::string out_;
};

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
  std::cout << Picture({n, n, batch}, static_cast<int>(blocks)).draw();
  return 0;
}
