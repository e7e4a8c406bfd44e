#include <catch2/catch.hpp>
#include <limits>

#include "host_fixture.hpp"

using namespace muonrt;
using host_test::dtype_of;
using host_test::f32;
using host_test::OnHost;
using host_test::same_bits;
using host_test::values;

namespace {

constexpr float kPoison = 12345.0f;

/// Whole matrices of rows x cols, stored short side first with a padded leading dimension, and a
/// message that holds each cut into rectangles.
struct Case {
  std::vector<Owned> owned;
  std::vector<MatrixPiece> pieces;
  int64_t message_size = 0;

  /// A cut into bands of rows of 1, 2, 4, ... and those into columns of 3, 6, 12, ...
  void add(int64_t rows, int64_t cols) {
    const auto index = static_cast<int32_t>(owned.size());
    owned.push_back({.matrix = index, .rows = rows, .cols = cols});
    for (int64_t row = 0, height = 1; row < rows; row += height, height *= 2) {
      for (int64_t col = 0, width = 3; col < cols; col += width, width *= 2) {
        const MatrixPiece p{.matrix = index,
                            .rows = std::min(height, rows - row),
                            .cols = std::min(width, cols - col),
                            .row = row,
                            .col = col,
                            .packed_offset = message_size};
        pieces.push_back(p);
        message_size += p.rows * p.cols;
      }
    }
  }
};

template <class T>
struct Stored {
  explicit Stored(const Case& c) {
    for (const Owned& each : c.owned) {
      const int64_t rows = std::min(each.rows, each.cols), cols = std::max(each.rows, each.cols);
      const int64_t ld = cols + 5;
      memory.emplace_back(static_cast<size_t>(rows * ld), from_f32<T>(kPoison));
      batches.push_back({memory.back().data(), dtype_of<T>(), rows, cols, ld, 1, 0});
    }
  }
  /// Element (row, col) of the whole matrix, whichever way it is stored.
  T& at(const Case& c, size_t i, int64_t row, int64_t col) {
    if (c.owned[i].rows > c.owned[i].cols) std::swap(row, col);
    return memory[i][static_cast<size_t>(row * batches[i].ld + col)];
  }
  std::vector<std::vector<T>> memory;
  std::vector<MatrixBatch> batches;
};

Case some_case() {
  Case c;
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 37}, {41, 1}, {5, 3}, {3, 5}, {33, 33}, {67, 131}, {200, 71}})
    c.add(rows, cols);
  return c;
}

float element(size_t matrix, int64_t row, int64_t col) {
  return host_test::value_at(matrix + 1, row * 1000 + col);
}

}  // namespace

TEMPLATE_TEST_CASE("host unpack: every element arrives at its place, padding is left alone",
                   "[unit][host][tsan]", float, bf16) {
  using Wire = TestType;
  const Case c = some_case();
  std::vector<Wire> message(static_cast<size_t>(c.message_size));
  for (const MatrixPiece& p : c.pieces)
    for (int64_t i = 0; i < p.rows * p.cols; ++i)
      message[static_cast<size_t>(p.packed_offset + i)] = from_f32<Wire>(
          element(static_cast<size_t>(p.matrix), p.row + i / p.cols, p.col + i % p.cols));
  for (const int threads : {1, 3}) {
    Stored<Wire> stored(c);
    OnHost host(threads);
    host.ops().unpack(*host.stream, c.pieces, c.owned, stored.batches.data(),
                      {.data = message.data(), .dtype = dtype_of<Wire>()});
    host.finish();
    for (size_t i = 0; i < c.owned.size(); ++i) {
      for (int64_t row = 0; row < c.owned[i].rows; ++row)
        for (int64_t col = 0; col < c.owned[i].cols; ++col)
          REQUIRE(f32(stored.at(c, i, row, col)) == f32(from_f32<Wire>(element(i, row, col))));
      const MatrixBatch& b = stored.batches[i];
      for (int64_t row = 0; row < b.rows; ++row)
        for (int64_t col = b.cols; col < b.ld; ++col)
          REQUIRE(f32(stored.memory[i][static_cast<size_t>(row * b.ld + col)]) ==
                  f32(from_f32<Wire>(kPoison)));
    }
  }
}

