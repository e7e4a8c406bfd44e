#include "command/bench/bench_shapes.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>

#include "command/plan/models.hpp"

namespace muonrt::tool {

namespace {

constexpr int64_t kMostElements = int64_t{1} << 28;

const std::map<std::string, std::vector<BenchShape>>& named_lists() {
  static const std::map<std::string, std::vector<BenchShape>> lists = {
      {"sizes",
       {{256, 256},
        {512, 512},
        {1024, 1024},
        {2048, 2048},
        {4096, 4096},
        {8192, 8192},
        {16384, 16384}}},
      {"batches",
       {{256, 256, 256},
        {768, 768, 32},
        {768, 2048, 128},
        {1024, 1024, 8},
        {1024, 1024, 32},
        {2048, 2048, 8},
        {2048, 2048, 32},
        {4096, 4096, 8}}},
      {"ratios",
       {{2048, 2048}, {2048, 3072}, {2048, 4096}, {2048, 8192}, {2048, 16384}, {2048, 32768}}}};
  return lists;
}

/// The matrices of one tensor: of its parts, of its stack, or itself.
void add(std::map<std::pair<int64_t, int64_t>, int64_t>& to, const ModelTensor& t) {
  if (!t.muon || t.shape.size() < 2) return;
  const bool stack = t.stack();
  const int64_t rows = t.shape[stack ? 1 : 0], matrices = stack ? t.shape[0] : 1;
  const int64_t cols = t.elements() / matrices / rows;
  const auto count = [&](int64_t height) {
    if (height > 0) to[{std::min(height, cols), std::max(height, cols)}] += matrices;
  };
  for (const RowBlock& part : t.parts) {
    int64_t height = 0;
    for (const auto& [begin, end] : part.rows) height += end - begin;
    count(height);
  }
  if (t.parts.empty()) count(rows);
}

std::vector<BenchShape> shapes_of_model(const std::string& name) {
  std::map<std::pair<int64_t, int64_t>, int64_t> counts;
  for (const ModelTensor& tensor : model_tensors(name)) add(counts, tensor);
  std::vector<BenchShape> out;
  for (const auto& [shape, count] : counts) {
    const int64_t most = std::max<int64_t>(1, kMostElements / (shape.first * shape.second));
    out.push_back({shape.first, shape.second, std::min(count, most)});
  }
  return out;
}

BenchShape parse(const std::string& text) {
  BenchShape out;
  char behind = 0;
  long rows = 0, cols = 0, count = 1;
  const int two = std::sscanf(text.c_str(), "%ldx%ld%c", &rows, &cols, &behind);
  const int three = std::sscanf(text.c_str(), "%ldx%ldx%ld%c", &rows, &cols, &count, &behind);
  if ((two != 2 && three != 3) || rows < 1 || cols < rows || count < 1)
    throw CLI::ValidationError("--shapes", text + " is not " + kShapesHelp);
  out.rows = rows;
  out.cols = cols;
  out.count = count;
  return out;
}

}  // namespace

std::vector<BenchShape> bench_shapes(const std::vector<std::string>& words) {
  std::vector<BenchShape> out;
  const auto models = model_names();
  for (const std::string& word : words) {
    const auto named = named_lists().find(word);
    std::vector<BenchShape> some;
    if (named != named_lists().end()) {
      some = named->second;
    } else if (std::find(models.begin(), models.end(), word) != models.end()) {
      some = shapes_of_model(word);
    } else {
      some = {parse(word)};
    }
    out.insert(out.end(), some.begin(), some.end());
  }
  return out;
}

}  // namespace muonrt::tool
