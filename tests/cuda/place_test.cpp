#include <catch2/catch.hpp>
#include <cmath>

#include "cuda/machine.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

struct Shape {
  int64_t rows, cols, pad;  // of the whole matrix; elements between its stored rows
};

/// Whole matrices, wide, tall and square, each cut into bands and blocks with gaps between them.
struct Placing {
  std::vector<Owned> owned;
  std::vector<Placed> placed;
  std::vector<int64_t> pads;
  int64_t message_elements = 0;
};

Placing placing(const std::vector<Shape>& shapes) {
  Placing out;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto [rows, cols, pad] = shapes[i];
    const auto index = static_cast<int32_t>(i);
    out.owned.push_back({index, rows, cols});
    out.pads.push_back(pad);
    const int64_t cut_row = rows / 3, cut_col = i % 2 ? cols / 2 : cols;
    for (const auto& [row, end_row] : {std::pair(int64_t{0}, cut_row), {cut_row, rows}}) {
      for (const auto& [col, end_col] : {std::pair(int64_t{0}, cut_col), {cut_col, cols}}) {
        if (row == end_row || col == end_col) continue;
        out.message_elements += static_cast<int64_t>(i) % 4;
        out.placed.push_back({index, end_row - row, end_col - col, row, col, out.message_elements});
        out.message_elements += (end_row - row) * (end_col - col);
      }
    }
  }
  return out;
}

std::vector<Shape> shapes() {
  return {{70, 200, 0}, {200, 70, 8}, {64, 64, 0}, {131, 257, 7}, {257, 131, 1},
          {1, 37, 0},   {41, 1, 3},   {1, 1, 0},   {9000, 3, 0},  {2, 20000, 0}};
}

struct Placement {
  std::vector<Bytes> matrices;
  Bytes message;
  Findings findings;
};

/// Unpacks a message into matrices of its dtype, or packs matrices of `stored` into one.
Placement placed_by(std::unique_ptr<Device> device, const Placing& p, DType stored, DType transport,
                    bool unpack, int64_t offset, float poison = 0.0f) {
  Machine machine(std::move(device));
  std::vector<MatrixBatch> matrices;
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < p.owned.size(); ++i) {
    const Owned& o = p.owned[i];
    const int64_t ld = o.long_side() + p.pads[i];
    Bytes content = values(i, stored, o.short_side() * ld);
    if (poison != 0.0f && i == 3) set_value(content, stored, ld + 5, poison);
    sizes.push_back(std::ssize(content));
    matrices.push_back({machine.put(content, offset * size_of(stored)), stored, o.short_side(),
                        o.long_side(), ld, 1, 0});
  }
  const Bytes content = values(99, transport, p.message_elements);
  auto* message = machine.put(content, offset * size_of(transport));
  auto* findings = machine.put_one(Findings{});
  if (unpack) {
    machine.ops().unpack(machine.on(), p.placed, p.owned, matrices.data(), message, transport);
  } else {
    machine.ops().pack(machine.on(), p.placed, p.owned, matrices.data(), message, transport,
                       findings);
  }
  machine.finish();
  Placement out;
  for (size_t i = 0; i < matrices.size(); ++i)
    out.matrices.push_back(
        machine.get(static_cast<const unsigned char*>(matrices[i].data), sizes[i]));
  out.message = machine.get(message, std::ssize(content));
  out.findings = machine.get_one(findings);
  return out;
}

}  // namespace

TEST_CASE("cuda unpack: matrices are the host's byte for byte, padding untouched", "[cuda]") {
  const Placing p = placing(shapes());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t offset : {0, 3}) {
      const Placement expected = placed_by(make_host(), p, dtype, dtype, true, offset);
      const Placement got = placed_by(make_device(true), p, dtype, dtype, true, offset);
      CHECK(difference(got.matrices, expected.matrices) == -1);
      CHECK(difference(got.message, expected.message) == -1);
    }
  }
}

TEST_CASE("cuda pack: messages are the host's byte for byte, gaps untouched", "[cuda]") {
  const Placing p = placing(shapes());
  for (const DType stored : {DType::kF32, DType::kBF16}) {
    for (const DType transport : {DType::kF32, DType::kBF16}) {
      const Placement expected = placed_by(make_host(), p, stored, transport, false, 0);
      const Placement got = placed_by(make_device(true), p, stored, transport, false, 0);
      CHECK(difference(got.message, expected.message) == -1);
      CHECK(difference(got.matrices, expected.matrices) == -1);
      CHECK(got.findings.nonfinite == 0);
    }
  }
}

TEST_CASE("cuda pack: a value that is not finite in the message's dtype is noted", "[cuda]") {
  const Placing p = placing(shapes());
  const auto found = [&](DType stored, DType transport, float poison) {
    return placed_by(make_device(true), p, stored, transport, false, 0, poison).findings;
  };
  CHECK(found(DType::kBF16, DType::kF32, std::nanf("")).nonfinite == 1);
  CHECK(found(DType::kF32, DType::kBF16, 3.4e38f).nonfinite == 1);
  CHECK(found(DType::kF32, DType::kF32, 3.4e38f).nonfinite == 0);
  CHECK(found(DType::kBF16, DType::kF32, std::nanf("")).first_param == -1);
}
