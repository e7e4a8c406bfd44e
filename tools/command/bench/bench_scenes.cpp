#include "command/bench/bench_scenes.hpp"

#include <algorithm>

#include "command/bench/bench_values.hpp"

namespace muonrt::tool {

namespace {

constexpr int64_t kCols = 4096, kStamp = 7;
constexpr int64_t kWideRows = 4096, kWideCols = 11008;

/// Columns of a tall matrix, a power of two: it has 2 to 8 times as many rows.
int64_t tall_cols(int64_t elements) {
  int64_t cols = 1;
  while (8 * cols * cols <= elements) cols *= 2;
  return cols;
}

}  // namespace

ElementwiseScene::ElementwiseScene(Workbench& bench, Data data, int64_t elements) : bench_(&bench) {
  if (data == Data::kMatrix) {
    cols_ = std::min(kWideCols, elements);
    rows_ = std::clamp<int64_t>(elements / cols_, 1, kWideRows);
  } else {
    cols_ = data == Data::kTall ? tall_cols(elements) : std::min(kCols, elements);
    rows_ = elements / cols_;
  }
  findings_ = bench.put(std::vector<Findings>(1));
  message_ = bench.put(bench_values(6, DType::kBF16, this->elements()));
  other_ = bench.put(std::vector<unsigned char>(static_cast<size_t>(2 * this->elements())));
  if (data == Data::kTall || data == Data::kMatrix) {
    make_matrices();
  } else {
    make_parameter(data);
  }
}

void ElementwiseScene::make_parameter(Data data) {
  const int64_t n = elements();
  Piece piece{};
  piece.rows = rows_;
  piece.cols = piece.local_ld = piece.tensor_ld = cols_;
  piece.update_scale = 0.3f;
  pieces_ = {piece};
  view_.param = bench_->put(bench_values(1, DType::kBF16, n));
  view_.grad = bench_->put(bench_values(2, DType::kBF16, n));
  if (data == Data::kRemainder) {
    view_.form = WeightForm::kRemainder;
    view_.remainder = reinterpret_cast<uint16_t*>(bench_->put(bench_values(3, DType::kBF16, n)));
  } else if (data == Data::kStochastic) {
    view_.form = WeightForm::kStochastic;
    view_.seed = 7;
  } else {
    view_.form = WeightForm::kMaster;
    view_.master = reinterpret_cast<float*>(bench_->put(bench_values(3, DType::kF32, n)));
  }
  view_.momentum = reinterpret_cast<float*>(bench_->put(bench_values(4, DType::kF32, n)));
  if (data == Data::kAdamW) {
    auto variance = bench_values(5, DType::kF32, n);
    for (int64_t i = 0; i < n; ++i) variance[static_cast<size_t>(4 * i + 3)] &= 0x7f;
    view_.variance = reinterpret_cast<float*>(bench_->put(variance));
  }
  view_.numel = n;
  view_.param_dtype = view_.grad_dtype = DType::kBF16;
  params_ = bench_->put(std::vector<ParamView>{view_});
  MuonScalars group;
  group.rate = 0.01f;
  group.decay = 0.001f;
  groups_ = bench_->put(std::vector<MuonScalars>{group});
  AdamScalars adam;
  adam.rate = 0.01f;
  adam.decay = 0.001f;
  adam_ = bench_->put(std::vector<AdamScalars>{adam});
  sum_ = bench_->put(std::vector<Ballot>{Ballot{1, kStamp, 0, 0, 0}});
}

void ElementwiseScene::make_matrices() {
  owned_ = {{0, rows_, cols_}};
  placed_ = {{0, rows_, cols_, 0, 0, 0}};
  const int64_t rows = owned_[0].short_side(), cols = owned_[0].long_side();
  const int64_t ld = bench_->ops().leading_dimension(cols, DType::kBF16);
  matrix_ = {nullptr, DType::kBF16, rows, cols, ld, 1, rows * ld};
  // Each element's value follows from its place in the matrix, whatever the padding.
  const auto dense = bench_values(7, DType::kBF16, elements());
  std::vector<unsigned char> padded(static_cast<size_t>(2 * matrix_.stride));
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(dense.begin() + 2 * row * cols, 2 * cols, padded.begin() + 2 * row * ld);
  matrix_.data = bench_->put(padded);
  normal_ = matrix_;
  normal_.data = bench_->put(padded);
}

std::vector<unsigned char> ElementwiseScene::result() {
  std::vector<unsigned char> out;
  const auto add = [&](const void* from, int64_t bytes) {
    if (!from) return;
    const auto at = static_cast<int64_t>(out.size());
    out.resize(static_cast<size_t>(at + bytes));
    bench_->get(out.data() + at, from, bytes);
  };
  const auto add_rows = [&](const MatrixBatch& m) {
    if (!m.data) return;
    std::vector<unsigned char> padded(static_cast<size_t>(2 * m.stride));
    bench_->get(padded.data(), m.data, 2 * m.stride);
    for (int64_t row = 0; row < m.rows; ++row)
      out.insert(out.end(), padded.begin() + 2 * row * m.ld,
                 padded.begin() + 2 * (row * m.ld + m.cols));
  };
  add(view_.param, 2 * elements());
  add(view_.master, 4 * elements());
  add(view_.remainder, 2 * elements());
  add(view_.momentum, 4 * elements());
  add(view_.variance, 4 * elements());
  add(other_, 2 * elements());
  add_rows(matrix_);
  add_rows(normal_);
  return out;
}

void ElementwiseScene::copy() {
  bench_->ops().copy(bench_->stream(), other_, message_, 2 * elements());
}
void ElementwiseScene::pack_direction() {
  bench_->ops().pack_direction(bench_->stream(), pieces_, {.params = params_, .groups = groups_},
                               {.data = other_, .dtype = DType::kBF16}, findings_);
}
void ElementwiseScene::scan() { bench_->ops().scan(bench_->stream(), list_, params_, findings_); }
void ElementwiseScene::commit_muon() {
  bench_->ops().commit_muon(bench_->stream(), pieces_, {.params = params_, .groups = groups_},
                            {.data = message_, .dtype = DType::kBF16},
                            {.sum = sum_, .world = 1, .stamp = kStamp});
}
void ElementwiseScene::commit_adamw() {
  bench_->ops().commit_adamw(bench_->stream(), list_, {}, {.params = params_, .adam = adam_},
                             {.sum = sum_, .world = 1, .stamp = kStamp});
}
void ElementwiseScene::unpack() {
  bench_->ops().unpack(bench_->stream(), placed_, owned_, &matrix_,
                       {.data = message_, .dtype = DType::kBF16});
}
void ElementwiseScene::pack() {
  bench_->ops().pack(bench_->stream(), placed_, owned_, &matrix_,
                     {.data = other_, .dtype = DType::kBF16}, findings_);
}
void ElementwiseScene::normalize() {
  bench_->ops().normalize(bench_->stream(), matrix_, normal_, {}, findings_);
}

const std::vector<ElementwisePass>& elementwise_passes() {
  using Data = ElementwiseScene::Data;
  using Scene = ElementwiseScene;
  static const std::vector<ElementwisePass> passes = {
      {"copy", 4, Data::kMuon, &Scene::copy},
      {"pack", 8, Data::kMuon, &Scene::pack_direction},
      {"scan", 2, Data::kMuon, &Scene::scan},
      {"commit", 22, Data::kMuon, &Scene::commit_muon},
      {"commit remainder", 20, Data::kRemainder, &Scene::commit_muon},
      {"commit stochastic", 16, Data::kStochastic, &Scene::commit_muon},
      {"adamw", 28, Data::kAdamW, &Scene::commit_adamw},
      {"unpack tall", 4, Data::kTall, &Scene::unpack},
      {"pack tall", 4, Data::kTall, &Scene::pack},
      {"normalize", 6, Data::kMatrix, &Scene::normalize}};
  return passes;
}

}  // namespace muonrt::tool