TEMPLATE_TEST_CASE("host pack: every element is rounded once into its place of the message",
                   "[unit][host][tsan]", (std::pair<float, float>), (std::pair<float, bf16>),
                   (std::pair<bf16, float>), (std::pair<bf16, bf16>)) {
  using Whole = typename TestType::first_type;
  using Wire = typename TestType::second_type;
  const Case c = some_case();
  Stored<Whole> stored(c);
  for (auto& each : stored.memory)  // padding must not be read
    std::fill(each.begin(), each.end(), from_f32<Whole>(std::numeric_limits<float>::infinity()));
  for (size_t i = 0; i < c.owned.size(); ++i)
    for (int64_t row = 0; row < c.owned[i].rows; ++row)
      for (int64_t col = 0; col < c.owned[i].cols; ++col)
        stored.at(c, i, row, col) = from_f32<Whole>(element(i, row, col));
  for (const int threads : {1, 3}) {
    std::vector<Wire> message(static_cast<size_t>(c.message_size + 1), from_f32<Wire>(kPoison));
    Findings findings;
    OnHost host(threads);
    host.ops().pack(*host.stream, c.pieces, c.owned, stored.batches.data(),
                    {.data = message.data(), .dtype = dtype_of<Wire>()}, &findings);
    host.finish();
    for (const MatrixPiece& p : c.pieces)
      for (int64_t i = 0; i < p.rows * p.cols; ++i)
        REQUIRE(f32(message[static_cast<size_t>(p.packed_offset + i)]) ==
                f32(from_f32<Wire>(f32(from_f32<Whole>(element(
                    static_cast<size_t>(p.matrix), p.row + i / p.cols, p.col + i % p.cols))))));
    REQUIRE(f32(message.back()) == f32(from_f32<Wire>(kPoison)));
    REQUIRE(findings.nonfinite == 0);
  }
}

TEST_CASE("host pack: a value that is not finite is found in every place, transposed or not",
          "[unit][host]") {
  for (const bool tall : {false, true}) {
    Case c;
    c.add(tall ? 9 : 5, tall ? 5 : 9);
    Stored<float> stored(c);
    std::vector<bf16> message(static_cast<size_t>(c.message_size));
    OnHost host;
    const auto found = [&] {
      Findings findings;
      host.ops().pack(*host.stream, c.pieces, c.owned, stored.batches.data(),
                      {.data = message.data(), .dtype = DType::kBF16}, &findings);
      host.finish();
      REQUIRE(findings.first_param == -1);  // which parameter it is, the ranks that hold it know
      return findings.nonfinite;
    };
    REQUIRE(found() == 0);
    for (int64_t row = 0; row < c.owned[0].rows; ++row) {
      for (int64_t col = 0; col < c.owned[0].cols; ++col) {
        float& x = stored.at(c, 0, row, col);
        for (const float bad :
             {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(),
              std::numeric_limits<float>::max()}) {  // too large for bf16
          x = bad;
          REQUIRE(found() == 1);
        }
        x = 1.0f;
      }
    }
  }
}

TEST_CASE("host pack: reads back what unpack wrote, bit for bit", "[unit][host]") {
  const Case c = some_case();
  const auto message = values<bf16>(3, c.message_size);
  std::vector<bf16> back(message.size());
  Stored<bf16> stored(c);
  Findings findings;
  OnHost host;
  host.ops().unpack(*host.stream, c.pieces, c.owned, stored.batches.data(),
                    {.data = message.data(), .dtype = DType::kBF16});
  host.ops().pack(*host.stream, c.pieces, c.owned, stored.batches.data(),
                  {.data = back.data(), .dtype = DType::kBF16}, &findings);
  host.finish();
  REQUIRE(same_bits(message, back));
}

TEST_CASE("host pack and unpack: empty lists and matrices stored otherwise", "[unit][host]") {
  OnHost host;
  Findings findings;
  host.ops().unpack(*host.stream, {}, {}, nullptr, {.data = nullptr, .dtype = DType::kBF16});
  host.ops().pack(*host.stream, {}, {}, nullptr, {.data = nullptr, .dtype = DType::kBF16},
                  &findings);
  host.finish();
  Case c;
  c.add(4, 2);
  Stored<float> stored(c);
  std::swap(stored.batches[0].rows, stored.batches[0].cols);
  std::vector<float> message(8);
  host.ops().unpack(*host.stream, c.pieces, c.owned, stored.batches.data(),
                    {.data = message.data(), .dtype = DType::kF32});
  REQUIRE_THROWS_AS(host.finish(), Error);
}
