#include "command/step/owned.hpp"

#include <algorithm>

namespace muonrt::tool {

std::vector<int64_t> normuon_lines(const StepTensor& t) {
  const std::string axis = t.config->normuon ? t.config->normuon->axis : "rows";
  const auto lines = [&](int64_t rows, int64_t cols, const std::string& along) {
    const bool columns = along == "columns" || (along == "longer" && cols > rows);
    const int64_t out = columns ? cols : rows;
    return out > 1 ? out : 0;  // one line alone is left as it is
  };
  const std::vector<int64_t>& shape = t.entry->shape;
  const size_t first = t.stack() ? 1 : 0;
  int64_t cols = 1;
  for (size_t i = first + 1; i < shape.size(); ++i) cols *= shape[i];
  std::vector<int64_t> one;
  for (const MatrixPart& part : t.parts) {
    int64_t length = 0;
    for (const muonrt_run_t& run : part.runs) length += run.end - run.begin;
    const std::string along = part.axis.value_or(axis);
    one.push_back(part.columns ? lines(shape[first], length, along) : lines(length, cols, along));
  }
  if (one.empty()) one.push_back(lines(shape[first], cols, axis));
  std::vector<int64_t> out;
  for (int64_t e = 0; e < (t.stack() ? shape[0] : 1); ++e) {
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

namespace {

/// A matrix of a tensor, part of a matrix of a stack perhaps, row after row.
void add_matrix(std::vector<Stretch>& out, const StepTensor& t, int64_t index, int64_t& local) {
  const std::vector<int64_t>& shape = t.entry->shape;
  const size_t first = t.stack() ? 1 : 0;
  const int64_t rows = shape[first];
  int64_t cols = 1;
  for (size_t i = first + 1; i < shape.size(); ++i) cols *= shape[i];
  const auto parts = std::max<int64_t>(1, std::ssize(t.parts));
  std::vector<muonrt_run_t> row_runs = {{0, rows}}, col_runs = {{0, cols}};
  if (!t.parts.empty()) {
    const MatrixPart& part = t.parts[static_cast<size_t>(index % parts)];
    (part.columns ? col_runs : row_runs) = part.runs;
  }
  const int64_t base = index / parts * rows * cols;
  for (const muonrt_run_t& r : row_runs) {
    for (int64_t row = r.begin; row < r.end; ++row) {
      for (const muonrt_run_t& c : col_runs) {
        out.push_back({base + row * cols + c.begin, local, c.end - c.begin});
        local += c.end - c.begin;
      }
    }
  }
}

/// Local elements [begin, begin + count), which lie one after the other from `local` on.
void add_slice(std::vector<Stretch>& out, const std::vector<Stretch>& held, int64_t begin,
               int64_t count, int64_t& local) {
  for (const Stretch& s : held) {
    const int64_t low = std::max(begin, s.local), high = std::min(begin + count, s.local + s.count);
    if (low >= high) continue;
    out.push_back({s.element + low - s.local, local + low - begin, high - low});
  }
  local += count;
}

}  // namespace

std::vector<Stretch> owned_elements(Optimizer& optimizer, const StepTensor& t, int32_t kind,
                                    int rank) {
  const auto held = t.layout->stretches(rank);
  const muonrt_state_view_t view = optimizer.state(t.index, kind);
  if (view.place == MUONRT_PLACE_LOCAL) return held;
  std::vector<Stretch> out;
  int64_t local = 0;
  for (const muonrt_state_piece_t& piece : optimizer.state_pieces(t.index, kind)) {
    if (view.place == MUONRT_PLACE_LINES) {
      out.push_back({piece.begin, piece.begin, piece.numel});
    } else if (view.place == MUONRT_PLACE_MATRICES) {
      add_matrix(out, t, piece.index, local);
    } else {
      add_slice(out, held, piece.begin, piece.numel, local);
    }
  }
  return out;
}

}  // namespace muonrt::tool
